// Single operations on a ring in GPU memory, for tests and measurements: one thread does what the host asks.
#include "device.h"

using namespace blink;

namespace {

enum Op : u32 {
  CHECK,
  SCAN,
  CLAIM,
  BEGIN,
  ADOPT,
  FIRST_TOKEN,
  ADVANCE,
  PAUSE,
  RESUME,
  COMPLETE,
  CANCELLED,
  WRITE,
  BEAT,
  CAS
};

constexpr u32 CALL_TOKENS_MAX = 64;

}  // namespace

// What is asked, and what came of it.
struct RingCall {
  u32 op, slot;
  u64 word;  // seen by a claim; found by a scan; expected, then found, by a compare-and-swap
  u64 desired;
  i64 count;
  u32 outcome;
  u32 first;
  u32 status;
  u32 unused;
  Claimed claimed;
  u32 tokens[CALL_TOKENS_MAX];
};

extern "C" __global__ void blink_ring_call(u8* base, Geometry geometry, HeldSlots held, RingCall* call) {
  SchedulerRing<DeviceMemory> ring{DeviceMemory{base}, geometry, held};
  const u32 slot = call->slot;
  Status status = Status::OK;
  switch (call->op) {
    case CHECK: status = ring.check_header(); break;
    case SCAN: call->word = ring.scan(slot); break;
    case CLAIM: status = ring.claim(slot, call->word, &call->claimed); break;
    case BEGIN: ring.begin_execution(); break;
    case ADOPT:
      ring.forget(slot);
      status = ring.adopt(slot, &call->claimed);
      break;
    case FIRST_TOKEN: status = ring.first_token(slot); break;
    case ADVANCE: status = ring.advance(slot, call->count); break;
    case PAUSE: status = ring.pause(slot); break;
    case RESUME: status = ring.resume(slot); break;
    case COMPLETE: status = ring.complete(slot, call->outcome); break;
    case CANCELLED: {
      const Asked asked = ring.cancelled(slot);
      call->outcome = asked.outcome;
      status = asked.status;
      break;
    }
    case WRITE: status = ring.write_tokens(slot, call->first, call->tokens, static_cast<u32>(call->count)); break;
    case BEAT: ring.beat(); break;
    case CAS: call->word = ring.memory.cas(call->first, call->word, call->desired); break;
  }
  call->status = static_cast<u32>(status);
}
