// One scheduler with all that it stands on, allocated on a host: what the binding and the stress run share.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "memory.h"
#include "scheduler.h"

namespace blink {

// All that a scheduler is made of. The lists of captured shapes are ascending.
struct Config {
  u32 slots, prompt_tokens_max, output_tokens_max;
  u32 blocks_total, block_tokens;
  u32 batch_max, prefill_batch_max, prefill_tokens_max;
  u32 window;
  u32 graph_prompt_tokens_max;
  u32 decode_batch_count, prompt_token_count;
  const u32* decode_batches;
  const u32* prompt_tokens;
};

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

  void launch(u32 graph, u32 exec_index, const Queue& batch) const {
    box->graph = graph;
    box->exec_index = exec_index;
    box->count = batch.count;
    std::copy_n(batch.items + batch.first, batch.count, box->slots.begin());
    box->launches.fetch_add(1, std::memory_order_release);
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

inline Storage storage_of(const Config& from, Arrays& arrays) {
  const u32 context = from.prompt_tokens_max + from.output_tokens_max;
  const auto queue = [&] { return Queue{arrays.words(from.slots), from.slots, 0, 0}; };
  Storage made{};
  made.requests = arrays.requests(from.slots);
  for (Queue* each : {&made.waiting, &made.running, &made.filling, &made.claimed}) *each = queue();
  made.graph = NO_GRAPH;
  made.phase = phase::SCAN;
  made.limits = {from.batch_max, from.prefill_batch_max, from.prefill_tokens_max};
  made.window.max_launches = from.window;
  BlockPool& blocks = made.blocks;
  blocks.blocks_total = from.blocks_total;
  blocks.block_tokens = from.block_tokens;
  blocks.table_blocks_max = std::min(from.blocks_total, context / from.block_tokens + 1);
  blocks.free = arrays.words(from.blocks_total);
  blocks.tables = arrays.words(u64{from.slots} * blocks.table_blocks_max);
  blocks.counts = arrays.words(from.slots);
  blocks.fill(from.slots);
  GraphCache& graphs = made.graphs;
  graphs = {from.batch_max, from.graph_prompt_tokens_max, context, nullptr, nullptr};
  graphs.decode_batches = arrays.words(from.batch_max + 1);
  graphs.prompt_buckets = arrays.words(context + 1);
  graphs.fill(from.decode_batches, from.decode_batch_count, from.prompt_tokens, from.prompt_token_count);
  return made;
}

template <class Memory>
struct Core {
  Core(const Config& config, Memory memory)
      : geometry(geometry_of(config.slots, config.prompt_tokens_max, config.output_tokens_max)),
        state(storage_of(config, arrays)),
        scheduler{
            {memory, geometry, {arrays.longs(config.slots), arrays.longs(config.slots), arrays.words(config.slots)}},
            MailboxEngine{&box},
            &state} {
    box.slots.resize(config.slots);
    box.tokens.resize(config.slots);
  }
  Core(const Core&) = delete;

  Geometry geometry;
  Arrays arrays;
  Storage state;
  Mailbox box;
  Scheduler<Memory, MailboxEngine> scheduler;
};

}  // namespace blink
