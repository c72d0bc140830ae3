"""The engine process of a CPU-driven server: schedule, prepare, launch, wait, process, every step.

One thread does all of it, in this order, for step ``k``::

    schedule and launch k       at ``schedule_ns``; takes the launch work
    wait for k-1 (overlap)      or for k itself
    process its tokens          takes the update work; the outputs leave for the API process
    schedule k+1                sees what has arrived by then

With ``overlap`` one step is always launched ahead, so host work hides behind the GPU as long as it
is shorter than a step; an arrival is seen a step later. Times of a step are known when it is
scheduled, so the process runs from schedule to schedule and reports outputs with their (later)
times.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice

import numpy as np

from blink.model.control_plane import ControlPlane
from blink.model.policy import Action, Chunk, GraphCache, Limits, decide, decide_chunk, plan_chunks
from blink.model.timing import causal_pairs
from blink.ring_protocol.states import Outcome
from blink.sim.batch import Sequence
from blink.sim.clock import Alarm, Clock, Process
from blink.sim.engine import Engine, Segment
from blink.sim.noise import NoiseState, ThreadNoise

COUNT_UNLIMITED = 1 << 30
"""The host may launch as often as it likes: no window; and compute as many tokens of a prompt."""


@dataclass(slots=True)
class Plan:
    """Decode steps ahead: their segment, when each is scheduled, and the noise after each.

    ``schedule_ns[i]`` is when the step *after* step ``i`` is scheduled.
    """

    segment: Segment
    schedule_ns: list[int]
    noise: list[NoiseState]
    last_end_ns: list[int]


class HostEngine:
    """The engine process. ``run`` is its SimPy process."""

    def __init__(
        self,
        env: Clock,
        engine: Engine,
        plane: ControlPlane,
        noise: ThreadNoise,
        limits: Limits,
        graphs: GraphCache | None,
        *,
        prefix_caching: bool,
        lookup_ns_per_block: float = 0.0,
    ) -> None:
        self.env = env
        self.engine = engine
        self.plane = plane
        self.noise = noise
        self.limits = limits
        self.graphs = graphs
        self.prefix_caching = prefix_caching
        self.lookup_ns_per_block = lookup_ns_per_block
        self.alarm = Alarm(env)
        self.waiting: deque[Sequence] = deque()
        self._filling: list[tuple[Sequence, int]] = []  # prompts admitted, tokens computed so far
        self._aborts: list[tuple[Sequence, Outcome]] = []
        self._copied_ns = 0  # when KV caches on their way to or from the host's memory are there
        self._decoded = False  # whether a decode step came since the last chunk of a prompt
        self._found_ns = 0  # admission work of prompts whose beginning a prefix cache was asked for
        self._end_ns = 0  # of the last step launched
        # Its update work, tokens and sequences, if not done.
        self._unprocessed: tuple[int, int, int] | None = None

    # --- messages ----------------------------------------------------------------------------

    def enqueue(self, sequence: Sequence) -> None:
        """A request reaches the engine; the next schedule sees it."""
        self.waiting.append(sequence)
        self.alarm.signal()

    def abort(self, sequence: Sequence, outcome: Outcome) -> None:
        """An abort reaches the engine; the next schedule honours it."""
        self._aborts.append((sequence, outcome))
        self.alarm.signal()

    def catch_up(self) -> None:
        """Report the outputs of steps in flight that are ready by now."""
        self.engine.catch_up()

    def run(self) -> Process:
        """Step for ever."""
        while True:
            self._honour_aborts()
            chunks = self._schedule()
            if chunks:
                yield from self._prompt_step(chunks)
            elif self.engine.batch:
                yield from self._decode()
            else:
                assert not self.waiting, "idle with work that fits (WORK)"
                self._process_last()
                yield self.alarm.wait()
                yield self.env.timeout(max(0, self._end_ns - self.env.now))

    # --- scheduling --------------------------------------------------------------------------

    def _honour_aborts(self) -> None:
        aborts, self._aborts = self._aborts, []
        for sequence, outcome in aborts:
            filling = [entry for entry in self._filling if entry[0] is sequence]
            if sequence.running:
                self.engine.take_out(sequence)
            elif filling:
                self._filling.remove(filling[0])
                self.engine.kv.release(sequence.key, 0, growing=False)
            elif sequence in self.waiting:
                self.waiting.remove(sequence)
            else:
                continue  # it has ended already: a late abort finds nothing
            self.engine.end(sequence, outcome, None)

    def _schedule(self) -> list[Chunk]:
        """Choose the prompts, or parts of prompts, of the next step."""
        self._bring_back()
        if self.plane.scheduling == "inline_prefill":
            return self._schedule_inline()
        self._admit_all()
        return plan_chunks(
            [(sequence.prompt_tokens, done) for sequence, done in self._filling],
            self.limits.prefill_tokens_max - self._decode_tokens,
            self.limits.chunk_tokens,
        )

    @property
    def _decode_tokens(self) -> int:
        """What the running sequences take of a step's budget, drafts included."""
        return len(self.engine.batch) * (1 + self.engine.draft_tokens)

    def _schedule_inline(self) -> list[Chunk]:
        """The policy of the GPU-resident scheduler, without a launch window."""
        assert self.graphs is not None
        if self._filling:  # a prompt that is computed in chunks
            action = decide_chunk(len(self.engine.batch), self._decoded, COUNT_UNLIMITED)
            return [self._next_chunk(0)] if action is Action.PREFILL else []
        front = list(islice(self.waiting, self.limits.prefill_batch_max))
        if front and self.engine.pool.holds(front[0].key):
            return []  # nobody overtakes it
        decision = decide(
            [sequence.prompt_tokens for sequence in front],
            len(self.engine.batch),
            COUNT_UNLIMITED,
            self.engine.kv,
            self.graphs,
            self.limits,
            self.engine.blocks_reserved,
            self.engine.cached(front),
            1 + self.engine.draft_tokens,
        )
        if decision.action is not Action.PREFILL:
            return []
        self._admit(decision.prefill_count)
        return [self._next_chunk(position) for position in range(len(self._filling))]

    def _next_chunk(self, position: int) -> Chunk:
        """What an inline prefill computes of a prompt: all that is left, or a chunk of it."""
        sequence, done = self._filling[position]
        left = sequence.prompt_tokens - done
        self._decoded = False
        return Chunk(position, done, min(left, self.limits.chunk_tokens or left))

    def _bring_back(self) -> None:
        """Whoever is first in line and offloaded goes on, if there is room again."""
        engine = self.engine
        while self.waiting and engine.pool.holds(self.waiting[0].key):
            full = len(engine.batch) + len(self._filling) >= self.limits.batch_max
            if full or not engine.can_bring_back(self.waiting[0]):
                return
            self._copy(engine.bring_back(self.waiting.popleft()))

    def _copy(self, copy_ns: int) -> None:
        """The GPU copies after what it has begun, and before its next step."""
        self._copied_ns = max(self._copied_ns, self._end_ns, self.env.now) + copy_ns

    def _admit_all(self) -> None:
        """Admit first come, first served, as far as sequences, KV blocks and the budget reach."""
        kv, limits = self.engine.kv, self.limits
        budget = limits.prefill_tokens_max - self._decode_tokens
        chunk = limits.chunk_tokens or COUNT_UNLIMITED
        budget -= sum(min(s.prompt_tokens - done, chunk) for s, done in self._filling)
        while self.waiting and budget > 0:
            sequence = self.waiting[0]
            if self.engine.pool.holds(sequence.key):
                return  # nobody overtakes it
            full = len(self.engine.batch) + len(self._filling) >= limits.batch_max
            free = kv.blocks_free - self.engine.blocks_reserved
            found_tokens, found_blocks = kv.find(sequence.prefix_hashes, sequence.prompt_tokens)
            needed = sequence.prompt_tokens + 1 + self.engine.draft_tokens
            if full or kv.blocks_for(needed) - found_blocks > free:
                return
            budget -= min(sequence.prompt_tokens - found_tokens, chunk)
            self._admit(1)

    def _admit(self, count: int) -> None:
        """Admit prompts from the front; all are looked up before the first takes its blocks."""
        engine = self.engine
        group = [self.waiting.popleft() for _ in range(count)]
        found = [engine.hold(sequence) for sequence in group]
        for sequence, cached in zip(group, found, strict=True):
            done = cached
            if self.plane.scheduling == "chunked_prefill":
                done = max(done, min(engine.kv.recall(sequence.key), sequence.prompt_tokens - 1))
            engine.admit(sequence)
            self._filling.append((sequence, done))
            if engine.kv.prefixes is not None:
                self._found_ns += self.plane.request_admit_ns if cached else 0
                blocks = engine.kv.blocks_for(sequence.prompt_tokens)
                self._found_ns += round(blocks * self.lookup_ns_per_block)

    # --- the loop of one step ----------------------------------------------------------------

    def _launch(
        self, schedule_ns: int, launch_ns: float, gpu_ns: int
    ) -> tuple[int, int, int | None]:
        """Run the loop for one step scheduled at ``schedule_ns``.

        Return (when the GPU ends it, when the next step is scheduled, when the outputs of the
        step before it leave, or None if they have left already).
        """
        launched_ns = schedule_ns + self.noise.run(launch_ns)
        begins_ns = max(launched_ns, self._end_ns)
        left_ns: int | None = None
        next_ns = launched_ns
        if self._unprocessed is not None:
            left_ns = next_ns = begins_ns + self.noise.run(self._unprocessed[0])
        self._end_ns = max(begins_ns, self._copied_ns) + self.plane.step_serial_ns + gpu_ns
        return self._end_ns, next_ns, left_ns

    def _process_last(self) -> None:
        """No step follows: the last step's tokens are processed as soon as it ends."""
        if self._unprocessed is not None:
            update_ns, *given = self._unprocessed
            self._end_ns += self.noise.run(update_ns)
            self._unprocessed = None
            self.engine.sink.produced([(self._end_ns, given[0], given[1])])

    def _prompt_step(self, chunks: list[Chunk]) -> Process:
        """One step with prompts in it, beside the decodes if the engine mixes them."""
        engine = self.engine
        mixing = self.plane.scheduling == "chunked_prefill" and len(engine.batch) > 0
        if mixing and engine.steps_ahead() == 0:
            self._preempt()
            return
        decoding = len(engine.batch) if mixing else 0
        tokens, gpu_ns = self._prompt_gpu_ns(chunks, decoding)
        new = sum(chunk.done_tokens == 0 for chunk in chunks)
        launch_ns = self.plane.launch_host_ns(decoding + len(chunks), prefills=True)
        launch_ns += new * self.plane.request_admit_ns + self._found_ns
        self._found_ns = 0
        finishing = [c for c in chunks if c.done_tokens + c.tokens == self._prompt(c)]
        first = sum(self._filling[chunk.position][0].generated == 0 for chunk in finishing)
        decoded = engine.batch.tokens_in(1) if mixing else 0
        given = (first + decoded, first + decoding)
        yield from self._one_step(launch_ns, decoding, tokens, given, gpu_ns)
        self._end_prompt_step(chunks, finishing, decoding)

    def _prompt(self, chunk: Chunk) -> int:
        return self._filling[chunk.position][0].prompt_tokens

    def _prompt_gpu_ns(self, chunks: list[Chunk], decoding: int) -> tuple[int, int]:
        """Tokens that the step computes for prompts, padding included, and its GPU time."""
        timing, batch = self.engine.timing, self.engine.batch
        tokens = sum(chunk.tokens for chunk in chunks)
        pairs = sum(causal_pairs(chunk.done_tokens, chunk.tokens) for chunk in chunks)
        if self.graphs is not None:
            tokens = self.graphs.prefill([chunk.tokens for chunk in chunks])
        if decoding:
            return tokens, timing.mixed_ns(decoding, batch.context_tokens, tokens, pairs)
        return tokens, timing.prefill_ns(tokens, pairs)

    def _one_step(
        self,
        launch_ns: int,
        decoding: int,
        prefill_tokens: int,
        given: tuple[int, int],
        gpu_ns: int,
    ) -> Process:
        """Launch a step, record it, and sleep until the next one is scheduled.

        ``given``: the tokens that it gives, and to how many sequences.
        """
        engine = self.engine
        began_ns = self.env.now
        update_ns = self.plane.update_host_ns(given[1])
        end_ns, next_ns, left_ns = self._launch(began_ns, launch_ns, gpu_ns)
        if left_ns is not None:
            assert self._unprocessed is not None
            engine.sink.produced([(left_ns, *self._unprocessed[1:])])
        self._unprocessed = (update_ns, *given)
        engine.record_step(began_ns, gpu_ns, end_ns, batch=decoding, prefill_tokens=prefill_tokens)
        if not self.plane.overlap:
            self._process_last()
            next_ns = self._end_ns
        yield self.env.timeout(next_ns - self.env.now)

    def _end_prompt_step(self, chunks: list[Chunk], finishing: list[Chunk], decoding: int) -> None:
        engine = self.engine
        row = engine.recorder.steps - 1
        for chunk in chunks:
            sequence, done = self._filling[chunk.position]
            self._filling[chunk.position] = (sequence, done + chunk.tokens)
        merged = [self._filling[chunk.position] for chunk in finishing]
        if decoding:
            engine.advance(1)
            engine.finish_due(engine.end)
        for sequence, done in merged:
            self._filling.remove((sequence, done))
            self._merge(sequence, row)

    def _merge(self, sequence: Sequence, row: int) -> None:
        engine = self.engine
        engine.kv.computed(sequence.key)
        if sequence.generated or engine.first_token(sequence, row):
            engine.start_decoding(sequence)
        else:
            engine.kv.release(sequence.key, 0, growing=False)
            engine.end(sequence, engine.natural_outcome(sequence), row)

    # --- decode steps in bulk ----------------------------------------------------------------

    def _decode(self) -> Process:
        """Run as many like steps as nothing interrupts, from schedule to schedule."""
        engine = self.engine
        steps = engine.steps_ahead()
        if steps == 0:
            self._preempt()
            return
        self._decoded = True
        if self._filling and self.plane.scheduling == "inline_prefill":
            steps = 1  # then comes the next chunk of a prompt
        if engine.recorder.awaits_delivery:
            steps = 1  # somebody acts on an answer: it must be known when it is delivered
        size = len(engine.batch)
        given = (engine.batch.tokens_in(1), size)
        plan = self._plan(steps)
        engine.in_flight = plan.segment
        last = steps - 1
        while self.env.now < plan.schedule_ns[last]:
            yield self.alarm.wait(plan.schedule_ns[last])
            if self.env.now < plan.schedule_ns[last]:
                # The first schedule from now on sees the message.
                last = min(last, int(np.searchsorted(plan.schedule_ns, self.env.now)))
        steps = last + 1
        self.noise.restore(plan.noise[last])
        self._end_ns = plan.last_end_ns[last]
        engine.commit(plan.segment, steps)
        if self.plane.overlap:
            self._unprocessed = (self.plane.update_host_ns(size), *given)
        engine.finish_due(engine.end)

    def _plan(self, steps: int) -> Plan:
        """Compute the loop for ``steps`` decode steps of the present batch."""
        batch, plane = self.engine.batch, self.plane
        size = len(batch)
        launch_ns = plane.launch_host_ns(size, prefills=False)
        update_ns = plane.update_host_ns(size)
        computed = self.graphs.decode_batch(size) if self.graphs is not None else size
        gpu = self.engine.timing.decode_ns(size, batch.context_tokens, steps, computed)
        before = self._unprocessed
        schedule_ns = self.env.now
        began: list[int] = []
        ends: list[int] = []
        ready: list[int] = []
        schedules: list[int] = []
        noise: list[NoiseState] = []
        last_ends: list[int] = []
        for gpu_ns in gpu.tolist():
            began.append(schedule_ns)
            end_ns, schedule_ns, left_ns = self._launch(schedule_ns, launch_ns, gpu_ns)
            ends.append(end_ns)
            if not plane.overlap:
                schedule_ns = left_ns = end_ns + self.noise.run(update_ns)
                self._end_ns = schedule_ns
            else:
                self._unprocessed = (update_ns, batch.tokens_in(1), size)
            if left_ns is not None:
                ready.append(left_ns)
            schedules.append(schedule_ns)
            noise.append(self.noise.state())
            last_ends.append(self._end_ns)
        self._unprocessed = before
        segment = Segment(
            np.array(began),
            gpu,
            np.array(ends),
            np.array(ready, dtype=np.int64),
            lag_steps=steps - len(ready),
            carried=before[1:] if before else None,
        )
        return Plan(segment, schedules, noise, last_ends)

    def _preempt(self) -> None:
        """The newest sequence waits to be recomputed, first in line."""
        sequence = self.engine.preempt()
        copy_ns = self.engine.put_aside(sequence)
        if copy_ns:
            self._copy(copy_ns)
        elif self.prefix_caching and self.engine.kv.prefixes is None:
            self.engine.kv.remember(sequence.key, sequence.prompt_tokens)
        self.waiting.appendleft(sequence)
