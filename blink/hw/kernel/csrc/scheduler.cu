// The scheduler as a kernel that lives on the GPU: one block, one team, until the host says stop.
//
// It runs as a device graph of one node, launched once by the host. It launches captured graphs itself, and when its
// window is used up, or a graph is to have the whole GPU, it tail-launches itself and ends: a fresh instance goes on
// from what lies in memory.
#include "device.h"

namespace blink {

// Launches what the host has captured. The leader's alone.
struct GraphEngine {
  Device* device;
  bool leaving;  // a fresh instance has been tail-launched: this one has to end
  u32 error;

  __device__ bool launch(u32 graph, u32 exec_index, const Queue& batch) {
    Launch& launch = device->launch;
    launch.decided_ns = now_ns();
    launch.slots = batch.items + batch.first;
    launch.count = batch.count;
    launch.graph = graph;
    ++launch.launched;
    // Everything that the graph reads was written by this block, and lies behind a barrier of the leader's.
    __threadfence();
    const u64 exec = graph == graph::DECODE_GRAPH ? decode_exec(batch) : prefill_exec(batch);
    const bool chained = device->modes[graph] == TAIL_CHAIN;
    start(reinterpret_cast<cudaGraphExec_t>(reinterpret_cast<u64*>(exec)[exec_index]),
          chained ? cudaStreamGraphTailLaunch : cudaStreamGraphFireAndForget);
    launch.launched_ns = now_ns();
    if (chained) tail_launch();
    return chained;
  }

  __device__ bool finished() const {
    u64 found;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(found) : "l"(&device->launch.finished) : "memory");
    if (found != device->launch.launched) return false;
    __threadfence_system();
    log_step();
    return true;
  }

  __device__ u32 token(u32 slot) const { return __ldcg(device->view.tokens + slot); }

  __device__ void tail_launch() {
    start(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
    leaving = true;
  }

 private:
  __device__ void start(cudaGraphExec_t exec, cudaStream_t how) {
    const u32 refused = static_cast<u32>(cudaGraphLaunch(exec, how));
    if (refused && !error) error = refused;
  }

  __device__ u64 decode_exec(const Queue& batch) const {
    return reinterpret_cast<u64>(device->decode_execs + device->decode_index[batch.count] * GRAPH_EXECS);
  }

  __device__ u64 prefill_exec(const Queue& batch) const {
    const u32 column = device->tokens_index[longest(batch)];
    const u32 place = device->prefill_index[batch.count] * device->token_buckets + column;
    return reinterpret_cast<u64>(device->prefill_execs + place * GRAPH_EXECS);
  }

  __device__ u32 longest(const Queue& batch) const {
    u32 found = 0;
    for (u32 place = 0; place < batch.count; ++place)
      found = max(found, device->view.requests[batch[place]].context_tokens());
    return found;
  }

  __device__ void log_step() const {
    const Launch& launch = device->launch;
    const u64 place = device->report->steps % device->log_capacity;
    const bool prefill = launch.graph == graph::PREFILL_GRAPH;
    const Queue batch{const_cast<u32*>(launch.slots), 0, 0, launch.count};
    device->steps[place] = {launch.decided_ns,
                            launch.launched_ns,
                            __ldcg(&launch.start_ns),
                            __ldcg(&launch.end_ns),
                            now_ns(),
                            launch.graph,
                            launch.count,
                            prefill ? longest(batch) : 1,
                            0};
    for (u32 row = 0; prefill && row < batch.count; ++row) log_prefill(batch[row]);
    ++device->report->steps;
  }

  __device__ void log_prefill(u32 slot) const {
    Report& report = *device->report;
    device->prefills[report.prefills++ % device->log_capacity] = {device->view.requests[slot].request_id, report.steps};
  }
};

using Resident = Scheduler<DeviceMemory, GraphEngine>;

// Writes what the host may see; the rest of the state goes to memory when the instance ends.
__device__ void report_on(const Resident& scheduler, const Storage& storage, Device* device) {
  volatile Report& report = *device->report;
  report.heartbeat = report.heartbeat + 1;
  report.launches_total = storage.window.launches_total;
  report.relaunches = storage.window.relaunches;
  report.blocks_free = storage.blocks.blocks_free;
  report.launch_error = scheduler.engine.error;
  report.fault_slot = storage.fault_slot;
  report.fault = static_cast<u32>(storage.fault);
}

__device__ bool stop_asked(const Device* device) {
  u32 word;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(&device->report->stop) : "memory");
  return word != 0;
}

// How often the leader looks up from its work, in times that it waits: each costs a load and some stores.
constexpr u32 REPORT_TURNS = 32;

__device__ void lead(Resident& scheduler, Storage& storage, Device* device) {
  const Block team;
  for (u32 waited = 0; !scheduler.engine.leaving;) {
    if (waited++ % REPORT_TURNS == 0) {
      report_on(scheduler, storage, device);
      if (stop_asked(device)) break;
    }
    do {
      scheduler.lead(team);
      if (scheduler.engine.error) storage.fault = Status::LAUNCH_REFUSED;
    } while (storage.fault == Status::OK && !scheduler.engine.leaving && !scheduler.waits());
    if (storage.fault != Status::OK) break;
  }
  scheduler.dismiss(team);
  report_on(scheduler, storage, device);
  device->storage = storage;
  volatile Report& report = *device->report;
  if (!scheduler.engine.leaving) report.running = 0;
  device->left_ns = scheduler.engine.leaving ? now_ns() : 0;
}

// An instance begins: how long that took is part of what a relaunch costs.
__device__ void enter(Device* device) {
  Report& report = *device->report;
  if (device->left_ns) device->tails[report.tails++ % device->log_capacity] = now_ns() - device->left_ns;
  report.running = 1;
  ++report.executions;
}

}  // namespace blink

using namespace blink;

// --- kernels ----------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(SCHEDULER_THREADS, 1) blink_scheduler(Device* device) {
  __shared__ Storage storage;
  __shared__ Resident scheduler;
  if (threadIdx.x == 0) {
    storage = device->storage;
    storage.over = 0;
    scheduler.ring.memory = DeviceMemory{device->view.ring};
    scheduler.ring.geometry = device->view.geometry;
    scheduler.ring.held = device->held;
    scheduler.engine = GraphEngine{device, false, 0};
    scheduler.state = &storage;
    enter(device);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    lead(scheduler, storage, device);
  } else {
    while (scheduler.follow(Block{})) {
    }
  }
}

// How many bytes of zeroed memory blink_setup needs for this configuration.
extern "C" __global__ void blink_measure(Setup setup, u64* bytes) {
  Bump bump{nullptr, 0};
  storage_of(setup.config, bump);
  held_slots_of(setup.config, bump);
  bump.words(setup.config.slots);
  bump.words(setup.config.batch_max + 1);
  bump.words(setup.config.prefill_batch_max + 1);
  bump.words(setup.config.prompt_tokens_max + setup.config.output_tokens_max + 1);
  *bytes = bump.used;
}

__device__ inline u32 bucket_index(const u32* buckets, u32 count, u32 size) {
  u32 at = 0;
  while (at + 1 < count && buckets[at] < size) ++at;
  return at;
}

extern "C" __global__ void blink_setup(Setup setup, Device* device, u8* blob) {
  const Config& config = setup.config;
  Bump bump{blob, 0};
  Storage& storage = device->storage;
  storage = storage_of(config, bump);
  fill(storage, config);
  device->held = held_slots_of(config, bump);
  device->view = View{storage.requests,
                      storage.blocks.tables,
                      storage.blocks.counts,
                      storage.blocks.table_blocks_max,
                      config.blocks_total,
                      setup.ring,
                      geometry_of(config.slots, config.prompt_tokens_max, config.output_tokens_max),
                      &device->launch,
                      bump.words(config.slots)};
  device->report = setup.report;
  device->launch = Launch{};
  device->left_ns = 0;
  device->tails = setup.tails;
  device->steps = setup.steps;
  device->prefills = setup.prefills;
  device->log_capacity = setup.log_capacity;
  device->decode_execs = setup.decode_execs;
  device->prefill_execs = setup.prefill_execs;
  device->token_buckets = setup.token_bucket_count;
  for (u32 graph = 0; graph < GRAPHS; ++graph) device->modes[graph] = setup.modes[graph];
  device->decode_index = bump.words(config.batch_max + 1);
  for (u32 count = 0; count <= config.batch_max; ++count)
    device->decode_index[count] = bucket_index(config.decode_batches, config.decode_batch_count, count);
  device->prefill_index = bump.words(config.prefill_batch_max + 1);
  for (u32 count = 0; count <= config.prefill_batch_max; ++count)
    device->prefill_index[count] = bucket_index(setup.prefill_batches, setup.prefill_batch_count, count);
  const u32 context = config.prompt_tokens_max + config.output_tokens_max;
  device->tokens_index = bump.words(context + 1);
  for (u32 tokens = 0; tokens <= context; ++tokens)
    device->tokens_index[tokens] = bucket_index(setup.token_buckets, setup.token_bucket_count, tokens);
}
