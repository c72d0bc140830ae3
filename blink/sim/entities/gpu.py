"""The GPU-resident scheduler: scan, claim, launch, publish, relaunch, with no host in sight.

A generator that calls the same protocol objects and the same policy as a real kernel would: it
finds prompts in the ring's own bytes, claims them by compare-and-swap, counts every launch in the
window and publishes every token. What it adds is time: how long a launch, a scan and a step take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np
from simpy import Event

from blink.model.policy import Action, Decision, GraphCache, Limits, decide, decide_chunk
from blink.model.record import Int64Array, Mark
from blink.model.timing import causal_pairs
from blink.ring_protocol.ring import SchedulerRing
from blink.ring_protocol.states import Outcome
from blink.ring_protocol.window import LaunchWindow
from blink.sim.batch import Sequence
from blink.sim.clock import Alarm, Clock, Process
from blink.sim.engine import Engine, Segment
from blink.sim.memory import RingInbox


@dataclass(frozen=True, slots=True)
class LaunchCosts:
    """What the device-side control plane adds, ns; the slowdowns are factors (>= 1).

    ``step_ns`` is a decode step's launch plus completion detection, all in, ``prefill_step_ns`` a
    prefill's; ``tail_ns`` a tail relaunch; ``scan_ns`` one pass over all slots. In tail-chain mode
    the scheduler is not resident during a step: no SM is lost (slowdowns of 1.0), and there is no
    launch budget. Where prefills alone are chained, each ends an execution: ``prefill_relaunches``.
    """

    step_ns: int
    prefill_step_ns: int
    tail_ns: int
    scan_ns: int
    prefill_slowdown: float
    decode_slowdown: float
    windowed: bool = True
    prefill_relaunches: bool = False


class GpuScheduler:
    """The persistent scheduler of one GPU. ``run`` is its process."""

    def __init__(
        self,
        env: Clock,
        engine: Engine,
        ring: SchedulerRing,
        inbox: RingInbox,
        window: LaunchWindow,
        costs: LaunchCosts,
        limits: Limits,
        graphs: GraphCache,
        world: Callable[[int], Sequence],
    ) -> None:
        self.env = env
        self.engine = engine
        self.ring = ring
        self.inbox = inbox
        self.window = window
        self.costs = costs
        self.limits = limits
        self.graphs = graphs
        self.alarm = Alarm(env)
        self.waiting: deque[Sequence] = deque()
        self._world = world
        self._held: dict[int, Sequence] = {}
        self._partial: tuple[Sequence, int] | None = None  # a prompt in chunks, tokens done so far
        self._decoded = False  # whether a decode step came since its last chunk
        inbox.on_arrival = self.alarm.signal

    def run(self) -> Process:
        """Scan, decide, launch, for ever."""
        while True:
            self._collect()
            headroom = self.window.headroom if self.costs.windowed else 2
            if self._partial is not None:
                action = decide_chunk(len(self.engine.batch), self._decoded, headroom)
                yield from self._act(Decision(action))
                continue
            if self.waiting and self.engine.pool.holds(self.waiting[0].key):
                yield from self._bring_back()
                continue
            front = list(islice(self.waiting, self.limits.prefill_batch_max))
            decision = decide(
                [sequence.prompt_tokens for sequence in front],
                len(self.engine.batch),
                headroom,
                self.engine.kv,
                self.graphs,
                self.limits,
                self.engine.blocks_reserved,
                self.engine.cached(front),
                1 + self.engine.draft_tokens,
            )
            yield from self._act(decision)

    def _act(self, decision: Decision) -> Process:
        if decision.action is Action.PREFILL:
            if self._partial is None:
                yield from self._prefill(decision.prefill_count)
            else:
                yield from self._chunk()
        elif decision.action is Action.DECODE:
            yield from self._decode()
        elif decision.action is Action.RELAUNCH:
            yield self.env.timeout(self.costs.tail_ns)
            self._relaunch(self.env.now - self.costs.tail_ns)
        else:
            yield from self._idle()

    def _idle(self) -> Process:
        """Nothing to launch: the scan goes round until something is seen."""
        assert not self.engine.batch and not self.waiting, "idle with claimable work (WORK)"
        seen_ns = self.inbox.next_seen_ns(self.costs.scan_ns)
        yield self.alarm.wait(seen_ns)

    # --- seeing ------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Take what a scan that ended by now has seen: prompts to claim, cancels to honour."""
        slots, cancels = self.inbox.take(self.env.now - self.costs.scan_ns)
        if slots:
            self._claim(self.ring.scan(slots))
        for slot in cancels:
            self._honour_cancel(slot)

    def _claim(self, slots: list[int]) -> None:
        """Claim prompts that one scan found: in order of submission, not of slots (FCFS)."""
        claims = [self.ring.claim(slot) for slot in slots]
        for claimed in sorted(filter(None, claims), key=lambda claim: claim.arrival_ns):
            sequence = self._world(claimed.request_id)
            sequence.slot = claimed.slot
            self._held[claimed.slot] = sequence
            self.waiting.append(sequence)
            self.engine.recorder.slot[sequence.key] = claimed.slot
        assert None not in claims, "the only scheduler lost a claim"

    def _honour_cancel(self, slot: int) -> None:
        """End a request whose client left, wherever it is; a late cancel finds nothing."""
        sequence = self._held.get(slot)
        if sequence is None:
            return
        outcome = self.ring.cancelled(slot)
        if not outcome:
            return
        if sequence.running:
            self.engine.take_out(sequence)
        elif self._partial is not None and self._partial[0] is sequence:
            self.engine.kv.release(sequence.key, 0, growing=False)
            self._partial = None
        else:
            self.waiting.remove(sequence)
        self._complete(sequence, outcome, None)
        self.engine.sink.published()

    def _complete(self, sequence: Sequence, outcome: Outcome, row: int | None) -> None:
        self.ring.complete(sequence.slot, outcome)
        del self._held[sequence.slot]
        self.engine.end(sequence, outcome, row)

    # --- launching ---------------------------------------------------------------------------

    def _launch(self, count: int) -> None:
        """Count ``count`` launches, whose times are accounted for, crossing windows as needed."""
        if not self.costs.windowed:
            return
        while count > self.window.headroom:
            count -= self.window.headroom
            self.window.launch(self.window.headroom)
            self.window.relaunch()
        self.window.launch(count)

    def _relaunch(self, began_ns: int) -> None:
        self.window.relaunch()
        self.engine.recorder.mark(Mark("scheduler", "tail relaunch", began_ns, self.costs.tail_ns))

    def _prefill(self, count: int) -> Process:
        """Pause the batch, compute ``count`` prompts in one graph, merge them into the batch."""
        engine = self.engine
        group = [self.waiting.popleft() for _ in range(count)]
        found = [engine.hold(sequence) for sequence in group]
        for sequence in group:
            engine.admit(sequence)
        prompts = [s.prompt_tokens - cached for s, cached in zip(group, found, strict=True)]
        longest = max(prompts)
        if self.limits.chunk_tokens is not None and longest > self.limits.chunk_tokens:
            assert count == 1, "a prompt in chunks is alone"
            self._partial, self._decoded = (group[0], found[0]), False
            yield from self._chunk()
            return
        padded = self.graphs.prefill(prompts)
        pairs = sum(causal_pairs(cached, longest) for cached in found)
        yield from self._compute(padded, pairs, group)

    def _chunk(self) -> Process:
        """Compute the next chunk of the prompt that is computed in chunks."""
        assert self._partial is not None and self.limits.chunk_tokens is not None
        sequence, done = self._partial
        tokens = min(self.limits.chunk_tokens, sequence.prompt_tokens - done)
        last = done + tokens == sequence.prompt_tokens
        self._partial = None if last else (sequence, done + tokens)
        self._decoded = False
        padded = self.graphs.prefill([tokens])
        yield from self._compute(padded, causal_pairs(done, tokens), [sequence] if last else [])

    def _compute(self, padded: int, pairs: int, finished: list[Sequence]) -> Process:
        """Pause the batch, run one prefill graph, and merge the prompts that it ``finished``."""
        engine = self.engine
        gpu_ns = int(engine.timing.prefill_ns(padded, pairs) * self.costs.prefill_slowdown)
        began_ns = self.env.now
        paused = [sequence.slot for sequence in engine.batch.sequences.values()]
        self.ring.pause_all(paused)
        self._launch(1)
        yield self.env.timeout(self.costs.prefill_step_ns + gpu_ns)
        if self.costs.prefill_relaunches:
            self.window.relaunch()
        self.ring.resume_all(paused)
        first = sum(sequence.generated == 0 for sequence in finished)
        row = engine.record_step(began_ns, gpu_ns, self.env.now, batch=0, prefill_tokens=padded)
        engine.sink.produced([(self.env.now, first, first)])
        for sequence in finished:
            self._merge(sequence, row)
        engine.sink.published()

    def _merge(self, sequence: Sequence, row: int) -> None:
        """A prompt is computed: publish its first token, or go on where a preemption stopped it."""
        engine = self.engine
        engine.kv.computed(sequence.key)
        if sequence.generated:
            self.ring.resume(sequence.slot)
            engine.start_decoding(sequence)
            return
        goes_on = engine.first_token(sequence, row)
        self.ring.first_token(sequence.slot)
        if goes_on:
            engine.start_decoding(sequence)
        else:
            engine.kv.release(sequence.key, 0, growing=False)
            self._complete(sequence, engine.natural_outcome(sequence), row)

    def _decode(self) -> Process:
        """Run as many like steps as nothing interrupts, then publish what they produced."""
        engine = self.engine
        steps = engine.steps_ahead()
        if steps == 0:
            yield from self._preempt()
            return
        if self._partial is not None:
            steps, self._decoded = 1, True
        if self.waiting and self.costs.windowed:
            steps = min(steps, self.window.headroom)
        segment = self._segment(steps)
        engine.in_flight = segment
        ends = segment.ends_ns
        last = self._cut(ends, steps - 1)
        while self.env.now < ends[last]:
            yield self.alarm.wait(int(ends[last]))
            if self.env.now < ends[last]:
                last = self._cut(ends, last)
        steps = last + 1
        self._mark_relaunches(segment, steps)
        self._launch(steps)
        first = engine.batch.ordinal
        engine.commit(segment, steps)
        if engine.pace is None:
            self.ring.advance_all([s.slot for s in engine.batch.sequences.values()], steps)
        else:
            for each in engine.batch.sequences.values():
                self.ring.advance(each.slot, each.tokens_in(first, first + steps))
        engine.finish_due(self._complete)
        engine.sink.published()

    def _segment(self, steps: int) -> Segment:
        """Compute when each of ``steps`` steps ends, tail relaunches between them included."""
        batch = self.engine.batch
        graph_batch = self.graphs.decode_batch(len(batch))
        gpu_ns = self.engine.timing.decode_ns(len(batch), batch.context_tokens, steps, graph_batch)
        if self.costs.decode_slowdown != 1.0:
            gpu_ns = (gpu_ns * self.costs.decode_slowdown).astype(np.int64)
        cycle_ns = gpu_ns + self.costs.step_ns
        if self.costs.windowed:
            cycle_ns[self.window.headroom :: self.window.max_launches] += self.costs.tail_ns
        ends_ns = cycle_ns.cumsum() + self.env.now
        return Segment(ends_ns - gpu_ns - self.costs.step_ns, gpu_ns, ends_ns, ends_ns)

    def _mark_relaunches(self, segment: Segment, steps: int) -> None:
        if not self.costs.windowed:
            return
        headroom, size = self.window.headroom, self.window.max_launches
        for index in range(headroom, steps, size):
            began_ns = int(segment.launched_ns[index]) - self.costs.tail_ns
            self.engine.recorder.mark(
                Mark("scheduler", "tail relaunch", began_ns, self.costs.tail_ns)
            )

    def _cut(self, ends: Int64Array, last: int) -> int:
        """Return the step after which the scheduler acts on what has become visible, if anything.

        It is looked for before every wait: a word may have become visible during the last scan.
        """
        admissible = not self.waiting and len(self.engine.batch) < self.limits.batch_max
        seen_ns = self.inbox.next_seen_ns(self.costs.scan_ns, arrivals=admissible)
        return last if seen_ns is None else min(last, int(ends.searchsorted(seen_ns)))

    def _preempt(self) -> Process:
        """The newest sequence stands still, without its cache, first in line.

        Where it is offloaded the scheduler's own threads copy it: no graph, and no host.
        """
        sequence = self.engine.preempt()
        self.ring.pause(sequence.slot)
        self.waiting.appendleft(sequence)
        copy_ns = self.engine.put_aside(sequence)
        if copy_ns:
            yield self._copy("offload", copy_ns)

    def _bring_back(self) -> Process:
        """First in line is a sequence whose cache lies in the host's memory: nobody overtakes it.

        The batch decodes on until there is room.
        """
        engine, sequence = self.engine, self.waiting[0]
        if len(engine.batch) >= self.limits.batch_max or not engine.can_bring_back(sequence):
            full = self.costs.windowed and not self.window.headroom
            yield from self._act(Decision(Action.RELAUNCH if full else Action.DECODE))
            return
        self.waiting.popleft()
        copy_ns = engine.bring_back(sequence)
        yield self._copy("bring back", copy_ns)
        self.ring.resume(sequence.slot)
        engine.sink.published()

    def _copy(self, name: str, copy_ns: int) -> Event:
        self.engine.recorder.mark(Mark("scheduler", name, self.env.now, copy_ns))
        return self.env.timeout(copy_ns)
