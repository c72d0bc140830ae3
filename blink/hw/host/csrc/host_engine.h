// An engine that launches a GPU's graphs from a host thread: what stands between a scheduler on the host and CUDA.
//
// It calls the driver by two function pointers, so that nothing here is linked against CUDA.
#pragma once

#include <chrono>
#include <thread>
#include <vector>

#include "core.h"

namespace blink {

// Where graphs are, and how they are started. Tables as in device.h: an executable by sequences and tokens.
struct Launcher {
  int (*launch)(void* exec, void* stream);  // cuGraphLaunch
  int (*wait)(void* stream);                // cuStreamSynchronize
  void* stream;
  Launch* shared;     // what gather and scatter read; GPU-visible, as all below that is not a table
  u32* slots;         // of the running graph
  const u32* tokens;  // by slot: what the graph leaves
  void* const* decode_execs;
  void* const* prefill_execs;
  const u32* decode_index;
  const u32* prefill_index;
  const u32* tokens_index;
  u32 token_buckets;
};

// One graph that ran; times of the host's monotonic clock, the GPU's own of its global timer.
struct HostStep {
  u64 decided_ns, launched_ns, seen_ns;
  u64 gpu_start_ns, gpu_end_ns;
  u32 graph, count, tokens, prompts;  // prompts: how many requests follow in the list of them
};

template <class Memory>
class HostEngine {
 public:
  HostEngine(Core<Memory>& core, const Launcher& launcher)
      : core_(core), launcher_(launcher), thread_([this] { run(); }) {}
  ~HostEngine() { stop(); }

  void stop() {
    stopping_.store(true, std::memory_order_release);
    if (thread_.joinable()) thread_.join();
  }

  int error() const { return error_.load(std::memory_order_acquire); }  // a CUresult

  // Only when stopped.
  const std::vector<HostStep>& steps() const { return steps_; }
  const std::vector<u64>& prompts() const { return prompts_; }

 private:
  static u64 now_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<u64>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  }

  void run() {
    Mailbox& box = core_.box;
    while (!stopping_.load(std::memory_order_acquire)) {
      if (box.launches.load(std::memory_order_acquire) == box.finished.load(std::memory_order_relaxed)) {
        std::this_thread::yield();
      } else if (!serve(box)) {
        return;
      }
    }
  }

  bool serve(Mailbox& box) {
    HostStep step{now_ns(), 0, 0, 0, 0, box.graph, box.count, 1, 0};
    Launch& shared = *launcher_.shared;
    std::copy_n(box.slots.begin(), box.count, launcher_.slots);
    shared.slots = launcher_.slots;
    shared.count = box.count;
    shared.graph = box.graph;
    const u64 turn = ++shared.launched % 2;
    void* exec = box.graph == graph::DECODE_GRAPH ? launcher_.decode_execs[launcher_.decode_index[box.count]]
                                                  : prefill_exec(box, step);
    if (!ok(launcher_.launch(exec, launcher_.stream))) return false;
    step.launched_ns = now_ns();
    if (!ok(launcher_.wait(launcher_.stream))) return false;
    step.seen_ns = now_ns();
    step.gpu_start_ns = shared.start_ns[turn];
    step.gpu_end_ns = shared.end_ns[turn];
    for (u32 row = 0; row < box.count; ++row) box.tokens[box.slots[row]] = launcher_.tokens[box.slots[row]];
    box.finished.store(box.launches.load(std::memory_order_acquire), std::memory_order_release);
    steps_.push_back(step);
    return true;
  }

  void* prefill_exec(const Mailbox& box, HostStep& step) {
    step.tokens = 0;
    step.prompts = box.count;
    for (u32 row = 0; row < box.count; ++row) {
      const Request& each = core_.state.requests[box.slots[row]];
      step.tokens = std::max(step.tokens, each.context_tokens());
      prompts_.push_back(each.request_id);
    }
    const u32 place = launcher_.prefill_index[box.count] * launcher_.token_buckets;
    return launcher_.prefill_execs[place + launcher_.tokens_index[step.tokens]];
  }

  bool ok(int error) {
    error_.store(error, std::memory_order_release);
    return error == 0;
  }

  Core<Memory>& core_;
  const Launcher launcher_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> error_{0};
  std::vector<HostStep> steps_;
  std::vector<u64> prompts_;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace blink
