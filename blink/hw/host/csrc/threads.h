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

// How threads share a count while they scan.
struct Together {
  u32 add(u32* count, u32 more) const { return __atomic_fetch_add(count, more, __ATOMIC_RELAXED); }
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
  void lead() {
    Storage& state = core_.state;
    while (!stopping_.load(std::memory_order_acquire) && state.fault == Status::OK) {
      if (state.phase != phase::SCAN) {
        core_.scheduler.step();
        if (state.phase == phase::WAIT) std::this_thread::yield();
        continue;
      }
      if (core_.scheduler.idle()) std::this_thread::yield();
      barrier_.wait();
      look(0);
      barrier_.wait();
      if (state.fault == Status::OK) core_.scheduler.end_scan();
    }
    if (state.fault != Status::OK) on_fault_(state.fault, state.fault_slot);
    over_ = true;
    barrier_.wait();
  }

  void follow(u32 member) {
    for (;;) {
      barrier_.wait();
      if (over_) return;
      look(member);
      barrier_.wait();
    }
  }

  void look(u32 member) {
    const u32 stride = contested_ ? 1 : threads_;
    for (u32 turn = contested_ ? 0 : member; turn < scanners_; turn += stride) {
      const u32 scanner = contested_ ? (turn + member * scanners_ / threads_) % scanners_ : turn;
      core_.scheduler.look(scanner, scanners_, Together{});
    }
  }

  Core<Memory>& core_;
  const u32 scanners_;
  const u32 threads_;
  const bool contested_;
  const OnFault on_fault_;
  Barrier barrier_;
  bool over_ = false;  // written before a barrier, read behind it
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> team_;
};

}  // namespace blink
