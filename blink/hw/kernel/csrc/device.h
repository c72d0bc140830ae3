// The core on a GPU: its memory, its engine, its team, and all that the host and the graphs see of it.
#pragma once

#include "team.h"

namespace blink {

// --- memory ----------------------------------------------------------------------------------------

// The Memory of ring.h for a kernel: words at *system* scope, for the other party is across PCIe. Payload is read
// behind an acquire, past L1 all the same: nothing else says that a card's writes are seen there.
struct DeviceMemory {
  u8* base;

  __device__ u64 load_relaxed(u64 offset) const {
    u64 word;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(base + offset) : "memory");
    return word;
  }
  __device__ u64 load_acquire(u64 offset) const {
    u64 word;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(base + offset) : "memory");
    return word;
  }
  __device__ void store_release(u64 offset, u64 word) const {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(base + offset), "l"(word) : "memory");
  }
  __device__ u64 cas(u64 offset, u64 expected, u64 desired) const {
    u64 found;
    asm volatile("atom.acq_rel.sys.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(found)
                 : "l"(base + offset), "l"(expected), "l"(desired)
                 : "memory");
    return found;
  }
  // Whole words of 4 bytes: everything in a ring is made of them.
  __device__ void read(u64 offset, void* to, u32 bytes) const {
    for (u32 at = 0; at < bytes / 4; ++at)
      asm volatile("ld.relaxed.sys.global.u32 %0, [%1];"
                   : "=r"(static_cast<u32*>(to)[at])
                   : "l"(base + offset + 4 * at)
                   : "memory");
  }
  __device__ void write(u64 offset, const void* from, u32 bytes) const {
    for (u32 at = 0; at < bytes / 4; ++at)
      reinterpret_cast<u32*>(base + offset)[at] = static_cast<const u32*>(from)[at];
  }
};

__device__ inline u64 now_ns() {
  u64 ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");  // neither before nor after anything moves past it
  return ns;
}

// --- one block ---------------------------------------------------------------------------------------

// A Team of the block's threads. The leader's warp has no part in what is shared: its other lanes would take their turn
// before or after the leader, and everybody would wait twice as long. The barrier is the unaligned one, for the leader
// stands elsewhere in the code than its lanes.
struct Block {
  __device__ void meet() const { asm volatile("barrier.sync 0;" ::: "memory"); }
  __device__ u32 add(u32* count, u32 more) const { return atomicAdd(count, more); }
  static constexpr u32 LEADERS_WARP = 32;

  __device__ u32 rank() const { return threadIdx.x < LEADERS_WARP ? ~0u : threadIdx.x - LEADERS_WARP; }
  __device__ u32 size() const { return SCHEDULER_THREADS - LEADERS_WARP; }
  __device__ bool shares(u32 count) const { return count > 1; }
  // A load that nobody waits for.
  __device__ void touch(const void* word) const {
    u32 unused;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(unused) : "l"(word));
  }

  template <class Look>
  __device__ void scan(Look look) const {
    if (threadIdx.x >= LEADERS_WARP) look(rank(), size());
  }
};

// --- what the scheduler, its graphs and the host share ------------------------------------------------

// One graph that ran; times of the GPU's global timer.
struct StepLog {
  u64 decided_ns;   // the scheduler began to launch it
  u64 launched_ns;  // its launch call returned
  u64 start_ns;     // its first kernel ran
  u64 end_ns;       // its last kernel set the completion word
  u64 seen_ns;      // the scheduler saw that
  u32 graph, count;
  u32 tokens;  // of the longest prompt, of a prefill
  u32 exec_index;
};

// One prompt that a graph computed: which graph, as a number of its StepLog.
struct PrefillLog {
  u64 request_id;
  u64 step;
};

// Read by the host while the scheduler runs; `stop` is the host's. A heartbeat that stands still is a hang.
struct Report {
  u64 heartbeat;
  u64 executions;
  u32 stop;
  u32 running;  // an instance is up
  u32 fault, fault_slot;
  u32 launch_error;  // a cudaError_t
  u32 blocks_free;
  u64 launches_total, relaunches;
  u64 steps, prefills, tails;  // logged
};

// The last launch, which is logged once the next is under way: not between two steps.
struct Pending {
  u64 decided_ns, launched_ns, seen_ns;  // seen: 0 until it has finished
  u32 graph, count, tokens, exec_index;
};

enum : u32 { FIRE_AND_FORGET = 0, TAIL_CHAIN = 1 };

struct Device {
  View view;  // first: the host reads it from here
  HeldSlots held;
  Storage storage;
  Report* report;
  Launch launch;
  Pending pending;
  u64 left_ns;  // when the last instance tail-launched itself and was about to end, or 0
  u64* tails;   // how long it then took the next to begin
  StepLog* steps;
  PrefillLog* prefills;
  u64 log_capacity;
  // Executables: GRAPH_EXECS of each shape. By sequences, then, of a prefill, by tokens.
  u64* decode_execs;
  u64* prefill_execs;
  u32* decode_index;   // batch_max + 1
  u32* prefill_index;  // prefill_batch_max + 1
  u32* tokens_index;   // context_tokens_max + 1
  u32 token_buckets;
  u32 modes[GRAPHS];
};

constexpr u32 DEVICE_BYTES = 4096;  // what the host gives for one
static_assert(sizeof(Device) <= DEVICE_BYTES);

// What blink_setup is given: sizes, and where the host has put what it made.
struct Setup {
  Config config;  // its lists in GPU memory
  u8* ring;
  Report* report;
  StepLog* steps;
  PrefillLog* prefills;
  u64* tails;
  u64 log_capacity;
  u64* decode_execs;
  u64* prefill_execs;
  const u32* token_buckets;  // ascending; the last holds any context
  const u32* prefill_batches;
  u32 token_bucket_count, prefill_batch_count;
  u32 modes[GRAPHS];
};

}  // namespace blink
