// Made by blink/hw/kernel/protocol_h.py from blink/ring_protocol. Do not edit: `make gen`.
#pragma once

#ifdef __CUDACC__
#define BLINK_FN __host__ __device__
#else
#define BLINK_FN
#endif

// NVRTC has no offsetof; g++ and nvcc have looked.
#ifdef __CUDACC_RTC__
#define BLINK_LIES_AT(type, field, offset) true
#else
#define BLINK_LIES_AT(type, field, offset) (__builtin_offsetof(type, field) == (offset))
#endif

namespace blink {

using u8 = unsigned char;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

static_assert(sizeof(u8) == 1 && sizeof(u32) == 4 && sizeof(i64) == 8 && sizeof(u64) == 8);

// --- numbers ---------------------------------------------------------------------

constexpr u32 SLOTS_MAX = 0x1000u;
constexpr u32 HEADER_BYTES = 0x1000u;
constexpr u32 METADATA_BYTES = 0x10000u;
constexpr u32 SLOT_METADATA_BYTES = 0x10u;
constexpr u32 DESCRIPTOR_BYTES = 0x40u;
constexpr u32 TOKEN_BYTES = 0x4u;
constexpr u32 WORD_BYTES = 0x8u;
constexpr u32 REGION_ALIGNMENT_BYTES = 0x1000u;
constexpr u32 STATE_BITS = 0x8u;
constexpr u32 OUTCOME_BITS = 0x8u;
constexpr u32 GENERATION_BITS = 0x18u;
constexpr u32 TOKENS_BITS = 0x18u;
constexpr u32 GENERATIONS = 0x1000000u;
constexpr u32 TOKENS_MAX = 0xffffffu;
constexpr u32 SCHEDULER_THREADS = 0x100u;
constexpr u32 LAUNCH_WINDOW_MAX = 0x78u;
constexpr u32 GRAPH_EXECS = 0x2u;
constexpr u64 MAGIC = 0x474e49524b4e4c42ull;
constexpr u32 LAYOUT_VERSION = 0x1u;
constexpr u32 NO_TOKEN = 0xffffffffu;
constexpr u32 HEARTBEAT_OFFSET = 0x40u;
constexpr u32 SCHEDULER_GENERATION_OFFSET = 0x48u;
constexpr u32 STATE_MASK = 0xffu;
constexpr u32 OUTCOME_SHIFT = 0x8u;
constexpr u32 OUTCOME_MASK = 0xffu;
constexpr u32 GENERATION_SHIFT = 0x10u;
constexpr u32 GENERATION_MASK = 0xffffffu;
constexpr u32 TOKENS_SHIFT = 0x28u;
constexpr u64 SAME_LIFE_MASK = 0xffffffffffull;
constexpr u32 IGNORE_EOS = 0x1u;
constexpr u32 CANCEL_GENERATION_SHIFT = 0x8u;

// --- where things lie ------------------------------------------------------------

constexpr u32 IDENTITY_MAGIC_OFFSET = 0;
constexpr u32 IDENTITY_VERSION_OFFSET = 8;
constexpr u32 IDENTITY_HEADER_BYTES_OFFSET = 12;
constexpr u32 IDENTITY_SLOTS_OFFSET = 16;
constexpr u32 IDENTITY_SLOT_METADATA_BYTES_OFFSET = 20;
constexpr u32 IDENTITY_DESCRIPTOR_BYTES_OFFSET = 24;
constexpr u32 IDENTITY_PROMPT_TOKENS_MAX_OFFSET = 28;
constexpr u32 IDENTITY_OUTPUT_TOKENS_MAX_OFFSET = 32;
constexpr u32 IDENTITY_CONTROL_BYTES_OFFSET = 40;
constexpr u32 IDENTITY_TOTAL_BYTES_OFFSET = 48;

constexpr u32 DESCRIPTOR_ARRIVAL_NS_OFFSET = 8;
constexpr u32 DESCRIPTOR_SEED_OFFSET = 16;
constexpr u32 DESCRIPTOR_PROMPT_TOKENS_OFFSET = 24;
constexpr u32 DESCRIPTOR_OUTPUT_TOKENS_MAX_OFFSET = 28;
constexpr u32 DESCRIPTOR_TEMPERATURE_OFFSET = 32;
constexpr u32 DESCRIPTOR_TOP_P_OFFSET = 36;
constexpr u32 DESCRIPTOR_TOP_K_OFFSET = 40;
constexpr u32 DESCRIPTOR_STOP_TOKEN_OFFSET = 44;
constexpr u32 DESCRIPTOR_FLAGS_OFFSET = 48;
constexpr u32 DESCRIPTOR_GENERATION_OFFSET = 52;

// --- the life of a slot ----------------------------------------------------------

namespace state {
enum : u32 {
  EMPTY = 0,
  PREFILL_PENDING = 1,
  PREFILL_PROCESSING = 2,
  DECODE_PROCESSING = 3,
  DECODE_PAUSED = 4,
  DECODE_COMPLETED = 5,
};
}
constexpr u32 STATES = 6;

namespace event {
enum : u32 {
  SUBMIT = 0,
  CLAIM = 1,
  FIRST_TOKEN = 2,
  TOKENS = 3,
  PAUSE = 4,
  RESUME = 5,
  COMPLETE = 6,
  ABORT = 7,
  RELEASE = 8,
};
}
constexpr u32 EVENTS = 9;

namespace writer {
enum : u32 {
  FRONT_END = 0,
  SCHEDULER = 1,
};
}
constexpr u32 WRITERS = 2;

namespace outcome {
enum : u32 {
  NONE = 0,
  STOP = 1,
  LENGTH = 2,
  CANCELLED = 3,
  TIMED_OUT = 4,
  FAILED = 5,
  REJECTED = 6,
};
}
constexpr u32 OUTCOMES = 7;

// Where an event leads from a state, or NO_STATE.
constexpr u32 NO_STATE = STATES;
BLINK_FN constexpr u32 target_of(u32 before, u32 event) {
  switch (before * EVENTS + event) {
    case state::EMPTY * EVENTS + event::SUBMIT: return state::PREFILL_PENDING;
    case state::PREFILL_PENDING * EVENTS + event::CLAIM: return state::PREFILL_PROCESSING;
    case state::PREFILL_PROCESSING * EVENTS + event::FIRST_TOKEN: return state::DECODE_PROCESSING;
    case state::DECODE_PROCESSING * EVENTS + event::TOKENS: return state::DECODE_PROCESSING;
    case state::DECODE_PROCESSING * EVENTS + event::PAUSE: return state::DECODE_PAUSED;
    case state::DECODE_PAUSED * EVENTS + event::RESUME: return state::DECODE_PROCESSING;
    case state::DECODE_PROCESSING * EVENTS + event::COMPLETE: return state::DECODE_COMPLETED;
    case state::PREFILL_PROCESSING * EVENTS + event::ABORT: return state::DECODE_COMPLETED;
    case state::DECODE_PROCESSING * EVENTS + event::ABORT: return state::DECODE_COMPLETED;
    case state::DECODE_PAUSED * EVENTS + event::ABORT: return state::DECODE_COMPLETED;
    case state::DECODE_COMPLETED * EVENTS + event::RELEASE: return state::EMPTY;
    default: return NO_STATE;
  }
}
// The only writer that may make an event.
BLINK_FN constexpr u32 writer_of(u32 event) {
  switch (event) {
    case event::SUBMIT: return writer::FRONT_END;
    case event::CLAIM: return writer::SCHEDULER;
    case event::FIRST_TOKEN: return writer::SCHEDULER;
    case event::TOKENS: return writer::SCHEDULER;
    case event::PAUSE: return writer::SCHEDULER;
    case event::RESUME: return writer::SCHEDULER;
    case event::COMPLETE: return writer::SCHEDULER;
    case event::ABORT: return writer::SCHEDULER;
    case event::RELEASE: return writer::FRONT_END;
    default: return WRITERS;
  }
}
// The outcomes that an event may write, as a set of bits.
BLINK_FN constexpr u32 outcomes_of(u32 event) {
  switch (event) {
    case event::COMPLETE: return 0x6u;  // STOP, LENGTH
    case event::ABORT: return 0x38u;  // CANCELLED, TIMED_OUT, FAILED
    default: return 0x1u;
  }
}
// The events that add to the token count, as a set of bits.
constexpr u32 TOKEN_EVENTS = 0xcu;
// The states that only the scheduler may leave, as a set of bits.
constexpr u32 SCHEDULER_STATES = 0x1eu;

// Why something was not done; status.py says what each means.
enum class Status : u32 {
  OK = 0,
  LOST = 1,
  NO_TRANSITION = 2,
  WRONG_WRITER = 3,
  WRONG_TOKENS = 4,
  WRONG_OUTCOME = 5,
  TOKENS_OVERFLOW = 6,
  NOT_HELD = 7,
  BEYOND_LIMIT = 8,
  ALREADY_PUBLISHED = 9,
  WINDOW_EXHAUSTED = 10,
  CLAIMED_TWICE = 11,
  LAUNCH_REFUSED = 12,
  NOT_A_FLAG_WORD = 13,
  WRONG_GENERATION = 14,
  NO_ROOM = 15,
  UNKNOWN_ABORT = 16,
  ANOTHER_RING = 17,
};
BLINK_FN constexpr const char* name_of(Status status) {
  switch (status) {
    case Status::OK: return "OK";
    case Status::LOST: return "LOST";
    case Status::NO_TRANSITION: return "NO_TRANSITION";
    case Status::WRONG_WRITER: return "WRONG_WRITER";
    case Status::WRONG_TOKENS: return "WRONG_TOKENS";
    case Status::WRONG_OUTCOME: return "WRONG_OUTCOME";
    case Status::TOKENS_OVERFLOW: return "TOKENS_OVERFLOW";
    case Status::NOT_HELD: return "NOT_HELD";
    case Status::BEYOND_LIMIT: return "BEYOND_LIMIT";
    case Status::ALREADY_PUBLISHED: return "ALREADY_PUBLISHED";
    case Status::WINDOW_EXHAUSTED: return "WINDOW_EXHAUSTED";
    case Status::CLAIMED_TWICE: return "CLAIMED_TWICE";
    case Status::LAUNCH_REFUSED: return "LAUNCH_REFUSED";
    case Status::NOT_A_FLAG_WORD: return "NOT_A_FLAG_WORD";
    case Status::WRONG_GENERATION: return "WRONG_GENERATION";
    case Status::NO_ROOM: return "NO_ROOM";
    case Status::UNKNOWN_ABORT: return "UNKNOWN_ABORT";
    case Status::ANOTHER_RING: return "ANOTHER_RING";
  }
  return "?";
}

// --- the scheduler ---------------------------------------------------------------

namespace phase {
enum : u32 {
  SCAN = 0,
  WAIT = 1,
  PUBLISH = 2,
  RESUME = 3,
  CANCEL = 4,
  LAUNCH = 5,
  RELAUNCH = 6,
};
}
constexpr u32 PHASES = 7;

namespace action {
enum : u32 {
  IDLE = 0,
  PREFILL = 1,
  DECODE = 2,
  RELAUNCH = 3,
};
}
constexpr u32 ACTIONS = 4;

namespace graph {
enum : u32 {
  PREFILL_GRAPH = 0,
  DECODE_GRAPH = 1,
};
}
constexpr u32 GRAPHS = 2;

}  // namespace blink
