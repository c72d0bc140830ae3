// The scheduler's loop by a team of threads: a phase that has much to do is shared out among them.
//
// The leader calls lead() again and again, the others follow(). Each phase ends in the state in which the leader's own
// steps would have left it. A Team has:
//
//   void meet()                      waits for all; what one wrote before, all read after
//   u32  add(u32* count, u32 more)   adds to a count that all share; returns what it was
//   u32  rank(), size()              which member this is, of how many
//   bool shares(u32 count)           whether so many pieces are worth a meeting
//   void scan(look)                  calls look(scanner, scanners) for each logical scanner that is this member's
//   void touch(const void* word)     soon to be read: several that miss the cache can miss it at once
#pragma once

#include "scheduler.h"

namespace blink {

template <class Memory, class Engine>
struct TeamScheduler : Scheduler<Memory, Engine> {
  using Base = Scheduler<Memory, Engine>;
  using Base::ring;
  using Base::state;

  // The leader's next step, or, with the others, a whole phase.
  template <class Team>
  BLINK_FN void lead(Team team) {
    if (state->fault != Status::OK) return;
    if (!is_shared(team)) return this->step();
    state->noted = state->asked = state->step_blocks = 0;
    if (state->phase == phase::RELAUNCH) this->begin_relaunch();
    team.meet();
    share(team);
    team.meet();
    if (state->fault == Status::OK) conclude();
  }

  // Another member's part of a phase; false when the team is dismissed.
  template <class Team>
  BLINK_FN bool follow(Team team) {
    team.meet();
    if (state->over) return false;
    share(team);
    team.meet();
    return true;
  }

  template <class Team>
  BLINK_FN void dismiss(Team team) {
    state->over = 1;
    team.meet();
  }

 private:
  template <class Team>
  BLINK_FN bool is_shared(Team team) {
    switch (state->phase) {
      case phase::SCAN: return true;
      case phase::PUBLISH: return state->cursor == 0 && team.shares(this->batch().count);
      case phase::RESUME:
      case phase::LAUNCH: return state->cursor == 0 && team.shares(state->running.count);
      case phase::CANCEL: return state->cursor == 0 && team.shares(this->held_count());
      case phase::RELAUNCH: return team.shares(ring.geometry.slots);
      default: return false;
    }
  }

  // Nobody changes what another member reads here: each writes its own slots and adds to counts.
  template <class Team>
  BLINK_FN void share(Team team) {
    const u32 rank = team.rank(), size = team.size();
    switch (state->phase) {
      case phase::SCAN: return team.scan([&](u32 scanner, u32 scanners) { this->look(scanner, scanners, team); });
      case phase::PUBLISH: return share_publish(team);
      case phase::RESUME:
        for (u32 place = rank; place < state->running.count; place += size) resume(state->running[place]);
        for (u32 place = rank; place < state->filling.count; place += size)
          if (this->request(state->filling[place]).recomputing) resume(state->filling[place]);
        return;
      case phase::CANCEL:
        for (u32 place = rank; place < this->held_count(); place += size)
          note(this->held_at(place), this->wanted_end(this->held_at(place)), team);
        for (u32 place = rank; place < state->running.count; place += size) count_blocks(state->running[place], team);
        return;
      case phase::LAUNCH:
        for (u32 place = rank; place < state->running.count; place += size) count_blocks(state->running[place], team);
        return;
      case phase::RELAUNCH:
        for (u32 slot = rank; slot < ring.geometry.slots; slot += size) this->adopt(slot);
    }
  }

  BLINK_FN void resume(u32 slot) { this->ok(ring.resume(slot), slot); }

  template <class Team>
  BLINK_FN void note(u32 slot, u32 outcome, Team team) {
    state->ends[slot] = outcome;
    if (outcome != outcome::NONE) team.add(&state->noted, 1);
  }

  // After a decode step each member also foresees, for its own slots, what comes next: who wants to end, and which
  // blocks the next step lacks. If nobody ends, the next step is launched at once.
  template <class Team>
  BLINK_FN void share_publish(Team team) {
    const u32 rank = team.rank(), size = team.size();
    const bool decodes = state->graph == graph::DECODE_GRAPH;
    for (u32 place = rank; place < this->batch().count; place += size) {
      const u32 slot = this->batch()[place];
      touch(slot, team);
      note(slot, this->publish_token(slot), team);
      if (!decodes || state->fault != Status::OK) continue;
      if (this->wanted_end(slot) != outcome::NONE) team.add(&state->asked, 1);
      count_blocks(slot, team);
    }
    for (u32 place = rank; decodes && place < state->waiting.count; place += size)
      if (this->wanted_end(state->waiting[place]) != outcome::NONE) team.add(&state->asked, 1);
  }

  template <class Team>
  BLINK_FN void touch(u32 slot, Team team) {
    team.touch(state->requests + slot);
    team.touch(ring.held.words + slot);
    team.touch(ring.held.ceilings + slot);
    team.touch(ring.held.limits + slot);
    team.touch(state->blocks.counts + slot);
  }

  template <class Team>
  BLINK_FN void count_blocks(u32 slot, Team team) {
    if (const u32 lacking = this->blocks_short(slot)) team.add(&state->step_blocks, lacking);
  }

  // What is left of a shared phase is the leader's.
  BLINK_FN void conclude() {
    switch (state->phase) {
      case phase::SCAN: return this->end_scan();
      case phase::PUBLISH: return conclude_publish();
      case phase::RESUME: return this->end_resume();
      case phase::CANCEL:
        for (u32 place = 0; state->noted && place < this->held_count();) {
          const u32 outcome = state->ends[this->held_at(place)];
          if (outcome == outcome::NONE) ++place;
          else if (!this->end_held(place, outcome)) return;
        }
        this->go_on(phase::LAUNCH);
        if (!state->noted) this->launch(state->step_blocks);
        return;
      case phase::LAUNCH: return this->launch(state->step_blocks);
      case phase::RELAUNCH: return this->go_on(phase::SCAN);
    }
  }

  BLINK_FN void conclude_publish() {
    const bool decodes = state->graph == graph::DECODE_GRAPH;
    if (decodes && !state->noted && !state->asked) {
      state->graph = NO_GRAPH;
      this->go_on(phase::LAUNCH);
      return this->launch(state->step_blocks);
    }
    for (u32 place = 0; state->noted && place < this->batch().count; ++place) {
      const u32 slot = this->batch()[place];
      if (state->ends[slot] != outcome::NONE && !this->end(slot, state->ends[slot])) return;
    }
    this->end_publish();
  }
};

}  // namespace blink
