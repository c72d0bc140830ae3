// What the scheduler does next, in C++17: the decision, KV blocks, graph shapes, the launch window.
//
// The same rules as blink/model/policy/{batching,blocks,graphs}.py and ring_protocol/window.py, to equality of
// every decision (tests/differential/). Everything lies in arrays that the caller owns.
#pragma once

#include "ring.h"

namespace blink {

// --- numbers in order, as a queue ------------------------------------------------------------------

// Slot numbers, in an array of `capacity`. Taking from the front and putting back there are cheap.
struct Queue {
  u32* items;
  u32 capacity;
  u32 first;
  u32 count;

  BLINK_FN u32 operator[](u32 place) const { return items[first + place]; }

  BLINK_FN void push_back(u32 item) {
    if (first + count == capacity) move_to(0);
    items[first + count] = item;
    ++count;
  }

  BLINK_FN void push_front(u32 item) {
    if (first == 0) move_to(capacity - count);
    items[--first] = item;
    ++count;
  }

  BLINK_FN u32 pop_back() { return items[first + --count]; }

  BLINK_FN void drop_front(u32 dropped) {
    first += dropped;
    count -= dropped;
  }

  BLINK_FN void remove(u32 place) {
    for (u32 at = place; at + 1 < count; ++at) items[first + at] = items[first + at + 1];
    --count;
  }

  BLINK_FN void clear() { first = count = 0; }

 private:
  BLINK_FN void move_to(u32 begin) {
    if (begin <= first) {
      for (u32 at = 0; at < count; ++at) items[begin + at] = items[first + at];
    } else {
      for (u32 at = count; at-- > 0;) items[begin + at] = items[first + at];
    }
    first = begin;
  }
};

// --- KV blocks -------------------------------------------------------------------------------------

// See BlockPool in blocks.py. `tables` has `table_blocks_max` places a slot, oldest token first: what a graph
// reads. Free blocks are a stack.
struct BlockPool {
  u32 blocks_total;
  u32 block_tokens;
  u32 table_blocks_max;
  u32 blocks_free;
  u32* free;    // blocks_total
  u32* tables;  // slots x table_blocks_max
  u32* counts;  // slots

  BLINK_FN void fill(u32 slots) {
    blocks_free = blocks_total;
    for (u32 at = 0; at < blocks_total; ++at) free[at] = blocks_total - 1 - at;
    for (u32 slot = 0; slot < slots; ++slot) counts[slot] = 0;
  }

  BLINK_FN u32 blocks_for(u32 tokens) const { return tokens / block_tokens + (tokens % block_tokens != 0); }

  BLINK_FN u32 blocks_short(u32 slot, u32 tokens) const {
    const u32 wanted = blocks_for(tokens);
    return wanted > counts[slot] ? wanted - counts[slot] : 0;
  }

  BLINK_FN bool holds_any(u32 slot) const { return counts[slot] != 0; }

  // There must be enough free blocks.
  BLINK_FN void extend(u32 slot, u32 tokens) {
    u32* table = tables + u64{slot} * table_blocks_max;
    for (u32 lacking = blocks_short(slot, tokens); lacking > 0; --lacking) table[counts[slot]++] = free[--blocks_free];
  }

  BLINK_FN void release(u32 slot) {
    const u32* table = tables + u64{slot} * table_blocks_max;
    while (counts[slot] > 0) free[blocks_free++] = table[--counts[slot]];
  }
};

// --- captured graphs -------------------------------------------------------------------------------

// The smallest of `buckets` (ascending) that holds `size`, but at most `maximum`; `maximum` if none does.
BLINK_FN inline u32 bucket_of(const u32* buckets, u32 count, u32 size, u32 maximum) {
  u32 low = 0;
  for (u32 high = count; low < high;) {
    const u32 middle = (low + high) / 2;
    if (buckets[middle] < size) low = middle + 1;
    else high = middle;
  }
  return low < count && buckets[low] < maximum ? buckets[low] : maximum;
}

// See GraphCache in graphs.py. Both tables are filled once; a look-up is one load.
struct GraphCache {
  u32 decode_batch_max;
  u32 prompt_tokens_max;
  u32 context_tokens_max;
  u32* decode_batches;  // by sequences, decode_batch_max + 1
  u32* prompt_buckets;  // by tokens, context_tokens_max + 1

  BLINK_FN void fill(const u32* batches, u32 batch_count, const u32* prompts, u32 prompt_count) {
    for (u32 batch = 0; batch <= decode_batch_max; ++batch)
      decode_batches[batch] = bucket_of(batches, batch_count, batch, decode_batch_max);
    for (u32 tokens = 0; tokens <= context_tokens_max; ++tokens) {
      const u32 maximum = tokens > prompt_tokens_max ? tokens : prompt_tokens_max;
      prompt_buckets[tokens] = bucket_of(prompts, prompt_count, tokens, maximum);
    }
  }

  BLINK_FN u32 decode_batch(u32 batch) const { return decode_batches[batch]; }
  BLINK_FN u32 prompt_bucket(u32 tokens) const { return prompt_buckets[tokens]; }
};

// --- the launch window -----------------------------------------------------------------------------

// See LaunchWindow in window.py: launches of one execution in total, and whose turn it is among a graph's execs.
struct LaunchWindow {
  u32 max_launches;
  u32 launches;
  u64 launches_total;
  u64 relaunches;
  u32 turns[GRAPHS];

  BLINK_FN u32 headroom() const { return max_launches - launches; }

  BLINK_FN Status launch() {
    if (launches >= max_launches) return Status::WINDOW_EXHAUSTED;
    ++launches;
    ++launches_total;
    return Status::OK;
  }

  BLINK_FN void relaunch() {
    launches = 0;
    ++relaunches;
  }

  BLINK_FN u32 alternate(u32 graph) {
    const u32 turn = turns[graph];
    turns[graph] = (turn + 1) % GRAPH_EXECS;
    return turn;
  }
};

// --- the decision ----------------------------------------------------------------------------------

struct Limits {
  u32 batch_max;
  u32 prefill_batch_max;
  u32 prefill_tokens_max;
};

struct Decision {
  u32 action;
  u32 prefill_count;
};

// How many waiting prompts, from the front, share one prefill graph without breaking a limit.
// `tokens_of(place)`: the length of a waiting prompt. `blocks_free` is negative if a decode step lacks blocks.
template <class TokensOf>
BLINK_FN u32 admissible(const TokensOf& tokens_of, u32 waiting, u32 running, i64 blocks_free, const BlockPool& kv,
                      const GraphCache& graphs, const Limits& limits) {
  const u32 places = limits.batch_max > running ? limits.batch_max - running : 0;
  const u32 room = places < limits.prefill_batch_max ? places : limits.prefill_batch_max;
  u32 bucket = 0;
  i64 blocks = 0;
  for (u32 count = 0; count < waiting; ++count) {
    if (count >= room) return count;
    const u32 tokens = tokens_of(count);
    if (count == 0) bucket = graphs.prompt_bucket(tokens);
    blocks += kv.blocks_for(tokens + 1);
    const bool shares = graphs.prompt_bucket(tokens) == bucket;
    const bool fits = count == 0 || (u64{count} + 1) * bucket <= limits.prefill_tokens_max;
    if (!(shares && fits && blocks <= blocks_free)) return count;
  }
  return waiting;
}

// See decide() in batching.py.
template <class TokensOf>
BLINK_FN Decision decide(const TokensOf& tokens_of, u32 waiting, u32 running, u32 headroom, u64 blocks_reserved,
                       const BlockPool& kv, const GraphCache& graphs, const Limits& limits) {
  const i64 blocks_free = i64{kv.blocks_free} - static_cast<i64>(blocks_reserved);
  const u32 count = admissible(tokens_of, waiting, running, blocks_free, kv, graphs, limits);
  const u32 launches_needed = running ? 2 : 1;
  if (count && headroom >= launches_needed) return {action::PREFILL, count};
  if ((count || running) && headroom == 0) return {action::RELAUNCH, 0};
  return {running ? action::DECODE : action::IDLE, 0};
}

}  // namespace blink
