// What single things cost, timed on the GPU itself.
#include "device.h"

using namespace blink;

namespace {

// Launches nothing: notes when it would have.
struct Stopwatch {
  u64 launched_ns;

  __device__ bool launch(u32, u32, const Queue&) {
    launched_ns = now_ns();
    return false;
  }
  __device__ bool finished() const { return true; }
  __device__ u32 token(u32) const { return 1; }
  __device__ void tail_launch() {}
};

using Timed = TeamScheduler<DeviceMemory, Stopwatch>;

__device__ void begin(Timed& scheduler, Storage& storage, Device* device) {
  storage = device->storage;
  scheduler.ring.memory = DeviceMemory{device->view.ring};
  scheduler.ring.geometry = device->view.geometry;
  scheduler.ring.held = device->held;
  scheduler.engine = Stopwatch{0};
  scheduler.state = &storage;
}

__device__ void submit(Timed& scheduler, u32 slot, u32 generation) {
  Descriptor wanted{};
  wanted.prompt_tokens = wanted.output_tokens_max = 1;
  wanted.generation = generation;
  const auto& ring = scheduler.ring;
  ring.memory.write(ring.geometry.descriptor(slot), &wanted, sizeof wanted);
  ring.memory.store_release(ring.geometry.flag(slot), pack(state::PREFILL_PENDING, outcome::NONE, generation, 0));
}

}  // namespace

// Scans of a ring in which nothing is pending: how long each took, by a team.
extern "C" __global__ void __launch_bounds__(SCHEDULER_THREADS, 1)
    blink_time_scans(Device* device, u64* ns, u32 count) {
  __shared__ Storage storage;
  __shared__ Timed scheduler;
  if (threadIdx.x == 0) begin(scheduler, storage, device);
  __syncthreads();
  for (u32 at = 0; at < count; ++at) {
    const u64 began_ns = now_ns();
    Block{}.scan([&](u32 scanner, u32 scanners) { scheduler.look(scanner, scanners, Block{}); });
    __syncthreads();
    // One that scans: the leader would read its clock before the others have begun.
    if (threadIdx.x == Block::LEADERS_WARP) ns[at] = now_ns() - began_ns;
  }
}

// From a request's flag to its prefill's launch call, by a team that has nothing else to do; and one claim alone.
extern "C" __global__ void __launch_bounds__(SCHEDULER_THREADS, 1)
    blink_time_admissions(Device* device, u64* ns, u64* claim_ns, u32 count) {
  __shared__ Storage storage;
  __shared__ Timed scheduler;
  const Block team;
  for (u32 at = 0; at < count; ++at) {
    const u32 slot = at % device->view.geometry.slots;
    if (threadIdx.x == 0) begin(scheduler, storage, device);
    team.meet();
    if (threadIdx.x != 0) {
      while (scheduler.follow(team)) {
      }
      team.meet();
      continue;
    }
    submit(scheduler, slot, 2 * at + 1);
    Claimed claimed{};
    u64 began_ns = now_ns();
    scheduler.ring.claim(slot, pack(state::PREFILL_PENDING, outcome::NONE, 2 * at + 1, 0), &claimed);
    claim_ns[at] = now_ns() - began_ns;
    submit(scheduler, slot, 2 * at + 2);
    began_ns = now_ns();
    while (!scheduler.engine.launched_ns && storage.fault == Status::OK) scheduler.lead(team);
    ns[at] = scheduler.engine.launched_ns - began_ns;
    scheduler.dismiss(team);
    team.meet();  // all have seen it
  }
}

// Fire-and-forget launches of a graph of one node, by a thread that does nothing but wait for its completion word:
// what the call takes, and until it is seen. At most a window's launches; it must itself run as a device graph.
extern "C" __global__ void blink_time_launches(Device* device, u64* call_ns, u64* seen_ns, u32 count) {
  Launch& launch = device->launch;
  launch.count = 0;
  for (u32 at = 0; at < count; ++at) {
    const u64 wanted = launch.launched + 1;
    launch.launched = wanted;
    __threadfence();
    const u64 began_ns = now_ns();
    cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(device->decode_execs[at % GRAPH_EXECS]),
                    cudaStreamGraphFireAndForget);
    call_ns[at] = now_ns() - began_ns;
    for (u64 found = 0; found != wanted;)
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(&launch.finished) : "memory");
    seen_ns[at] = now_ns() - began_ns;
  }
}

// The GPU's clock, for a host that wants to compare it with its own.
extern "C" __global__ void blink_now(u64* ns) { *ns = now_ns(); }
