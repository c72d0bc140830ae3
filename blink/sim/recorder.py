"""Collects a run as it happens and turns it into the tables of a record."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from blink.model.record import (
    ABSENT,
    STEP_DECODE,
    STEP_MIXED,
    STEP_PREFILL,
    DecodeRanges,
    Int8Array,
    Int64Array,
    Mark,
    RequestTable,
    StepTable,
)
from blink.model.workload import Workload
from blink.ring_protocol.states import Outcome

MARKS_MAX: Final = 50_000
"""Timeline marks kept; later ones are counted, not kept."""

_COLUMNS: Final = ("launched", "start", "end")


def _whole(count: int, value: int) -> array[int]:
    return array("q", [value]) * count


class Recorder:
    """Appends only, 8 bytes a cell: a day of a million requests is to fit in memory."""

    def __init__(self, workload: Workload) -> None:
        count = len(workload.arrival_ns)
        self.workload = workload
        self.arrival_ns: array[int] = array("q", workload.arrival_ns.tolist())
        self.submitted_ns = _whole(count, ABSENT)
        self.scheduled_ns = _whole(count, ABSENT)
        self.first_token_ns = _whole(count, ABSENT)
        self.finish_ns = _whole(count, ABSENT)
        self.output_tokens = _whole(count, 0)
        self.outcome = _whole(count, int(Outcome.NONE))
        self.slot = _whole(count, ABSENT)
        self.preemptions = _whole(count, 0)
        self.first_step = _whole(count, ABSENT)
        self.delivered_ns = array("q")
        self.streamed_tokens = _whole(count, 0)
        self.steps = 0
        self.marks: list[Mark] = []
        self.counters: dict[str, int] = {}
        self.on_finish: Callable[[int, int], None] = lambda request, when_ns: None
        self._columns = {name: np.empty(4096, dtype=np.int64) for name in _COLUMNS}
        self._segments = array("q")  # steps, batch, prefill tokens, context tokens; again and again
        self._ranges = array("q")  # request, first, end; again and again
        self._range_tokens: list[list[int]] = []
        self._on_delivery: deque[tuple[int, Callable[[int], None], bool]] = deque()
        self._acting = 0

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a named counter."""
        self.counters[name] = self.counters.get(name, 0) + amount

    def mark(self, mark: Mark) -> None:
        """Keep a timeline mark, or count it once there are too many."""
        if len(self.marks) < MARKS_MAX:
            self.marks.append(mark)
        else:
            self.count("marks_dropped")

    def add_steps(
        self,
        launched_ns: Int64Array | int,
        gpu_ns: Int64Array | int,
        end_ns: Int64Array,
        *,
        batch: int,
        prefill_tokens: int,
        context_tokens: int,
    ) -> int:
        """Append steps that end at ``end_ns``; return the row of the first.

        ``context_tokens`` is the batch's context before the first of them; it grows by ``batch``.
        """
        first, count = self.steps, len(end_ns)
        self._reserve(first + count)
        rows = slice(first, first + count)
        columns = self._columns
        columns["launched"][rows] = launched_ns
        columns["start"][rows] = end_ns - gpu_ns
        columns["end"][rows] = end_ns
        self._segments.extend((count, batch, prefill_tokens, context_tokens))
        self.steps += count
        return first

    def _reserve(self, rows: int) -> None:
        if rows > len(self._columns["end"]):
            for name, column in self._columns.items():
                grown = np.empty(max(2 * len(column), rows), dtype=np.int64)
                grown[: self.steps] = column[: self.steps]
                self._columns[name] = grown

    def delivered(self, times_ns: list[int]) -> None:
        """The flushes of the next undelivered steps reach the clients at ``times_ns``."""
        self.delivered_ns.extend(times_ns)
        rows = len(self.delivered_ns)
        while self._on_delivery and self._on_delivery[0][0] < rows:
            row, action, acts = self._on_delivery.popleft()
            self._acting -= acts
            action(self.delivered_ns[row])

    def when_delivered(self, row: int, action: Callable[[int], None], *, acts: bool) -> None:
        """Call ``action(when_ns)`` as soon as it is known when step ``row`` is delivered.

        ``acts``: a client does something then, so it must be known when the time comes; what only
        writes down when it was may learn of it later.
        """
        if row < len(self.delivered_ns):
            action(self.delivered_ns[row])
        else:
            assert not self._on_delivery or self._on_delivery[-1][0] <= row
            self._acting += acts
            self._on_delivery.append((row, action, acts))

    @property
    def awaits_delivery(self) -> bool:
        """Whether a client acts as soon as a step is delivered that is not yet."""
        return self._acting > 0

    def streamed(self, request: int, tokens: int) -> None:
        """The front end has streamed ``tokens`` tokens in all, in order and each once, and ends."""
        assert self.streamed_tokens[request] == 0, f"request {request}: its stream ends twice"
        self.streamed_tokens[request] = tokens

    def scheduled(self, request: int, when_ns: int) -> None:
        """The engine first works on ``request`` at ``when_ns``."""
        if self.scheduled_ns[request] == ABSENT:
            self.scheduled_ns[request] = when_ns

    def add_range(
        self, request: int, first: int, end: int, tokens: list[int] | None = None
    ) -> None:
        """``request`` got a token from each decode step of ordinals ``first`` .. ``end`` - 1.

        Or as many from each as ``tokens`` says.
        """
        if end > first:
            self._ranges.extend((request, first, end))
            if tokens is not None:
                assert len(tokens) == end - first
                self._range_tokens.append(tokens)

    def finish(self, request: int, outcome: Outcome, tokens: int, when_ns: int) -> None:
        """The one and only end of a request."""
        assert self.outcome[request] == Outcome.NONE, f"request {request} ends twice"
        self.outcome[request] = int(outcome)
        self.output_tokens[request] = tokens
        self.finish_ns[request] = when_ns
        self.on_finish(request, when_ns)

    def request_table(self) -> RequestTable:
        """The requests, in order of arrival."""
        self._settle_first_tokens()

        def column(values: array[int]) -> Int64Array:
            return np.array(values, dtype=np.int64)

        return RequestTable(
            arrival_ns=column(self.arrival_ns),
            input_tokens=self.workload.input_tokens.astype(np.int64),
            output_tokens_wanted=self.workload.output_tokens.astype(np.int64),
            output_tokens=column(self.output_tokens),
            submitted_ns=column(self.submitted_ns),
            scheduled_ns=column(self.scheduled_ns),
            first_token_ns=column(self.first_token_ns),
            finish_ns=column(self.finish_ns),
            outcome=np.array(self.outcome, dtype=np.int8),
            slot=column(self.slot),
            preemptions=column(self.preemptions),
            first_step=column(self.first_step),
        )

    def _settle_first_tokens(self) -> None:
        """A first token is out when the flush of its step is."""
        for request, row in enumerate(self.first_step):
            if row != ABSENT:
                self.first_token_ns[request] = self.delivered_ns[row]

    def step_table(self) -> StepTable:
        """The steps, in order of time."""
        columns = {name: column[: self.steps] for name, column in self._columns.items()}
        count, batch, prefill, context = np.array(self._segments, dtype=np.int64).reshape(-1, 4).T
        place = np.arange(self.steps) - np.repeat(np.cumsum(count) - count, count)
        batch, prefill = np.repeat(batch, count), np.repeat(prefill, count)
        kind = np.where(
            batch == 0, STEP_PREFILL, np.where(prefill == 0, STEP_DECODE, STEP_MIXED)
        ).astype(np.int8)
        return StepTable(
            launched_ns=columns["launched"],
            start_ns=columns["start"],
            end_ns=columns["end"],
            delivered_ns=np.array(self.delivered_ns, dtype=np.int64),
            kind=kind,
            decode_batch=batch,
            prefill_tokens=prefill,
            context_tokens=np.repeat(context, count) + place * batch,
        )

    def decode_ranges(self) -> DecodeRanges:
        """The ranges, in the order in which they ended, then of requests."""
        rows, order = self._ordered_ranges()
        rows = rows[order]
        return DecodeRanges(request=rows[:, 0], first=rows[:, 1], end=rows[:, 2])

    def step_tokens(self) -> Int8Array:
        """The tokens of each step of these ranges, with speculation."""
        _, order = self._ordered_ranges()
        tokens = [each for row in order.tolist() for each in self._range_tokens[row]]
        return np.array(tokens, dtype=np.int8)

    def _ordered_ranges(self) -> tuple[Int64Array, Int64Array]:
        rows = np.array(self._ranges, dtype=np.int64).reshape(-1, 3)
        return rows, np.lexsort((rows[:, 1], rows[:, 0], rows[:, 2]))
