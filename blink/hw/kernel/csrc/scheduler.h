// The scheduler's loop, in C++17: blink/model/scheduler.py, step for step.
//
// It owns no thread and no clock; all that outlives an instance lies in Storage, in memory that the caller owns.
// step() is one thread's, one thing at a time, as the reference does it; team.h shares phases out. An Engine has:
//
//   bool launch(u32 graph, u32 exec_index, const Queue& slots)   starts a captured graph on these sequences; whether
//                                                                a fresh instance follows it (a tail launch)
//   bool finished()                                              whether it has set its completion flag
//   u32  token(u32 slot)                                         what it left for this sequence
//   void tail_launch()                                           replaces the scheduler by a fresh instance
#pragma once

#include "storage.h"

namespace blink {

// Looks at this many slots at once: a thread does not wait for one word before it asks for the next.
constexpr u32 SCAN_AHEAD = 20;

template <class Memory, class Engine>
struct Scheduler {
  SchedulerRing<Memory> ring;
  Engine engine;
  Storage* state;

  // One thing that others can see. A scheduler with a fault does nothing any more.
  BLINK_FN void step() {
    if (state->fault != Status::OK) return;
    switch (state->phase) {
      case phase::SCAN: return scan();
      case phase::WAIT: return wait();
      case phase::PUBLISH: return publish();
      case phase::RESUME: return resume();
      case phase::CANCEL: return cancel();
      case phase::LAUNCH: return launch();
      case phase::RELAUNCH: return relaunch();
    }
  }

  // Whether only somebody else can bring it on: a graph that runs, or a new request.
  BLINK_FN bool waits() const {
    return state->phase == phase::SCAN &&
           (state->graph != NO_GRAPH || (!state->waiting.count && !state->running.count));
  }

  BLINK_FN void go_on(u32 phase) {
    state->phase = phase;
    state->cursor = 0;
  }

  // --- finding work --------------------------------------------------------------------------------

  BLINK_FN void scan() {
    look(0, 1, Alone{});
    end_scan();
  }

  // One of `scanners` logical threads looks at every scanners-th slot and claims what is pending.
  // `team.add(count, n)` adds to a count that all of them share and returns what it was.
  template <class Team>
  BLINK_FN void look(u32 scanner, u32 scanners, Team team) {
    const u32 slots = ring.geometry.slots;
    for (u32 first = scanner; first < slots; first += SCAN_AHEAD * scanners) {
      u64 seen[SCAN_AHEAD];
      for (u32 at = 0; at < SCAN_AHEAD; ++at) {
        const u32 slot = first + at * scanners;
        seen[at] = slot < slots ? ring.scan(slot) : 0;
      }
      for (u32 at = 0; at < SCAN_AHEAD; ++at)
        if (seen[at] != 0 && !claim(first + at * scanners, seen[at], team)) return;
    }
  }

  // False if the scheduler cannot go on. To come too late is no fault.
  template <class Team>
  BLINK_FN bool claim(u32 slot, u64 seen, Team team) {
    Claimed claimed{};
    const Status status = ring.claim(slot, seen, &claimed);
    if (status == Status::LOST) return true;
    if (status != Status::OK) return fail(status, slot);
    state->requests[slot] = held(claimed);
    const u32 place = team.add(&state->claimed.count, 1);
    if (place >= state->claimed.capacity) return fail(Status::CLAIMED_TWICE, slot);
    state->claimed.items[place] = slot;
    return true;
  }

  // All threads have met: what they claimed waits in order of arrival.
  BLINK_FN void end_scan() {
    if (state->fault != Status::OK) return;
    Queue& waiting = state->waiting;
    if (state->claimed.count > waiting.capacity - waiting.count)
      return void(fail(Status::CLAIMED_TWICE, state->claimed[0]));
    sort_claimed();
    for (u32 place = 0; place < state->claimed.count; ++place) waiting.push_back(state->claimed[place]);
    state->claimed.clear();
    go_on(phase::WAIT);
  }

  // --- a graph that ran ----------------------------------------------------------------------------

  // While a graph runs, looks for work again and again.
  BLINK_FN void wait() {
    if (state->graph == NO_GRAPH) return go_on(phase::CANCEL);
    go_on(engine.finished() ? phase::PUBLISH : phase::SCAN);
  }

  // Publishes one sequence's token, and its end; the last one ends the phase.
  BLINK_FN void publish() {
    if (state->cursor == batch().count) return end_publish();
    const u32 slot = batch()[state->cursor];
    const u32 outcome = publish_token(slot);
    if (state->fault == Status::OK && (outcome == outcome::NONE || end(slot, outcome))) ++state->cursor;
  }

  // The prompts are computed: the batch decodes on, one slot a step, with the new ones.
  BLINK_FN void resume() {
    Queue& running = state->running;
    Queue& filling = state->filling;
    if (state->cursor < running.count) return resume_one(running[state->cursor]);
    u32 recomputed = state->cursor - running.count;
    for (u32 place = 0; place < filling.count; ++place) {
      if (!state->requests[filling[place]].recomputing) continue;
      if (recomputed-- == 0) return resume_one(filling[place]);
    }
    end_resume();
  }

  // --- between graphs ------------------------------------------------------------------------------

  // Looks at one held request's cancel word.
  BLINK_FN void cancel() {
    if (state->cursor == held_count()) return go_on(phase::LAUNCH);
    const u32 outcome = wanted_end(held_at(state->cursor));
    if (state->fault != Status::OK) return;
    if (outcome == outcome::NONE) ++state->cursor;
    else end_held(state->cursor, outcome);
  }

  BLINK_FN void launch() { launch(blocks_of_step()); }

  // A fresh instance takes over: it knows nothing but memory.
  BLINK_FN void relaunch() {
    begin_relaunch();
    for (u32 slot = 0; slot < ring.geometry.slots; ++slot) adopt(slot);
    if (state->fault == Status::OK) go_on(phase::SCAN);
  }

 protected:
  BLINK_FN Queue& batch() const { return state->graph == graph::PREFILL_GRAPH ? state->filling : state->running; }

  BLINK_FN void end_publish() {
    const bool prefill = state->graph == graph::PREFILL_GRAPH;
    forget_ended(batch());
    if (!prefill) state->graph = NO_GRAPH;
    go_on(prefill ? phase::RESUME : phase::CANCEL);
  }

  BLINK_FN void end_resume() {
    for (u32 place = 0; place < state->filling.count; ++place) {
      request(state->filling[place]).recomputing = 0;
      state->running.push_back(state->filling[place]);
    }
    state->filling.clear();
    state->graph = NO_GRAPH;
    go_on(phase::CANCEL);
  }

  // Whoever is held and in no graph: those that wait, then the batch.
  BLINK_FN u32 held_count() const {
    return state->waiting.count + state->running.count;
  }
  BLINK_FN u32 held_at(u32 place) const {
    const u32 waiting = state->waiting.count;
    return place < waiting ? state->waiting[place] : state->running[place - waiting];
  }

  BLINK_FN bool end_held(u32 place, u32 outcome) {
    if (!end(held_at(place), outcome)) return false;
    const u32 waiting = state->waiting.count;
    if (place < waiting) state->waiting.remove(place);
    else state->running.remove(place - waiting);
    return true;
  }

  // How a request ends before its next step, or NONE: its client has left, or it would wait for ever.
  BLINK_FN u32 wanted_end(u32 slot) {
    const Asked asked = ring.cancelled(slot);
    if (!ok(asked.status, slot)) return outcome::NONE;
    return asked.outcome == outcome::NONE && !can_go_on(slot) ? outcome::FAILED : asked.outcome;
  }

  BLINK_FN void launch(u64 step_blocks) {
    const Decision decision = decide([this](u32 place) { return request(state->waiting[place]).context_tokens(); },
                                     state->waiting.count, state->running.count, state->window.headroom(), step_blocks,
                                     state->blocks, state->graphs, state->limits);
    if (decision.action == action::RELAUNCH) return go_on(phase::RELAUNCH);
    if (decision.action == action::PREFILL && !prefill(decision.prefill_count)) return;
    if (decision.action == action::DECODE && !decode(step_blocks)) return;
    go_on(phase::SCAN);
  }

  BLINK_FN void begin_relaunch() {
    engine.tail_launch();
    state->window.relaunch();
    ring.begin_execution();
  }

  BLINK_FN void adopt(u32 slot) {
    Claimed claimed{};
    ring.forget(slot);
    const Status status = ring.adopt(slot, &claimed);
    if (status != Status::OK && status != Status::LOST) fail(status, slot);
  }

  struct Alone {
    BLINK_FN u32 add(u32* count, u32 more) const {
      const u32 before = *count;
      *count += more;
      return before;
    }
  };

  BLINK_FN Request& request(u32 slot) const { return state->requests[slot]; }

  BLINK_FN bool fail(Status status, u32 slot) {
    state->fault = status;
    state->fault_slot = slot;
    return false;
  }

  BLINK_FN bool ok(Status status, u32 slot) { return status == Status::OK || fail(status, slot); }

  BLINK_FN static Request held(const Claimed& claimed) {
    const Descriptor& from = claimed.descriptor;
    return {claimed.request_id,
            from.arrival_ns,
            from.generation,
            from.prompt_tokens,
            from.output_tokens_max,
            from.stop_token,
            from.flags,
            0,
            0,
            claimed.slot};
  }

  BLINK_FN bool comes_before(u32 slot, u32 other) const {
    const u64 arrival = request(slot).arrival_ns, theirs = request(other).arrival_ns;
    return arrival != theirs ? arrival < theirs : slot < other;
  }

  // Heapsort: in place, without recursion, and never slow, however many prompts come at once.
  BLINK_FN void sort_claimed() {
    u32* items = state->claimed.items;
    const u32 count = state->claimed.count;
    for (u32 root = count / 2; root-- > 0;) sift(items, root, count);
    for (u32 end = count; end-- > 1;) {
      swap(items, 0, end);
      sift(items, 0, end);
    }
  }

  BLINK_FN void sift(u32* items, u32 root, u32 count) const {
    for (u32 child = 2 * root + 1; child < count; child = 2 * root + 1) {
      if (child + 1 < count && comes_before(items[child], items[child + 1])) ++child;
      if (!comes_before(items[root], items[child])) return;
      swap(items, root, child);
      root = child;
    }
  }

  BLINK_FN static void swap(u32* items, u32 one, u32 other) {
    const u32 kept = items[one];
    items[one] = items[other];
    items[other] = kept;
  }

  // Returns how the request ends with this token, or NONE.
  BLINK_FN u32 publish_token(u32 slot) {
    Request& each = request(slot);
    if (each.recomputing) return outcome::NONE;
    const u32 token = engine.token(slot);
    if (!ok(ring.write_tokens(slot, each.tokens, &token, 1), slot)) return outcome::NONE;
    if (!ok(each.tokens ? ring.advance(slot, 1) : ring.first_token(slot), slot)) return outcome::NONE;
    ++each.tokens;
    return outcome_with(each, token);
  }

  // How the request ends with this token, or NONE.
  BLINK_FN static u32 outcome_with(const Request& each, u32 token) {
    if (token == each.stop_token && !(each.flags & IGNORE_EOS)) return outcome::STOP;
    return each.tokens == each.output_tokens_max ? outcome::LENGTH : outcome::NONE;
  }

  BLINK_FN bool end(u32 slot, u32 outcome) {
    if (!ok(ring.complete(slot, outcome), slot)) return false;
    state->blocks.release(slot);
    return true;
  }

  BLINK_FN void forget_ended(Queue& batch) {
    u32 kept = 0;
    for (u32 place = 0; place < batch.count; ++place)
      if (state->blocks.holds_any(batch[place])) batch.items[batch.first + kept++] = batch[place];
    batch.count = kept;
  }

  BLINK_FN void resume_one(u32 slot) {
    if (ok(ring.resume(slot), slot)) ++state->cursor;
  }

  BLINK_FN bool prefill(u32 count) {
    for (u32 place = 0; place < state->running.count; ++place)
      if (!ok(ring.pause(state->running[place]), state->running[place])) return false;
    for (u32 place = 0; place < count; ++place) {
      const u32 slot = state->waiting[place];
      state->filling.push_back(slot);
      state->blocks.extend(slot, request(slot).context_tokens());
    }
    state->waiting.drop_front(count);
    return start(graph::PREFILL_GRAPH, state->filling);
  }

  BLINK_FN bool decode(u64 step_blocks) {
    for (; step_blocks > state->blocks.blocks_free; step_blocks = blocks_of_step())
      if (!preempt()) return false;
    for (u32 place = 0; step_blocks && place < state->running.count; ++place) {
      const u32 slot = state->running[place];
      state->blocks.extend(slot, request(slot).context_tokens() + 1);
    }
    return start(graph::DECODE_GRAPH, state->running);
  }

  BLINK_FN bool start(u32 graph, const Queue& batch) {
    if (!ok(state->window.launch(), 0)) return false;
    state->graph = graph;
    if (engine.launch(graph, state->window.alternate(graph), batch)) state->window.relaunch();
    return true;
  }

  // The newest sequence stands still, without its blocks, first in line.
  BLINK_FN bool preempt() {
    const u32 slot = state->running.pop_back();
    if (!ok(ring.pause(slot), slot)) return false;
    state->blocks.release(slot);
    request(slot).recomputing = 1;
    state->waiting.push_front(slot);
    return true;
  }

  BLINK_FN u64 blocks_of_step() const {
    u64 blocks = 0;
    for (u32 place = 0; place < state->running.count; ++place) blocks += blocks_short(state->running[place]);
    return blocks;
  }

  BLINK_FN u32 blocks_short(u32 slot) const {
    return state->blocks.blocks_short(slot, request(slot).context_tokens() + 1);
  }

  // Whether the whole cache holds the request's next step. Its limit does not matter: most end long before it.
  BLINK_FN bool can_go_on(u32 slot) const {
    return state->blocks.blocks_for(request(slot).context_tokens() + 1) <= state->blocks.blocks_total;
  }
};

}  // namespace blink
