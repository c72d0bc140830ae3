// What outlives a scheduler's instance, in memory that its owner gives.
#pragma once

#include "policy.h"

namespace blink {

constexpr u32 NO_GRAPH = ~0u;

// What the scheduler keeps of a request it holds.
struct Request {
  u64 request_id;
  u64 arrival_ns;
  u32 generation;
  u32 prompt_tokens;
  u32 output_tokens_max;
  u32 stop_token;
  u32 flags;
  u32 tokens;
  u32 recomputing;  // its blocks were taken: what they held is computed again
  u32 slot;

  // Keys and values that the next step needs to find: all but the last token's.
  BLINK_FN u32 context_tokens() const {
    return prompt_tokens + (tokens > 0 ? tokens - 1 : 0);
  }
};

// Arrays of what outlives an instance, and the numbers beside them.
struct Storage {
  Request* requests;  // by slot
  Queue waiting;      // held, not in the batch, in the order of service
  Queue running;      // the batch, in the order of joining
  Queue filling;      // whose prompt the running graph computes
  Queue claimed;      // what this scan has claimed; count is added to by several threads
  u32* ends;          // by slot: how it ends, of a phase that is shared out
  u32 noted;          // how many of them do
  u32 asked;          // how many want to end before the next step
  u32 step_blocks;    // KV blocks that the next decode step lacks
  u32 over;           // the team is dismissed
  u32 graph;          // which one runs, or NO_GRAPH
  u32 phase;
  u32 cursor;
  Status fault;  // what stopped the scheduler for good, or OK
  u32 fault_slot;
  BlockPool blocks;
  GraphCache graphs;
  Limits limits;
  LaunchWindow window;
};

// The running graph, for its gather and scatter kernels.
struct Launch {
  u64 launched;                // how many have been
  u64 finished;                // the same, once the last one has finished
  u64 start_ns[2], end_ns[2];  // of odd and of even launches: the one before is still to be logged
  const u32* slots;
  u32 count;
  u32 graph;
};

// What gather and scatter read: the same for a scheduler on the GPU and for one on the host.
struct View {
  const Request* requests;  // by slot, as are tables and counts
  const u32* tables;
  const u32* counts;
  u32 table_blocks_max;
  u32 scratch_block;
  u8* ring;
  Geometry geometry;
  Launch* launch;
  u32* tokens;  // by slot: what the graph leaves
};

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

BLINK_FN inline u32 table_blocks_of(const Config& from) {
  const u32 blocks = (from.prompt_tokens_max + from.output_tokens_max) / from.block_tokens + 1;
  return blocks < from.blocks_total ? blocks : from.blocks_total;
}

// Gives out zeroed memory; without a base it only counts.
struct Bump {
  u8* base;
  u64 used;

  template <class Item>
  BLINK_FN Item* take(u64 count) {
    Item* found = base ? reinterpret_cast<Item*>(base + used) : nullptr;
    used = (used + count * sizeof(Item) + 15) / 16 * 16;
    return found;
  }
  BLINK_FN u32* words(u64 count) { return take<u32>(count); }
  BLINK_FN u64* longs(u64 count) { return take<u64>(count); }
  BLINK_FN Request* requests(u64 count) { return take<Request>(count); }
};

// `arrays` gives zeroed memory: words(count), longs(count), requests(count). It is asked for the same whatever it
// returns, so that one which only counts says how much is needed.
template <class Arrays>
BLINK_FN Storage storage_of(const Config& from, Arrays& arrays) {
  const u32 context = from.prompt_tokens_max + from.output_tokens_max;
  Storage made{};
  made.requests = arrays.requests(from.slots);
  Queue* queues[] = {&made.waiting, &made.running, &made.filling, &made.claimed};
  for (Queue* each : queues) *each = Queue{arrays.words(from.slots), from.slots, 0, 0};
  made.ends = arrays.words(from.slots);
  made.graph = NO_GRAPH;
  made.phase = phase::SCAN;
  made.limits = {from.batch_max, from.prefill_batch_max, from.prefill_tokens_max};
  made.window.max_launches = from.window;
  BlockPool& blocks = made.blocks;
  blocks.blocks_total = from.blocks_total;
  blocks.block_tokens = from.block_tokens;
  blocks.table_blocks_max = table_blocks_of(from);
  blocks.free = arrays.words(from.blocks_total);
  blocks.tables = arrays.words(u64{from.slots} * blocks.table_blocks_max);
  blocks.counts = arrays.words(from.slots);
  GraphCache& graphs = made.graphs;
  graphs = {from.batch_max, from.graph_prompt_tokens_max, context, nullptr, nullptr};
  graphs.decode_batches = arrays.words(from.batch_max + 1);
  graphs.prompt_buckets = arrays.words(context + 1);
  return made;
}

template <class Arrays>
BLINK_FN HeldSlots held_slots_of(const Config& from, Arrays& arrays) {
  return {arrays.longs(from.slots), arrays.longs(from.slots), arrays.words(from.slots)};
}

// Writes what is not zero at the beginning.
BLINK_FN inline void fill(Storage& made, const Config& from) {
  made.blocks.fill(from.slots);
  made.graphs.fill(from.decode_batches, from.decode_batch_count, from.prompt_tokens, from.prompt_token_count);
}

}  // namespace blink
