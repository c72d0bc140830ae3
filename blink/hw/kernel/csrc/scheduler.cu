// The scheduler as a kernel that lives on the GPU: one block, one team, until the host says stop.
//
// It runs as a device graph of one node, launched once by the host. It launches captured graphs itself, and when its
// window is used up, or a graph is to have the whole GPU, it tail-launches itself and ends: a fresh instance goes on
// from what lies in memory.
#include "device.h"

namespace blink {

// How often the leader asks for a running graph's completion word before it looks for work again. A new prompt can
// start only when the graph has finished: to claim it some microseconds later costs nothing.
constexpr u32 POLLS = 64;

// Launches what the host has captured. The leader's alone; it lies in shared memory, as what it needs between two steps
// has to: a load that misses costs half a microsecond.
struct GraphEngine {
  Device* device;
  u64 launched;
  Pending pending;
  u32 modes[GRAPHS];
  u32 decode_count;  // whose executables these are
  u64 decode_execs[GRAPH_EXECS];
  bool leaving;  // a fresh instance has been tail-launched: this one has to end
  u32 error;

  __device__ bool launch(u32 graph, u32 exec_index, const Queue& batch) {
    const Pending before = pending;
    pending = {now_ns(), 0, 0, graph, batch.count, 1, exec_index};
    Launch& launch = device->launch;
    launch.slots = batch.items + batch.first;
    launch.count = batch.count;
    launch.graph = graph;
    launch.launched = ++launched;
    const u64 exec = graph == graph::DECODE_GRAPH ? decode_exec(batch, exec_index) : prefill_exec(batch, exec_index);
    // Everything that the graph reads was written by this block, and lies behind a barrier of the leader's.
    __threadfence();
    const bool chained = modes[graph] == TAIL_CHAIN;
    start(reinterpret_cast<cudaGraphExec_t>(exec), chained ? cudaStreamGraphTailLaunch : cudaStreamGraphFireAndForget);
    pending.launched_ns = now_ns();
    if (chained) tail_launch();
    log(before, launched - 1);
    return chained;
  }

  __device__ bool finished() {
    u64 found = 0;
    for (u32 poll = 0; found != launched; ++poll) {
      if (poll == POLLS) return false;
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(&device->launch.finished) : "memory");
    }
    __threadfence();
    pending.seen_ns = now_ns();
    return true;
  }

  __device__ u32 token(u32 slot) const { return __ldcg(device->view.tokens + slot); }

  __device__ void tail_launch() {
    start(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
    leaving = true;
  }

  __device__ void enter(Device* from) {
    device = from;
    launched = from->launch.launched;
    pending = from->pending;
    for (u32 graph = 0; graph < GRAPHS; ++graph) modes[graph] = from->modes[graph];
    decode_count = 0;
    leaving = false;
    error = 0;
  }

  __device__ void leave() {
    if (pending.seen_ns) {
      log(pending, launched);
      pending.seen_ns = 0;
    }
    device->pending = pending;
  }

 private:
  __device__ void start(cudaGraphExec_t exec, cudaStream_t how) {
    const u32 refused = static_cast<u32>(cudaGraphLaunch(exec, how));
    if (refused && !error) error = refused;
  }

  __device__ u64 decode_exec(const Queue& batch, u32 exec_index) {
    if (decode_count != batch.count) {
      decode_count = batch.count;
      const u64* execs = device->decode_execs + device->decode_index[batch.count] * GRAPH_EXECS;
      for (u32 at = 0; at < GRAPH_EXECS; ++at) decode_execs[at] = execs[at];
    }
    return decode_execs[exec_index];
  }

  __device__ u64 prefill_exec(const Queue& batch, u32 exec_index) {
    Report& report = *device->report;
    pending.tokens = 0;
    for (u32 place = 0; place < batch.count; ++place) {
      const Request& each = device->view.requests[batch[place]];
      pending.tokens = max(pending.tokens, each.context_tokens());
      device->prefills[report.prefills++ % device->log_capacity] = {each.request_id, launched - 1};
    }
    const u32 column = device->tokens_index[pending.tokens];
    const u32 place = device->prefill_index[batch.count] * device->token_buckets + column;
    return device->prefill_execs[place * GRAPH_EXECS + exec_index];
  }

  // Logs a launch, the `number`-th, that has been seen to end.
  __device__ void log(const Pending& step, u64 number) const {
    if (!step.seen_ns) return;
    const Launch& launch = device->launch;
    device->steps[(number - 1) % device->log_capacity] = {step.decided_ns,
                                                          step.launched_ns,
                                                          __ldcg(launch.start_ns + number % 2),
                                                          __ldcg(launch.end_ns + number % 2),
                                                          step.seen_ns,
                                                          step.graph,
                                                          step.count,
                                                          step.tokens,
                                                          step.exec_index};
    device->report->steps = number;
  }
};

using Resident = TeamScheduler<DeviceMemory, GraphEngine>;

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
  scheduler.engine.leave();
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
    scheduler.engine.enter(device);
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
  device->pending = Pending{};
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
