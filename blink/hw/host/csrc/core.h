// One scheduler with all that it stands on, allocated on a host: what the binding and the stress run share.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
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

// Memory for everything, zeroed, in arrays that live as long as this.
class Arrays {
 public:
  u32* words(u64 count) { return keep(u32s_, count); }
  u64* longs(u64 count) { return keep(u64s_, count); }
  Request* requests(u64 count) { return keep(requests_, count); }

 private:
  template <class Item>
  static Item* keep(std::vector<std::unique_ptr<Item[]>>& kept, u64 count) {
    kept.push_back(std::make_unique<Item[]>(count));
    return kept.back().get();
  }

  std::vector<std::unique_ptr<u32[]>> u32s_;
  std::vector<std::unique_ptr<u64[]>> u64s_;
  std::vector<std::unique_ptr<Request[]>> requests_;
};

template <class Memory>
struct Core {
  Core(const Config& config, Memory memory)
      : geometry(geometry_of(config.slots, config.prompt_tokens_max, config.output_tokens_max)),
        state(storage_of(config, arrays)),
        scheduler{{{memory, geometry, held_slots_of(config, arrays)}, MailboxEngine{&box}, &state}} {
    fill(state, config);
    box.slots.resize(config.slots);
    box.tokens.resize(config.slots);
  }
  Core(const Core&) = delete;

  Geometry geometry;
  Arrays arrays;
  Storage state;
  Mailbox box;
  TeamScheduler<Memory, MailboxEngine> scheduler;
};

}  // namespace blink
