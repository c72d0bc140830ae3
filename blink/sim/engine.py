"""What every engine in the twin shares: a running batch, its KV ledger, and decode steps in bulk.

Between two events that change the batch all decode steps are alike: the same sequences, one token
longer each time. They are computed as one *segment*, an array of exact end times, and waited for
with one event. A segment may be cut short, at a step boundary, when something arrives that the
scheduler would have seen there. The times are the same as if each step had been waited for
(``engine.fast_forward = false`` does that, and a test compares the two).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import numpy as np

from blink.model.offload import KvOffload
from blink.model.policy import KvLedger, LookaheadLedger, OffloadPool
from blink.model.record import Int64Array
from blink.model.timing import StepTime
from blink.ring_protocol.states import Outcome
from blink.sim.batch import RunningBatch, Sequence
from blink.sim.clock import Clock
from blink.sim.recorder import Recorder

SEGMENT_STEPS_MAX: Final = 128
"""Longest segment: computing further ahead is wasted when an arrival cuts it."""


StepOutput = tuple[int, int, int]
"""When a step's output leaves the engine, ns; its tokens; the sequences that they belong to."""


class OutputSink(Protocol):
    """Where an engine's tokens go: the front end, on whichever processor it runs."""

    def produced(self, outputs: list[StepOutput]) -> None:
        """Outputs of consecutive steps.

        The sink reports each step's delivery to the recorder, in order, when it can know it.
        """

    def published(self) -> None:
        """All that was produced so far may be read by now."""


@dataclass(slots=True)
class Segment:
    """Decode steps in flight; int64 arrays of shape (steps,), ns.

    ``ready_ns`` says when outputs leave the engine: on the GPU when the step ends; on a host later,
    by then ``lag_steps`` steps behind, the first of them perhaps that of the step before the
    segment, with the tokens and sequences of ``carried``. ``delivered`` outputs have left.
    """

    launched_ns: Int64Array
    gpu_ns: Int64Array
    ends_ns: Int64Array
    ready_ns: Int64Array
    lag_steps: int = 0
    carried: tuple[int, int] | None = None
    delivered: int = 0


class Engine:
    """The running batch and everything that moves when a step ends."""

    def __init__(
        self,
        env: Clock,
        timing: StepTime,
        kv: KvLedger,
        recorder: Recorder,
        sink: OutputSink,
        *,
        fast_forward: bool,
        pace: Callable[[int, int], list[int]] | None = None,
        draft_tokens: int = 0,
        offload: KvOffload | None = None,
    ) -> None:
        """``pace(request, tokens)`` draws the tokens of each decode step, with speculation."""
        self.env = env
        self.timing = timing
        self.kv = kv
        self.recorder = recorder
        self.sink = sink
        self.pace = pace
        self.draft_tokens = draft_tokens
        self.offload = offload
        self.pool = OffloadPool(offload.blocks_total if offload else 0)
        self.batch = RunningBatch(paced=pace is not None)
        # With speculation no two steps are alike.
        self.segment_steps_max = SEGMENT_STEPS_MAX if fast_forward and pace is None else 1
        self.in_flight: Segment | None = None
        self.gpu_busy_ns = 0
        self.on_leave: Callable[[Sequence, int], None] = lambda sequence, when_ns: None

    @property
    def blocks_reserved(self) -> int:
        """Blocks that the running batch's next step takes: no admission may use them."""
        return self.kv.blocks_of_step(self.batch.ordinal)

    def steps_ahead(self) -> int:
        """How many decode steps are certain to be alike; 0 if the KV cache lacks room for one."""
        steps = min(self.batch.steps_to_next_change(), self.segment_steps_max)
        return self.kv.steps_that_fit(self.batch.ordinal, steps)

    def commit(self, segment: Segment, steps: int) -> None:
        """The first ``steps`` steps of ``segment`` have run: account for all of them."""
        batch = self.batch
        self.in_flight = None
        self.recorder.add_steps(
            segment.launched_ns[:steps],
            segment.gpu_ns[:steps],
            segment.ends_ns[:steps],
            batch=len(batch),
            prefill_tokens=0,
            context_tokens=batch.context_tokens,
        )
        self.gpu_busy_ns += int(segment.gpu_ns[:steps].sum())
        self._flush(segment, steps - segment.lag_steps)
        self.advance(steps)

    def advance(self, steps: int) -> None:
        """``steps`` decode steps are over: every sequence has its tokens, and their blocks."""
        batch, kv = self.batch, self.kv
        kv.grow(batch.ordinal, steps)
        if isinstance(kv, LookaheadLedger):
            for each in batch.sequences.values():
                kv.keep(each.key, each.tokens_in(batch.ordinal, batch.ordinal + steps))
            self.recorder.count("draft_tokens", len(batch) * self.draft_tokens)
            self.recorder.count("draft_tokens_kept", batch.tokens_in(steps) - len(batch))
        batch.advance(steps)

    def catch_up(self) -> None:
        """Hand over the outputs of steps in flight that are ready by now."""
        segment = self.in_flight
        if segment is not None:
            self._flush(segment, int(segment.ready_ns.searchsorted(self.env.now, "right")))

    def _flush(self, segment: Segment, outputs: int) -> None:
        """Hand the first ``outputs`` outputs of ``segment`` to the sink, unless handed over."""
        assert outputs >= segment.delivered, "a segment was cut in its past"
        if outputs == segment.delivered:
            return
        ready = segment.ready_ns[segment.delivered : outputs].tolist()
        given = [(self.batch.tokens_in(1), len(self.batch))] * len(ready)
        if segment.delivered == 0 and segment.carried is not None:
            given[0] = segment.carried
        segment.delivered = outputs
        self.sink.produced([(when, *each) for when, each in zip(ready, given, strict=True)])

    def record_step(
        self, launched_ns: int, gpu_ns: int, end_ns: int, *, batch: int, prefill_tokens: int
    ) -> int:
        """Record a single step (prefill or mixed); return its row."""
        self.gpu_busy_ns += gpu_ns
        return self.recorder.add_steps(
            launched_ns,
            gpu_ns,
            np.array([end_ns], dtype=np.int64),
            batch=batch,
            prefill_tokens=prefill_tokens,
            context_tokens=self.batch.context_tokens,
        )

    def cached(self, waiting: list[Sequence]) -> list[tuple[int, int]]:
        """What the prefix cache finds of each prompt, as the policy asks; nothing without one."""
        if self.kv.prefixes is None:
            return []
        return [self.kv.find(each.prefix_hashes, each.prompt_tokens) for each in waiting]

    def hold(self, sequence: Sequence) -> int:
        """Keep what the prefix cache has of a prompt; its tokens, which need not be computed."""
        return self.kv.hold(sequence.key, sequence.prefix_hashes, sequence.prompt_tokens)

    def admit(self, sequence: Sequence) -> None:
        """Give ``sequence`` the blocks of its prompt: the engine begins to work on it now."""
        self.kv.admit(sequence.key, sequence.prompt_tokens, sequence.prefix_hashes)
        self.recorder.scheduled(sequence.key, self.env.now)

    def first_token(self, sequence: Sequence, row: int) -> bool:
        """``sequence`` got its first token from step ``row``; return whether it goes on."""
        sequence.generated = 1
        self.recorder.first_step[sequence.key] = row
        if self.pace is not None:
            sequence.pace = self.pace(sequence.key, sequence.tokens_wanted - 1)
        return sequence.tokens_wanted > 1

    def start_decoding(self, sequence: Sequence) -> None:
        """From the next step on ``sequence`` decodes."""
        self.batch.join(sequence, sequence.prompt_tokens)
        self.kv.start_growing(sequence.key, self.batch.ordinal)

    def take_out(self, sequence: Sequence) -> None:
        """Remove ``sequence`` from the batch, give its blocks back, note what it decoded."""
        first = sequence.joined
        context = self.kv.release(sequence.key, self.batch.ordinal, growing=True)
        paces = None if self.pace is None else sequence.paces(first, self.batch.ordinal)
        self.batch.leave(sequence, context)
        self.recorder.add_range(sequence.key, first, self.batch.ordinal, paces)

    def finish_due(self, complete: Callable[[Sequence, Outcome, int], None]) -> None:
        """Take out, and ``complete``, whoever emitted the last token with the last step.

        A client that has read enough learns of it, and leaves, when that step is delivered.
        """
        row = self.recorder.steps - 1
        for sequence in self.batch.due():
            if sequence.finish <= self.batch.ordinal:
                self.take_out(sequence)
                complete(sequence, self.natural_outcome(sequence), row)
            else:
                self.recorder.when_delivered(row, partial(self.on_leave, sequence), acts=True)

    def preempt(self) -> Sequence:
        """The KV cache is full: take out the newest sequence, whose blocks are free now."""
        sequence = self.batch.newest
        self.take_out(sequence)
        self.recorder.preemptions[sequence.key] += 1
        return sequence

    def put_aside(self, sequence: Sequence) -> int:
        """Copy what ``sequence``, just preempted, had cached to the host; how long that takes, ns.

        0 where there is no room for it, or no offloading: it will be computed anew.
        """
        blocks = self.kv.blocks_for(sequence.prompt_tokens)
        if self.offload is None or not self.pool.put(sequence.key, blocks):
            return 0
        self.recorder.count("kv_offload_blocks_out", blocks)
        return self.offload.copy_ns(blocks)

    def can_bring_back(self, sequence: Sequence) -> bool:
        """Whether an offloaded ``sequence`` fits now, its next step and the others' included."""
        free = self.kv.blocks_free - self.blocks_reserved
        tokens = sequence.prompt_tokens
        _, shared = self.kv.find(sequence.prefix_hashes, tokens)
        return self.kv.blocks_for(tokens + 1 + self.draft_tokens) - shared <= free

    def bring_back(self, sequence: Sequence) -> int:
        """Copy ``sequence`` back, which decodes on from there; how long that takes, ns.

        What a prefix cache still has of it need not be copied.
        """
        assert self.offload is not None
        found = self.hold(sequence)
        self.admit(sequence)
        self.kv.computed(sequence.key)
        blocks = self.pool.drop(sequence.key) - found // self.kv.block_tokens
        self.recorder.count("kv_offload_blocks_in", blocks)
        self.start_decoding(sequence)
        return self.offload.copy_ns(blocks)

    def end(self, sequence: Sequence, outcome: Outcome, row: int | None) -> None:
        """The one and only end of ``sequence``: when step ``row`` is delivered, or now."""
        self.pool.drop(sequence.key)
        tokens = sequence.generated
        if row is None:
            self.recorder.finish(sequence.key, outcome, tokens, self.env.now)
        else:
            finish = partial(self.recorder.finish, sequence.key, outcome, tokens)
            again = self.recorder.workload.concurrency is not None  # its client asks for more
            self.recorder.when_delivered(row, finish, acts=again)

    def natural_outcome(self, sequence: Sequence) -> Outcome:
        """STOP if the model ended by itself, LENGTH if the client's limit cut it."""
        by_limit = sequence.truth.output_tokens > sequence.request.output_tokens_max
        return Outcome.LENGTH if by_limit else Outcome.STOP
