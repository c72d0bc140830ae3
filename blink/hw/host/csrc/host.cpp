// The C ABI of the host build, for ctypes (blink/hw/host/library.py). Functions return a Status unless they say else.
#include <optional>
#include <variant>

#include "host_engine.h"
#include "threads.h"

using namespace blink;

namespace {

// A scheduler over either kind of memory. A variant, so that the code under test is the template itself.
struct Handle {
  template <class Memory>
  Handle(const Config& config, const Memory& memory) : core(std::in_place_type<Core<Memory>>, config, memory) {}

  std::variant<Core<HostMemory>, Core<CalledMemory>> core;
  std::optional<ThreadedScheduler<HostMemory>> threads;  // destroyed before the core that they run
  std::optional<HostEngine<HostMemory>> engine;
};

template <class Act>
auto with(void* handle, Act act) {
  return std::visit([&](auto& core) { return act(core); }, static_cast<Handle*>(handle)->core);
}

void dump_queue(std::vector<u64>& out, const Storage& state, const Queue& queue) {
  out.push_back(queue.count);
  for (u32 place = 0; place < queue.count; ++place) {
    const Request& each = state.requests[queue[place]];
    for (u64 value :
         {u64{each.slot}, u64{each.generation}, each.request_id, each.arrival_ns, u64{each.prompt_tokens},
          u64{each.output_tokens_max}, u64{each.stop_token}, u64{each.flags}, u64{each.tokens}, u64{each.recomputing}})
      out.push_back(value);
  }
}

template <class Memory>
std::vector<u64> dump_of(const Core<Memory>& core) {
  const Storage& state = core.state;
  const LaunchWindow& window = state.window;
  std::vector<u64> out{state.phase,     state.cursor,          u64{state.graph + 1},
                       window.launches, window.launches_total, window.relaunches};
  if (state.graph == NO_GRAPH) out[2] = 0;
  out.insert(out.end(), window.turns, window.turns + GRAPHS);
  for (const Queue* each : {&state.waiting, &state.running, &state.filling, &state.claimed})
    dump_queue(out, state, *each);
  const BlockPool& blocks = state.blocks;
  out.push_back(blocks.blocks_free);
  out.insert(out.end(), blocks.free, blocks.free + blocks.blocks_free);
  for (u32 slot = 0; slot < core.geometry.slots; ++slot) {
    const u32* table = blocks.tables + u64{slot} * blocks.table_blocks_max;
    out.push_back(blocks.counts[slot]);
    out.insert(out.end(), table, table + blocks.counts[slot]);
    out.push_back(core.scheduler.ring.held.words[slot]);
  }
  return out;
}

}  // namespace

extern "C" {

// --- pure functions --------------------------------------------------------------------------------

Status blink_step(u64 word, u32 event, u32 writer, i64 tokens, u32 outcome, u64* desired) {
  const Move made = step(word, event, writer, tokens, outcome);
  *desired = made.desired;
  return made.status;
}

Status blink_outcome_asked(u64 word, u32 generation, u32* outcome) {
  const Asked asked = outcome_asked(word, generation);
  *outcome = asked.outcome;
  return asked.status;
}

void blink_geometry(u32 slots, u32 prompt_tokens_max, u32 output_tokens_max, u32 slot, u32 token, u64* out) {
  const Geometry made = geometry_of(slots, prompt_tokens_max, output_tokens_max);
  const u64 offsets[] = {made.flag(slot),   made.request_id(slot),    made.descriptor(slot), made.cancel(slot),
                         made.prompt(slot), made.output(slot, token), made.prompts_offset,   made.total_bytes};
  std::copy(std::begin(offsets), std::end(offsets), out);
}

u32 blink_bucket(const u32* buckets, u32 count, u32 size, u32 maximum) {
  return bucket_of(buckets, count, size, maximum);
}

// Returns the action; the handle lends its graphs and block size.
u32 blink_decide(void* handle, const u32* waiting_tokens, u32 waiting, u32 running, u32 headroom, u32 blocks_free,
                 u64 blocks_reserved, const Limits* limits, u32* prefill_count) {
  return with(handle, [&](auto& core) {
    BlockPool kv = core.state.blocks;
    kv.blocks_free = blocks_free;
    const auto tokens_of = [&](u32 place) { return waiting_tokens[place]; };
    const Decision made =
        decide(tokens_of, waiting, running, headroom, blocks_reserved, kv, core.state.graphs, *limits);
    *prefill_count = made.prefill_count;
    return made.action;
  });
}

u32 blink_decode_batch(void* handle, u32 sequences) {
  return with(handle, [&](auto& core) { return core.state.graphs.decode_batch(sequences); });
}

// --- memory ----------------------------------------------------------------------------------------

u64 blink_load_relaxed(u8* base, u64 offset) { return HostMemory{base}.load_relaxed(offset); }
u64 blink_load_acquire(u8* base, u64 offset) { return HostMemory{base}.load_acquire(offset); }
void blink_store_relaxed(u8* base, u64 offset, u64 value) { HostMemory{base}.store_relaxed(offset, value); }
void blink_store_release(u8* base, u64 offset, u64 value) { HostMemory{base}.store_release(offset, value); }
u64 blink_cas(u8* base, u64 offset, u64 expected, u64 desired) {
  return HostMemory{base}.cas(offset, expected, desired);
}
void blink_read_words(u8* base, u64 offset, u64* to, u32 count) { HostMemory{base}.read_words(offset, to, count); }

// --- a scheduler -----------------------------------------------------------------------------------

// Over `base`, memory of this process, or over `called` if base is null.
void* blink_open(const Config* config, u8* base, const CalledMemory* called) {
  if (base) return new Handle(*config, HostMemory{base});
  return new Handle(*config, *called);
}

void blink_close(void* handle) { delete static_cast<Handle*>(handle); }

Status blink_check_header(void* handle) {
  return with(handle, [](auto& core) { return core.scheduler.ring.check_header(); });
}

// --- its ring --------------------------------------------------------------------------------------

u64 blink_ring_scan(void* handle, u32 slot) {
  return with(handle, [&](auto& core) { return core.scheduler.ring.scan(slot); });
}
Status blink_ring_claim(void* handle, u32 slot, u64 seen, Claimed* claimed) {
  return with(handle, [&](auto& core) { return core.scheduler.ring.claim(slot, seen, claimed); });
}
void blink_ring_begin_execution(void* handle) {
  with(handle, [](auto& core) { core.scheduler.ring.begin_execution(); });
}
Status blink_ring_adopt(void* handle, u32 slot, Claimed* claimed) {
  return with(handle, [&](auto& core) {
    core.scheduler.ring.forget(slot);
    return core.scheduler.ring.adopt(slot, claimed);
  });
}
Status blink_ring_first_token(void* handle, u32 slot) {
  return with(handle, [&](auto& core) { return core.scheduler.ring.first_token(slot); });
}
Status blink_ring_advance(void* handle, u32 slot, i64 count) {
  return with(handle, [&](auto& core) { return core.scheduler.ring.advance(slot, count); });
}
Status blink_ring_pause(void* handle, u32 slot) {
  return with(handle, [&](auto& core) { return core.scheduler.ring.pause(slot); });
}
Status blink_ring_resume(void* handle, u32 slot) {
  return with(handle, [&](auto& core) { return core.scheduler.ring.resume(slot); });
}
Status blink_ring_complete(void* handle, u32 slot, u32 outcome) {
  return with(handle, [&](auto& core) { return core.scheduler.ring.complete(slot, outcome); });
}
Status blink_ring_cancelled(void* handle, u32 slot, u32* outcome) {
  return with(handle, [&](auto& core) {
    const Asked asked = core.scheduler.ring.cancelled(slot);
    *outcome = asked.outcome;
    return asked.status;
  });
}
Status blink_ring_write_tokens(void* handle, u32 slot, u32 first, const u32* tokens, u32 count) {
  return with(handle, [&](auto& core) { return core.scheduler.ring.write_tokens(slot, first, tokens, count); });
}
void blink_ring_beat(void* handle) {
  with(handle, [](auto& core) { core.scheduler.ring.beat(); });
}

// --- its loop --------------------------------------------------------------------------------------

// Returns the phase that the step belonged to.
u32 blink_scheduler_step(void* handle) {
  return with(handle, [](auto& core) {
    const u32 phase = core.state.phase;
    core.scheduler.step();
    return phase;
  });
}

// A turn of a team of one that shares out everything.
void blink_scheduler_turn(void* handle) {
  struct Solo {
    void meet() const {}
    u32 add(u32* count, u32 more) const { return (*count += more) - more; }
    u32 rank() const { return 0; }
    u32 size() const { return 1; }
    bool shares(u32) const { return true; }
    void touch(const void*) const {}
    void scan(const std::function<void(u32, u32)>& look) const { look(0, 1); }
  };
  with(handle, [](auto& core) { core.scheduler.lead(Solo{}); });
}

void blink_scheduler_claim(void* handle, u32 slot, u64 seen) {
  struct Alone {
    u32 add(u32* count, u32 more) const { return (*count += more) - more; }
  };
  with(handle, [&](auto& core) { core.scheduler.claim(slot, seen, Alone{}); });
}
void blink_scheduler_end_scan(void* handle) {
  with(handle, [](auto& core) { core.scheduler.end_scan(); });
}
void blink_scheduler_relaunch(void* handle) {
  with(handle, [](auto& core) { core.scheduler.relaunch(); });
}

Status blink_scheduler_fault(void* handle, u32* slot) {
  return with(handle, [&](auto& core) {
    *slot = core.state.fault_slot;
    return core.state.fault;
  });
}

u32 blink_blocks_free(void* handle) {
  return with(handle, [](auto& core) { return core.state.blocks.blocks_free; });
}

// All of its state as whole numbers (HostScheduler.dump says in what order); returns how many there are.
u64 blink_scheduler_dump(void* handle, u64* out, u64 capacity) {
  const std::vector<u64> numbers = with(handle, [](auto& core) { return dump_of(core); });
  std::copy_n(numbers.begin(), std::min<u64>(capacity, numbers.size()), out);
  return numbers.size();
}

// --- its loop on threads of its own -----------------------------------------------------------------

// Nothing else may move the scheduler until blink_threads_stop. Only over memory of this process: a call into Python
// from here would need its lock. False if it is not.
u32 blink_threads_start(void* handle, u32 scanners, u32 threads, u32 contested) {
  Handle& self = *static_cast<Handle*>(handle);
  auto* core = std::get_if<Core<HostMemory>>(&self.core);
  if (!core) return false;
  self.threads.emplace(*core, scanners, threads, contested, [core](Status fault, u32 slot) {
    core->box.fault_slot = slot;
    core->box.fault.store(fault, std::memory_order_release);
  });
  return true;
}
void blink_threads_stop(void* handle) { static_cast<Handle*>(handle)->threads.reset(); }

// What stopped the scheduler by itself, or OK. While it runs, blink_scheduler_fault may not be asked.
Status blink_threads_fault(void* handle, u32* slot) {
  return with(handle, [&](auto& core) {
    const Status fault = core.box.fault.load(std::memory_order_acquire);
    if (fault != Status::OK) *slot = core.box.fault_slot;
    return fault;
  });
}

// --- its engine ------------------------------------------------------------------------------------

// Of a sequence in the running graph: request id, prompt tokens, tokens so far, whether it is computed again, then its
// block table. Returns how many numbers there are.
u64 blink_engine_sequence(void* handle, u32 slot, u64* out, u64 capacity) {
  return with(handle, [&](auto& core) {
    const Request& each = core.state.requests[slot];
    const BlockPool& blocks = core.state.blocks;
    const u32* table = blocks.tables + u64{slot} * blocks.table_blocks_max;
    std::vector<u64> numbers{each.request_id, each.prompt_tokens, each.tokens, each.recomputing};
    numbers.insert(numbers.end(), table, table + blocks.counts[slot]);
    std::copy_n(numbers.begin(), std::min<u64>(capacity, numbers.size()), out);
    return static_cast<u64>(numbers.size());
  });
}

// How many graphs have been launched, and what the last one is while it runs. While it does not, the scheduler may be
// writing the next.
u64 blink_engine_launched(void* handle, u32* graph, u32* exec_index, u32* count, u32* slots) {
  return with(handle, [&](auto& core) {
    const u64 launches = core.box.launches.load(std::memory_order_acquire);
    if (launches == core.box.finished.load(std::memory_order_relaxed)) return launches;
    *graph = core.box.graph;
    *exec_index = core.box.exec_index;
    *count = core.box.count;
    std::copy_n(core.box.slots.begin(), core.box.count, slots);
    return launches;
  });
}
// What gather and scatter need of this scheduler, for graphs that a host launches: its part of a View, and the block
// that it all lies in.
void blink_engine_view(void* handle, View* view, u64* base, u64* size) {
  with(handle, [&](auto& core) {
    const BlockPool& blocks = core.state.blocks;
    *view =
        View{core.state.requests, blocks.tables, blocks.counts, blocks.table_blocks_max, blocks.blocks_total, nullptr,
             core.geometry,       nullptr,       nullptr};
    *base = reinterpret_cast<u64>(core.block.base());
    *size = core.block.size();
  });
}

// --- an engine on a thread of its own: only over memory of this process ----------------------------------

void blink_host_engine_start(void* handle, const Launcher* launcher) {
  Handle& self = *static_cast<Handle*>(handle);
  self.engine.emplace(std::get<Core<HostMemory>>(self.core), *launcher);
}
void blink_host_engine_stop(void* handle) { static_cast<Handle*>(handle)->engine->stop(); }
int blink_host_engine_error(void* handle) { return static_cast<Handle*>(handle)->engine->error(); }

// What it did, when it has stopped: copies what fits, returns how many there are.
u64 blink_host_engine_steps(void* handle, HostStep* out, u64 capacity) {
  const auto& steps = static_cast<Handle*>(handle)->engine->steps();
  std::copy_n(steps.begin(), std::min<u64>(capacity, steps.size()), out);
  return steps.size();
}
u64 blink_host_engine_prompts(void* handle, u64* out, u64 capacity) {
  const auto& prompts = static_cast<Handle*>(handle)->engine->prompts();
  std::copy_n(prompts.begin(), std::min<u64>(capacity, prompts.size()), out);
  return prompts.size();
}

u64 blink_engine_tail_launches(void* handle) {
  return with(handle, [](auto& core) { return core.box.tail_launches.load(std::memory_order_acquire); });
}
void blink_engine_set_token(void* handle, u32 slot, u32 token) {
  with(handle, [&](auto& core) { core.box.tokens[slot] = token; });
}
void blink_engine_finish(void* handle) {
  with(handle, [](auto& core) {
    core.box.finished.store(core.box.launches.load(std::memory_order_acquire), std::memory_order_release);
  });
}

}  // extern "C"
