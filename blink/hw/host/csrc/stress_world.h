// What the stress run is made of besides the core: what is true of a request, a log, a memory that can be sick, an
// engine.
#pragma once

#include <cstdarg>
#include <cstdio>

#include "threads.h"

namespace blink {

// --- what is true, from a request's id alone --------------------------------------------------------

inline u64 mixed(u64 number) {  // splitmix64's finalizer: Steele, Lea, Flood 2014
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9ull;
  number = (number ^ (number >> 27)) * 0x94d049bb133111ebull;
  return number ^ (number >> 31);
}

// Never 0, never NO_TOKEN, and rarely what an earlier request left there.
inline u32 token_of(u64 request, u32 index) { return static_cast<u32>(mixed(request * 4096 + index) >> 33) | 1; }
inline u32 prompt_token_of(u64 request, u32 index) { return token_of(~request, index); }

// --- shared by all processes -----------------------------------------------------------------------

// A flag word that was written, by whom. Taken before the word is stored, a number is in the order of the words: who
// sees the word takes a later one.
struct Logged {
  u32 slot;
  u32 writer;
  u64 word;  // 0: a compare-and-swap that lost
};

struct Control {
  std::atomic<u32> violations{0};
  std::atomic<u32> stop{0};
  std::atomic<u64> ended{0};
  std::atomic<u64> tokens{0};
  std::atomic<u64> cancelled{0};
  std::atomic<u64> cas_lost{0};
  std::atomic<u64> logged{0};
  char message[256] = {};  // of the first violation

  // Notes that an invariant does not hold, and ends the run. False, for `return`.
  bool violated(const char* form, ...) __attribute__((format(printf, 2, 3))) {
    if (violations.fetch_add(1) == 0) {
      va_list arguments;
      va_start(arguments, form);
      std::vsnprintf(message, sizeof message, form, arguments);
      va_end(arguments);
    }
    stop.store(1, std::memory_order_release);
    return false;
  }
};

// --- a memory that counts, logs, and may be sick -----------------------------------------------------

enum class Plant { NONE, CAS_ALWAYS_WINS, RELAXED_STORE, LOST_OUTPUT, FLAG_BEFORE_PAYLOAD };

struct StressMemory : HostMemory {
  Control* control;
  Logged* log;  // null: none is kept
  u64 log_capacity;
  u64 descriptors_offset;
  u64 outputs_offset;
  Plant plant;
  u32 writer;

  void store_release(u64 offset, u64 value) const {
    note(offset, value);
    if (plant == Plant::RELAXED_STORE) return store_relaxed(offset, value);
    HostMemory::store_release(offset, value);
  }

  u64 cas(u64 offset, u64 expected, u64 desired) const {
    Logged* noted = note(offset, desired);
    if (plant == Plant::CAS_ALWAYS_WINS) {
      std::this_thread::yield();  // for another thread to look meanwhile
      return HostMemory::store_release(offset, desired), expected;
    }
    const u64 found = HostMemory::cas(offset, expected, desired);
    if (found != expected) {
      control->cas_lost.fetch_add(1, std::memory_order_relaxed);
      if (noted) noted->word = 0;
    }
    return found;
  }

  void write(u64 offset, const void* from, u32 bytes) const {
    const bool lost = plant == Plant::LOST_OUTPUT && offset >= outputs_offset && offset % 64 == 0;
    if (!lost) HostMemory::write(offset, from, bytes);
  }

 private:
  Logged* note(u64 offset, u64 word) const {
    const bool is_flag = HEADER_BYTES <= offset && offset < descriptors_offset;
    if (!log || !is_flag) return nullptr;
    const u64 place = control->logged.fetch_add(1, std::memory_order_acq_rel);
    if (place >= log_capacity) return nullptr;
    log[place] = {static_cast<u32>((offset - HEADER_BYTES) / SLOT_METADATA_BYTES), writer, word};
    return log + place;
  }
};

// --- the engine ------------------------------------------------------------------------------------

// Stands in for the GPU's graphs: reads prompts and block tables as they would, leaves a token a sequence, and checks
// what a GPU would not survive.
class StressEngine {
 public:
  StressEngine(Core<StressMemory>& core, const StressMemory& memory, u32 window)
      : core_(core), memory_(memory), window_(window), owner_(core.state.blocks.blocks_total, ~0u) {}

  // Runs graphs until the run ends.
  void run() {
    for (u64 done = 0; !memory_.control->stop.load(std::memory_order_acquire);) {
      if (core_.box.launches.load(std::memory_order_acquire) == done) {
        std::this_thread::yield();
        continue;
      }
      if (!check_launch() || !compute()) return;
      core_.box.finished.store(++done, std::memory_order_release);
    }
  }

 private:
  bool check_launch() {
    const Mailbox& box = core_.box;
    const u64 tails = box.tail_launches.load(std::memory_order_acquire);
    if (tails != tails_) launched_ = 0, last_exec_[0] = last_exec_[1] = GRAPH_EXECS;
    tails_ = tails;
    if (++launched_ > window_) return memory_.control->violated("WINDOW: launch %u of one execution", launched_);
    if (box.exec_index == last_exec_[box.graph]) return memory_.control->violated("WINDOW: an exec has not retired");
    last_exec_[box.graph] = box.exec_index;
    return true;
  }

  bool compute() {
    for (u32 place = 0; place < core_.box.count; ++place) {
      const u32 slot = core_.box.slots[place];
      const Request& each = core_.state.requests[slot];
      if (core_.box.graph == graph::PREFILL_GRAPH && !check_prompt(each)) return false;
      if (!check_table(each)) return false;
      core_.box.tokens[slot] = token_of(each.request_id, each.tokens);
    }
    return true;
  }

  bool check_prompt(const Request& each) {
    std::vector<u32> prompt(each.prompt_tokens);
    memory_.read(core_.geometry.prompt(each.slot), prompt.data(), each.prompt_tokens * TOKEN_BYTES);
    for (u32 index = 0; index < each.prompt_tokens; ++index)
      if (prompt[index] != prompt_token_of(each.request_id, index))
        return memory_.control->violated("CAUSAL: slot %u: not the prompt of request %llx", each.slot, each.request_id);
    return true;
  }

  // Every block of the table is this slot's, or was another's that has none of it any more.
  bool check_table(const Request& each) {
    const BlockPool& blocks = core_.state.blocks;
    const u32* table = blocks.tables + u64{each.slot} * blocks.table_blocks_max;
    const u32 count = blocks.counts[each.slot];
    const u32 wanted = each.context_tokens() + (core_.box.graph == graph::DECODE_GRAPH);
    if (count != blocks.blocks_for(wanted))
      return memory_.control->violated("KV: slot %u has %u blocks for %u tokens", each.slot, count, wanted);
    for (u32 at = 0; at < count; ++at) {
      const u32 owner = owner_[table[at]];
      if (owner != ~0u && owner != each.slot && has(owner, table[at]))
        return memory_.control->violated("KV: slots %u and %u share block %u", owner, each.slot, table[at]);
      owner_[table[at]] = each.slot;
    }
    return true;
  }

  bool has(u32 slot, u32 block) const {
    const BlockPool& blocks = core_.state.blocks;
    const u32* table = blocks.tables + u64{slot} * blocks.table_blocks_max;
    return std::find(table, table + blocks.counts[slot], block) != table + blocks.counts[slot];
  }

  Core<StressMemory>& core_;
  const StressMemory memory_;
  const u32 window_;
  std::vector<u32> owner_;  // by block: the slot that a graph last saw it with
  u64 tails_ = 0;
  u32 launched_ = 0;
  u32 last_exec_[GRAPHS] = {GRAPH_EXECS, GRAPH_EXECS};
};

}  // namespace blink
