// One scheduler with all that it stands on, allocated on a host: what the binding and the stress run share.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "memory.h"
#include "team.h"

namespace blink {

// Between a scheduler and whoever computes: the graph that was launched last, and the tokens that it left.
// `finished` follows `launches`; one thread writes each.
struct Mailbox {
  std::atomic<u64> launches{0};
  std::atomic<u64> finished{0};
  std::atomic<u64> tail_launches{0};
  std::atomic<Status> fault{Status::OK};  // of a scheduler on threads of its own, and the slot's number before it
  u32 fault_slot = 0;
  u32 graph = 0, exec_index = 0, count = 0;
  std::vector<u32> slots;   // the batch, `count` of them
  std::vector<u32> tokens;  // by slot
};

struct MailboxEngine {
  Mailbox* box;

  bool launch(u32 graph, u32 exec_index, const Queue& batch) const {
    box->graph = graph;
    box->exec_index = exec_index;
    box->count = batch.count;
    std::copy_n(batch.items + batch.first, batch.count, box->slots.begin());
    box->launches.fetch_add(1, std::memory_order_release);
    return false;
  }
  bool finished() const {
    return box->finished.load(std::memory_order_acquire) == box->launches.load(std::memory_order_relaxed);
  }
  u32 token(u32 slot) const { return box->tokens[slot]; }
  void tail_launch() const { box->tail_launches.fetch_add(1, std::memory_order_release); }
};

// One zeroed block of whole pages for everything that outlives an instance: a GPU may be shown it.
class Block {
 public:
  explicit Block(const Config& config) {
    Bump counting{nullptr, 0};
    storage_of(config, counting);
    held_slots_of(config, counting);
    size_ = (counting.used + PAGE - 1) / PAGE * PAGE;
    base_ = static_cast<u8*>(std::aligned_alloc(PAGE, size_));
    if (!base_) throw std::bad_alloc();
    std::memset(base_, 0, size_);
    bump = Bump{base_, 0};
  }
  ~Block() { std::free(base_); }
  Block(const Block&) = delete;

  u8* base() const { return base_; }
  u64 size() const { return size_; }

  Bump bump{};

 private:
  static constexpr u64 PAGE = REGION_ALIGNMENT_BYTES;
  u8* base_;
  u64 size_;
};

template <class Memory>
struct Core {
  Core(const Config& config, Memory memory)
      : geometry(geometry_of(config.slots, config.prompt_tokens_max, config.output_tokens_max)),
        block(config),
        state(storage_of(config, block.bump)),
        scheduler{{{memory, geometry, held_slots_of(config, block.bump)}, MailboxEngine{&box}, &state}} {
    fill(state, config);
    box.slots.resize(config.slots);
    box.tokens.resize(config.slots);
  }
  Core(const Core&) = delete;

  Geometry geometry;
  Block block;
  Storage state;
  Mailbox box;
  TeamScheduler<Memory, MailboxEngine> scheduler;
};

}  // namespace blink
