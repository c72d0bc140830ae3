// The ring in C++17: flag words, where things lie, and the scheduler's side of it.
//
// The same rules as blink/ring_protocol/{slot,layout,descriptor,ring}.py, whose names these are; the
// numbers and the table are made from it (generated/protocol.h). It runs on a GPU and on a host: what
// touches memory is a template parameter, and nothing here allocates, throws or waits.
//
// A Memory has, at offsets in bytes from the start of the ring:
//
//   u64  load_relaxed(u64 offset)              a word, soon; good for scanning
//   u64  load_acquire(u64 offset)              a word, and all that was written before it
//   void store_release(u64 offset, u64 word)   publishes a word, and all that was written before it
//   u64  cas(u64 offset, u64 old, u64 word)    swaps if equal, acquires and releases; what was there
//   void read(u64 offset, void* to, u32 bytes)          plain bytes, behind an acquire
//   void write(u64 offset, const void* from, u32 bytes) plain bytes, before a release
//
// Words between CPU, NIC and GPU need *system* scope (docs/memory-model.md).
#pragma once

#include "generated/protocol.h"

namespace blink {

// --- flag words ------------------------------------------------------------------------------------

BLINK_FN constexpr u32 bit(u32 number) {
  return number < 32 ? 1u << number : 0;
}
BLINK_FN constexpr u32 state_of(u64 word) { return static_cast<u32>(word) & STATE_MASK; }
BLINK_FN constexpr u32 outcome_of(u64 word) { return static_cast<u32>(word >> OUTCOME_SHIFT) & OUTCOME_MASK; }
BLINK_FN constexpr u32 generation_of(u64 word) { return static_cast<u32>(word >> GENERATION_SHIFT) & GENERATION_MASK; }
BLINK_FN constexpr u32 tokens_of(u64 word) { return static_cast<u32>(word >> TOKENS_SHIFT); }
BLINK_FN constexpr bool is_flag_word(u64 word) { return state_of(word) < STATES && outcome_of(word) < OUTCOMES; }

BLINK_FN constexpr u64 pack(u32 state, u32 outcome, u32 generation, u64 tokens) {
  return state | u64{outcome} << OUTCOME_SHIFT | u64{generation} << GENERATION_SHIFT | tokens << TOKENS_SHIFT;
}

static_assert(TOKENS_SHIFT + TOKENS_BITS == 8 * WORD_BYTES && sizeof(u64) == WORD_BYTES);
static_assert(OUTCOME_SHIFT == STATE_BITS && GENERATION_SHIFT == OUTCOME_SHIFT + OUTCOME_BITS);
static_assert(SAME_LIFE_MASK == (u64{1} << TOKENS_SHIFT) - 1);

struct Move {
  Status status;
  u64 desired;
};

BLINK_FN constexpr u64 after(u64 word, u32 event, u32 target, u64 tokens, u32 outcome) {
  if (event == event::SUBMIT) return pack(target, outcome::NONE, (generation_of(word) + 1) % GENERATIONS, 0);
  if (event == event::RELEASE) return pack(target, outcome::NONE, generation_of(word), 0);
  return pack(target, outcome, generation_of(word), tokens_of(word) + tokens);
}

// The word that `event`, made by `writer`, makes of `word`. Changes nothing.
BLINK_FN constexpr Move step(u64 word, u32 event, u32 writer, i64 tokens = 0, u32 outcome = outcome::NONE) {
  if (!is_flag_word(word)) return {Status::NOT_A_FLAG_WORD, 0};
  const u32 target = event < EVENTS ? target_of(state_of(word), event) : NO_STATE;
  if (target == NO_STATE) return {Status::NO_TRANSITION, 0};
  if (writer_of(event) != writer) return {Status::WRONG_WRITER, 0};
  const bool brings_tokens = TOKEN_EVENTS & bit(event);
  if ((tokens >= 1) != brings_tokens || tokens < 0) return {Status::WRONG_TOKENS, 0};
  if (!(outcomes_of(event) & bit(outcome))) return {Status::WRONG_OUTCOME, 0};
  if (tokens > i64{TOKENS_MAX} - tokens_of(word)) return {Status::TOKENS_OVERFLOW, 0};
  return {Status::OK, after(word, event, target, static_cast<u64>(tokens), outcome)};
}

// What an event that changes nothing but the state adds to any word of `before`.
BLINK_FN constexpr u64 added_by(u32 event, u32 before) {
  const u64 word = pack(before, outcome::NONE, 0, 1);
  return step(word, event, writer::SCHEDULER).desired - word;
}

// The states in which this side holds a slot; a pending one belongs to it, but to nobody yet.
constexpr u32 HELD_STATES = SCHEDULER_STATES & ~bit(state::PREFILL_PENDING);

// --- where things lie ------------------------------------------------------------------------------

struct Geometry {
  u32 slots;
  u32 prompt_tokens_max;
  u32 output_tokens_max;
  u64 descriptors_offset;
  u64 prompts_offset;
  u64 outputs_offset;
  u64 total_bytes;

  BLINK_FN u64 flag(u32 slot) const { return HEADER_BYTES + u64{slot} * SLOT_METADATA_BYTES; }
  BLINK_FN u64 request_id(u32 slot) const { return flag(slot) + WORD_BYTES; }
  BLINK_FN u64 descriptor(u32 slot) const { return descriptors_offset + u64{slot} * DESCRIPTOR_BYTES; }
  BLINK_FN u64 cancel(u32 slot) const { return descriptor(slot); }
  BLINK_FN u64 prompt(u32 slot) const { return prompts_offset + u64{slot} * prompt_tokens_max * TOKEN_BYTES; }
  BLINK_FN u64 output(u32 slot, u32 token) const {
    return outputs_offset + (u64{slot} * output_tokens_max + token) * TOKEN_BYTES;
  }
};

BLINK_FN constexpr u64 page(u64 offset) {
  return (offset + REGION_ALIGNMENT_BYTES - 1) / REGION_ALIGNMENT_BYTES * REGION_ALIGNMENT_BYTES;
}

// The sizes must be in range: Python's Geometry checks them.
BLINK_FN constexpr Geometry geometry_of(u32 slots, u32 prompt_tokens_max, u32 output_tokens_max) {
  Geometry made{slots, prompt_tokens_max, output_tokens_max, 0, 0, 0, 0};
  made.descriptors_offset = page(HEADER_BYTES + u64{slots} * SLOT_METADATA_BYTES);
  made.prompts_offset = page(made.descriptors_offset + u64{slots} * DESCRIPTOR_BYTES);
  made.outputs_offset = page(made.prompts_offset + u64{slots} * prompt_tokens_max * TOKEN_BYTES);
  made.total_bytes = page(made.outputs_offset + u64{slots} * output_tokens_max * TOKEN_BYTES);
  return made;
}

static_assert(SLOTS_MAX * SLOT_METADATA_BYTES == METADATA_BYTES && SLOT_METADATA_BYTES == 2 * WORD_BYTES);
static_assert(SLOTS_MAX % SCHEDULER_THREADS == 0 && SCHEDULER_GENERATION_OFFSET + WORD_BYTES <= HEADER_BYTES);

struct Identity {
  u64 magic;
  u32 version, header_bytes, slots, slot_metadata_bytes, descriptor_bytes, prompt_tokens_max, output_tokens_max;
  u32 unused;
  u64 control_bytes, total_bytes;
};

static_assert(BLINK_LIES_AT(Identity, slots, IDENTITY_SLOTS_OFFSET));
static_assert(BLINK_LIES_AT(Identity, output_tokens_max, IDENTITY_OUTPUT_TOKENS_MAX_OFFSET));
static_assert(BLINK_LIES_AT(Identity, control_bytes, IDENTITY_CONTROL_BYTES_OFFSET));
static_assert(BLINK_LIES_AT(Identity, total_bytes, IDENTITY_TOTAL_BYTES_OFFSET));
static_assert(sizeof(Identity) <= HEARTBEAT_OFFSET);

BLINK_FN constexpr Identity identity_of(const Geometry& ring) {
  return {MAGIC,
          LAYOUT_VERSION,
          HEADER_BYTES,
          ring.slots,
          SLOT_METADATA_BYTES,
          DESCRIPTOR_BYTES,
          ring.prompt_tokens_max,
          ring.output_tokens_max,
          0,
          ring.prompts_offset,
          ring.total_bytes};
}

// A request as the front end wrote it: 64 bytes, of which the first word is written on its own.
struct Descriptor {
  u64 cancel;
  u64 arrival_ns;
  u64 seed;
  u32 prompt_tokens;
  u32 output_tokens_max;
  float temperature;
  float top_p;
  u32 top_k;
  u32 stop_token;
  u32 flags;
  u32 generation;
  u64 reserved;
};

static_assert(sizeof(Descriptor) == DESCRIPTOR_BYTES);
static_assert(BLINK_LIES_AT(Descriptor, arrival_ns, DESCRIPTOR_ARRIVAL_NS_OFFSET));
static_assert(BLINK_LIES_AT(Descriptor, seed, DESCRIPTOR_SEED_OFFSET));
static_assert(BLINK_LIES_AT(Descriptor, prompt_tokens, DESCRIPTOR_PROMPT_TOKENS_OFFSET));
static_assert(BLINK_LIES_AT(Descriptor, output_tokens_max, DESCRIPTOR_OUTPUT_TOKENS_MAX_OFFSET));
static_assert(BLINK_LIES_AT(Descriptor, temperature, DESCRIPTOR_TEMPERATURE_OFFSET));
static_assert(BLINK_LIES_AT(Descriptor, top_p, DESCRIPTOR_TOP_P_OFFSET));
static_assert(BLINK_LIES_AT(Descriptor, top_k, DESCRIPTOR_TOP_K_OFFSET));
static_assert(BLINK_LIES_AT(Descriptor, stop_token, DESCRIPTOR_STOP_TOKEN_OFFSET));
static_assert(BLINK_LIES_AT(Descriptor, flags, DESCRIPTOR_FLAGS_OFFSET));
static_assert(BLINK_LIES_AT(Descriptor, generation, DESCRIPTOR_GENERATION_OFFSET));

struct Asked {
  Status status;
  u32 outcome;  // NONE: nothing is asked
};

// What a cancel word asks of `generation`.
BLINK_FN constexpr Asked outcome_asked(u64 word, u32 generation) {
  if (word == 0 || word >> CANCEL_GENERATION_SHIFT != generation) return {Status::OK, outcome::NONE};
  const u32 asked = static_cast<u32>(word) & OUTCOME_MASK;
  if (!(outcomes_of(event::ABORT) & bit(asked))) return {Status::UNKNOWN_ABORT, outcome::NONE};
  return {Status::OK, asked};
}

// A request that the scheduler holds.
struct Claimed {
  u32 slot;
  u64 request_id;
  Descriptor descriptor;
};

// --- the scheduler's side --------------------------------------------------------------------------

// What one scheduler instance knows of its slots, `slots` of each, in memory that it alone writes. Since
// nobody else writes what it holds, it never reads a flag word again: every move is a single store.
struct HeldSlots {
  u64* words;     // 0: not held
  u64* ceilings;  // the largest word that TOKENS may lead to, 0 unless it decodes
  u32* limits;    // output_tokens_max
};

// See SchedulerRing in ring.py. Different slots may be worked on by different threads at once.
template <class Memory>
struct SchedulerRing {
  Memory memory;
  Geometry geometry;
  HeldSlots held;

  BLINK_FN Status check_header() {
    Identity found{};
    memory.read(0, &found, sizeof found);
    const Identity wanted = identity_of(geometry);
    const bool same =
        found.magic == wanted.magic && found.version == wanted.version && found.header_bytes == wanted.header_bytes &&
        found.slots == wanted.slots && found.slot_metadata_bytes == wanted.slot_metadata_bytes &&
        found.descriptor_bytes == wanted.descriptor_bytes && found.prompt_tokens_max == wanted.prompt_tokens_max &&
        found.output_tokens_max == wanted.output_tokens_max && found.control_bytes == wanted.control_bytes &&
        found.total_bytes == wanted.total_bytes;
    return same ? Status::OK : Status::ANOTHER_RING;
  }

  // A fresh instance holds nothing.
  BLINK_FN void forget(u32 slot) {
    held.words[slot] = held.ceilings[slot] = held.limits[slot] = 0;
  }

  // A relaxed look at a slot: its word, if it was pending, else 0 (which is no pending word).
  BLINK_FN u64 scan(u32 slot) {
    const u64 word = memory.load_relaxed(geometry.flag(slot));
    return state_of(word) == state::PREFILL_PENDING ? word : 0;
  }

  // Takes a slot that was `seen` pending; LOST if it is not any more.
  BLINK_FN Status claim(u32 slot, u64 seen, Claimed* claimed) {
    if (state_of(seen) != state::PREFILL_PENDING) return Status::LOST;
    const Move move = step(seen, event::CLAIM, writer::SCHEDULER);
    if (move.status != Status::OK) return move.status;
    if (memory.cas(geometry.flag(slot), seen, move.desired) != seen) return Status::LOST;
    return take(slot, move.desired, claimed);
  }

  // Counts an execution in the header. Called once, before adopt() of every slot.
  BLINK_FN void begin_execution() {
    const u64 generation = memory.load_acquire(SCHEDULER_GENERATION_OFFSET);
    memory.store_release(SCHEDULER_GENERATION_OFFSET, generation + 1);
  }

  // Takes over a slot in progress; LOST if it is not in progress.
  BLINK_FN Status adopt(u32 slot, Claimed* claimed) {
    const u64 word = memory.load_acquire(geometry.flag(slot));
    if (!is_flag_word(word)) return Status::NOT_A_FLAG_WORD;
    return HELD_STATES & bit(state_of(word)) ? take(slot, word, claimed) : Status::LOST;
  }

  BLINK_FN Status first_token(u32 slot) { return move(slot, event::FIRST_TOKEN, 1, outcome::NONE); }

  // The hottest move: one addition, one comparison, one store.
  BLINK_FN Status advance(u32 slot, i64 count) {
    const u64 word = held.words[slot] + (static_cast<u64>(count) << TOKENS_SHIFT);
    const bool counts = count >= 1 && count <= i64{TOKENS_MAX} - tokens_of(held.words[slot]);
    if (!counts || word > held.ceilings[slot]) return cannot_advance(slot, count);
    publish(slot, word);
    return Status::OK;
  }

  BLINK_FN Status pause(u32 slot) {
    const u64 word = held.words[slot];
    if (state_of(word) != state::DECODE_PROCESSING) return cannot(slot, event::PAUSE);
    publish(slot, word + added_by(event::PAUSE, state::DECODE_PROCESSING));
    held.ceilings[slot] = 0;
    return Status::OK;
  }

  BLINK_FN Status resume(u32 slot) {
    const u64 word = held.words[slot];
    if (state_of(word) != state::DECODE_PAUSED) return cannot(slot, event::RESUME);
    hold(slot, word + added_by(event::RESUME, state::DECODE_PAUSED), held.limits[slot]);
    memory.store_release(geometry.flag(slot), held.words[slot]);
    return Status::OK;
  }

  BLINK_FN Status complete(u32 slot, u32 outcome) {
    const bool by_itself = outcomes_of(event::COMPLETE) & bit(outcome);
    const Status status = move(slot, by_itself ? event::COMPLETE : event::ABORT, 0, outcome);
    if (status == Status::OK) held.words[slot] = 0;
    return status;
  }

  BLINK_FN Asked cancelled(u32 slot) {
    if (held.words[slot] == 0) return {Status::NOT_HELD, outcome::NONE};
    // The word says all that there is to know: nothing is read behind it.
    return outcome_asked(memory.load_relaxed(geometry.cancel(slot)), generation_of(held.words[slot]));
  }

  BLINK_FN void read_prompt(u32 slot, u32 tokens, u32* to) {
    memory.read(geometry.prompt(slot), to, tokens * TOKEN_BYTES);
  }

  // Publishes nothing: the tokens' bytes come before the word that counts them.
  BLINK_FN Status write_tokens(u32 slot, u32 first, const u32* tokens, u32 count) {
    const u64 word = held.words[slot];
    if (word == 0) return Status::NOT_HELD;
    if (first < tokens_of(word)) return Status::ALREADY_PUBLISHED;
    if (u64{first} + count > held.limits[slot]) return Status::BEYOND_LIMIT;
    memory.write(geometry.output(slot, first), tokens, count * TOKEN_BYTES);
    return Status::OK;
  }

  BLINK_FN void beat() { memory.store_release(HEARTBEAT_OFFSET, memory.load_relaxed(HEARTBEAT_OFFSET) + 1); }

 private:
  BLINK_FN void publish(u32 slot, u64 word) {
    memory.store_release(geometry.flag(slot), word);
    held.words[slot] = word;
  }

  BLINK_FN Status move(u32 slot, u32 event, i64 tokens, u32 outcome) {
    if (held.words[slot] == 0) return Status::NOT_HELD;
    const Move made = step(held.words[slot], event, writer::SCHEDULER, tokens, outcome);
    if (made.status != Status::OK) return made.status;
    memory.store_release(geometry.flag(slot), made.desired);
    hold(slot, made.desired, held.limits[slot]);
    return Status::OK;
  }

  BLINK_FN void hold(u32 slot, u64 word, u32 limit) {
    held.words[slot] = word;
    held.limits[slot] = limit;
    const bool decodes = state_of(word) == state::DECODE_PROCESSING;
    held.ceilings[slot] = decodes ? (word & SAME_LIFE_MASK) | u64{limit} << TOKENS_SHIFT : 0;
  }

  BLINK_FN Status take(u32 slot, u64 word, Claimed* claimed) {
    claimed->slot = slot;
    // All but the cancel word, which the front end may be writing.
    memory.read(geometry.descriptor(slot) + WORD_BYTES, &claimed->descriptor.arrival_ns, DESCRIPTOR_BYTES - WORD_BYTES);
    claimed->descriptor.cancel = 0;
    if (claimed->descriptor.generation != generation_of(word)) return Status::WRONG_GENERATION;
    if (!has_room(claimed->descriptor)) return Status::NO_ROOM;
    claimed->request_id = memory.load_relaxed(geometry.request_id(slot));
    hold(slot, word, claimed->descriptor.output_tokens_max);
    return Status::OK;
  }

  // A request that is larger than its slot would be written over its neighbours.
  BLINK_FN bool has_room(const Descriptor& wanted) const {
    return 1 <= wanted.prompt_tokens && wanted.prompt_tokens <= geometry.prompt_tokens_max &&
           1 <= wanted.output_tokens_max && wanted.output_tokens_max <= geometry.output_tokens_max;
  }

  // Why the table does not allow this event.
  BLINK_FN Status cannot(u32 slot, u32 event) {
    if (held.words[slot] == 0) return Status::NOT_HELD;
    return step(held.words[slot], event, writer::SCHEDULER).status;
  }

  BLINK_FN Status cannot_advance(u32 slot, i64 count) {
    if (held.words[slot] == 0) return Status::NOT_HELD;
    const Status status = step(held.words[slot], event::TOKENS, writer::SCHEDULER, count).status;
    return status == Status::OK ? Status::BEYOND_LIMIT : status;
  }
};

}  // namespace blink
