"""What happened on metal, as the record that every backend returns.

Two books are put together: the server's (which graph ran when, which prompts it computed) and the
clients' (what reached whom, when). Times are ns from the start of the run, on one clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from blink.model.record import (
    ABSENT,
    STEP_DECODE,
    STEP_PREFILL,
    DecodeRanges,
    Int64Array,
    RequestTable,
    StepTable,
)
from blink.model.scheduler import PREFILL_GRAPH
from blink.model.workload import Workload
from blink.ring_protocol.states import Outcome


@dataclass(frozen=True, slots=True)
class RanStep:
    """One graph that ran; times in ns from the start of the run.

    seen_ns is when the scheduler saw its completion word; tokens is the longest prompt of a
    prefill. requests are those whose prompts it computed.
    """

    decided_ns: int
    launched_ns: int
    start_ns: int
    end_ns: int
    seen_ns: int
    graph: int
    count: int
    tokens: int
    requests: tuple[int, ...] = ()


@dataclass
class ClientBook:
    """What every client asked and got; lists by request, times in ns from the start of the run."""

    workload: Workload
    arrival_ns: list[int] = field(init=False)
    submitted_ns: list[int] = field(init=False)
    finish_ns: list[int] = field(init=False)
    outcome: list[int] = field(init=False)
    slot: list[int] = field(init=False)
    tokens_ns: list[list[int]] = field(init=False)
    """when each token arrived"""

    def __post_init__(self) -> None:
        count = len(self.workload)
        self.arrival_ns = [ABSENT] * count
        self.submitted_ns = [ABSENT] * count
        self.finish_ns = [ABSENT] * count
        self.outcome = [int(Outcome.NONE)] * count
        self.slot = [ABSENT] * count
        self.tokens_ns = [[] for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Tables:
    """The parts of a RunRecord that are tables."""

    requests: RequestTable
    steps: StepTable
    decode_ranges: DecodeRanges


def tables_of(book: ClientBook, ran: Sequence[RanStep]) -> Tables:
    """Put both books together.

    A request decodes in every decode step from the prefill of its prompt to its end; one that was
    preempted has a prefill for each time, and gets no token from the later ones.
    """
    prefills: dict[int, list[int]] = defaultdict(list)
    for row, step in enumerate(ran):
        for request in step.requests:
            prefills[request].append(row)
    decodes = np.flatnonzero([step.graph != PREFILL_GRAPH for step in ran])
    ranges = _ranges(book, prefills, decodes, len(ran))
    delivered = _delivered(book, ran, prefills, decodes, ranges)
    requests = _requests(book, ran, prefills)
    context = np.zeros(len(ran), dtype=np.int64)
    context[decodes] = _context_tokens(book, ranges, len(decodes))
    return Tables(requests, _steps(book, ran, delivered, context), ranges)


def _context_tokens(book: ClientBook, ranges: DecodeRanges, decodes: int) -> Int64Array:
    """Cached tokens that each decode step reads, over all of its sequences.

    A sequence's first decode step reads its prompt, each later one a token more: a line of slope 1
    over the ordinals. Lines are summed by where they begin and end.
    """
    done: dict[int, int] = defaultdict(int)
    slopes, offsets = (np.zeros(decodes + 1, dtype=np.int64) for _ in range(2))
    for request, first, end in zip(
        ranges.request.tolist(), ranges.first.tolist(), ranges.end.tolist(), strict=True
    ):
        offset = int(book.workload.input_tokens[request]) + done[request] - first
        done[request] += end - first
        slopes[first] += 1
        slopes[end] -= 1
        offsets[first] += offset
        offsets[end] -= offset
    ordinals = np.arange(decodes, dtype=np.int64)
    found: Int64Array = np.cumsum(offsets)[:-1] + np.cumsum(slopes)[:-1] * ordinals
    return found


def _ranges(
    book: ClientBook, prefills: dict[int, list[int]], decodes: Int64Array, steps: int
) -> DecodeRanges:
    rows: list[tuple[int, int, int]] = []
    for request, computed in sorted(prefills.items()):
        left = len(book.tokens_ns[request]) - 1
        for begins, ends in pairwise([*computed, steps]):
            first, last = (int(each) for each in np.searchsorted(decodes, (begins, ends)))
            taken = min(left, last - first)
            if taken > 0:
                rows.append((request, first, first + taken))
                left -= taken
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return DecodeRanges(*(column.copy() for column in columns))


def _delivered(
    book: ClientBook,
    ran: Sequence[RanStep],
    prefills: dict[int, list[int]],
    decodes: Int64Array,
    ranges: DecodeRanges,
) -> Int64Array:
    """When the last client had its token of each step; a step nobody heard of: when it was seen."""
    found = np.array([step.seen_ns for step in ran], dtype=np.int64)
    for request, computed in prefills.items():
        if book.tokens_ns[request]:
            row = computed[0]
            found[row] = max(found[row], book.tokens_ns[request][0])
    at: dict[int, int] = defaultdict(lambda: 1)
    for request, first, end in zip(ranges.request, ranges.first, ranges.end, strict=True):
        begin = at[int(request)]
        at[int(request)] += int(end - first)
        times = book.tokens_ns[int(request)][begin : begin + int(end - first)]
        rows = decodes[first:end]
        found[rows] = np.maximum(found[rows], times)
    return np.maximum.accumulate(found) if len(found) else found


def _requests(
    book: ClientBook, ran: Sequence[RanStep], prefills: dict[int, list[int]]
) -> RequestTable:
    count = len(book.workload)
    first_row = [prefills[each][0] if prefills.get(each) else ABSENT for each in range(count)]
    served = [bool(book.tokens_ns[each]) for each in range(count)]
    scheduled = [ran[row].decided_ns if row != ABSENT else ABSENT for row in first_row]
    return RequestTable(
        arrival_ns=_int64(book.arrival_ns),
        input_tokens=book.workload.input_tokens,
        output_tokens_wanted=book.workload.output_tokens,
        output_tokens=_int64([len(times) for times in book.tokens_ns]),
        submitted_ns=_int64(book.submitted_ns),
        scheduled_ns=_int64(scheduled),
        first_token_ns=_int64([times[0] if times else ABSENT for times in book.tokens_ns]),
        finish_ns=_int64(book.finish_ns),
        outcome=np.array(book.outcome, dtype=np.int8),
        slot=_int64(book.slot),
        preemptions=_int64([max(0, len(prefills.get(each, ())) - 1) for each in range(count)]),
        first_step=_int64(
            [row if got else ABSENT for row, got in zip(first_row, served, strict=True)]
        ),
    )


def _steps(
    book: ClientBook, ran: Sequence[RanStep], delivered: Int64Array, context: Int64Array
) -> StepTable:
    prefill = [step.graph == PREFILL_GRAPH for step in ran]
    prompts = book.workload.input_tokens
    return StepTable(
        launched_ns=_int64([step.decided_ns for step in ran]),
        start_ns=_int64([step.start_ns for step in ran]),
        end_ns=_int64([step.end_ns for step in ran]),
        delivered_ns=delivered,
        kind=np.array([STEP_PREFILL if each else STEP_DECODE for each in prefill], dtype=np.int8),
        decode_batch=_int64([0 if p else s.count for p, s in zip(prefill, ran, strict=True)]),
        prefill_tokens=_int64([int(sum(prompts[list(step.requests)])) for step in ran]),
        context_tokens=context,
    )


def _int64(values: Sequence[int]) -> Int64Array:
    return np.array(values, dtype=np.int64)
