// The scheduler on real threads: logical scanners dealt to a team, one leader for all other steps.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "core.h"

namespace blink {

// Everybody waits for everybody, again and again. Waiting gives the processor away: there may be more threads than
// processors, and a front end must get its turn.
class Barrier {
 public:
  explicit Barrier(u32 members) : members_(members) {}

  void wait() {
    const u32 round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
    } else {
      while (round_.load(std::memory_order_acquire) == round) std::this_thread::yield();
    }
  }

 private:
  const u32 members_;
  std::atomic<u32> arrived_{0};
  std::atomic<u32> round_{0};
};

// One member of a team of threads (team.h says what a Team is).
struct Member {
  Barrier* barrier;
  u32 number, threads, scanners;
  bool contested;

  void meet() const { barrier->wait(); }
  u32 add(u32* count, u32 more) const { return __atomic_fetch_add(count, more, __ATOMIC_RELAXED); }
  u32 rank() const { return number; }
  u32 size() const { return threads; }
  // A meeting costs microseconds, and more if there are more threads than processors.
  bool shares(u32 count) const { return threads > 1 && count >= (contested ? 2 : 64); }

  void touch(const void*) const {}

  template <class Look>
  void scan(Look look) const {
    const u32 stride = contested ? 1 : threads;
    for (u32 turn = contested ? 0 : number; turn < scanners; turn += stride)
      look(contested ? (turn + number * scanners / threads) % scanners : turn, scanners);
  }
};

// Runs a core on `threads` threads until stop(). `scanners` logical threads look for work, as a GPU's block does: dealt
// out, or, contested, all of them to every thread, so that threads race for each slot and the compare-and-swap decides.
template <class Memory>
class ThreadedScheduler {
 public:
  using OnFault = std::function<void(Status, u32)>;

  // `on_fault(status, slot)` is called on the leader's thread if the scheduler stops by itself.
  ThreadedScheduler(Core<Memory>& core, u32 scanners, u32 threads, bool contested, OnFault on_fault)
      : core_(core),
        scanners_(scanners),
        threads_(threads),
        contested_(contested),
        on_fault_(std::move(on_fault)),
        barrier_(threads) {
    for (u32 member = 1; member < threads; ++member) team_.emplace_back([this, member] { follow(member); });
    team_.emplace_back([this] { lead(); });
  }
  ~ThreadedScheduler() { stop(); }

  // Ends the loop between two steps. What the scheduler holds stays held.
  void stop() {
    stopping_.store(true, std::memory_order_release);
    for (std::thread& each : team_) each.join();
    team_.clear();
  }

 private:
  Member member(u32 number) { return {&barrier_, number, threads_, scanners_, contested_}; }

  void lead() {
    Storage& state = core_.state;
    state.over = 0;
    while (!stopping_.load(std::memory_order_acquire) && state.fault == Status::OK) {
      core_.scheduler.lead(member(0));
      // Gives the processor to whoever it waits for, before it looks for more work.
      for (u32 turn = 0; turn < PATIENCE && core_.scheduler.waits(); ++turn) {
        std::this_thread::yield();
        if (state.graph == NO_GRAPH || core_.scheduler.engine.finished()) break;
      }
    }
    if (state.fault != Status::OK) on_fault_(state.fault, state.fault_slot);
    core_.scheduler.dismiss(member(0));
  }

  void follow(u32 number) {
    while (core_.scheduler.follow(member(number))) {
    }
  }

  static constexpr u32 PATIENCE = 64;

  Core<Memory>& core_;
  const u32 scanners_;
  const u32 threads_;
  const bool contested_;
  const OnFault on_fault_;
  Barrier barrier_;
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> team_;
};

}  // namespace blink
