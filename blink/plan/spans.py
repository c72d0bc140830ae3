"""Where each request was, from arrival to its last token: queue, prefill, decode, preempted."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

import numpy as np

from blink.model.record import ABSENT, Int64Array, RunRecord

QUEUE: Final = "queue"
PREFILL: Final = "prefill"
DECODE: Final = "decode"
PREEMPTED: Final = "preempted"


@dataclass(frozen=True, slots=True)
class Span:
    """A phase of a request, ns."""

    phase: str
    start_ns: int
    end_ns: int


def request_spans(record: RunRecord) -> list[list[Span]]:
    """Return the phases of each request in order of time, on the GPU's clock.

    They follow each other without a gap from the moment the request was in its slot to the end of
    the last step it took part in. A request that never got a slot has none.
    """
    table, steps = record.requests, record.steps
    spans: list[list[Span]] = [[] for _ in range(len(table))]
    submitted, scheduled = table.submitted_ns.tolist(), table.scheduled_ns.tolist()
    first_step, finish = table.first_step.tolist(), table.finish_ns.tolist()
    for request, mine in enumerate(spans):
        if submitted[request] == ABSENT:
            continue
        if scheduled[request] == ABSENT:
            mine.append(Span(QUEUE, submitted[request], max(finish[request], submitted[request])))
            continue
        mine.append(Span(QUEUE, submitted[request], scheduled[request]))
        row = first_step[request]
        end = int(steps.end_ns[row]) if row != ABSENT else finish[request]
        mine.append(Span(PREFILL, scheduled[request], max(end, scheduled[request])))
    _append_decodes(record, spans)
    return spans


def _append_decodes(record: RunRecord, spans: list[list[Span]]) -> None:
    """Append a decode span for each range, with a preempted span before any but the first."""
    steps, ranges = record.steps, record.decode_ranges
    decodes = steps.decodes
    order = np.lexsort((ranges.first, ranges.request))
    starts = steps.start_ns[decodes[ranges.first[order]]].tolist()
    ends = steps.end_ns[decodes[ranges.end[order] - 1]].tolist()
    for request, start, end in zip(ranges.request[order].tolist(), starts, ends, strict=True):
        mine = spans[request]
        if not mine:
            continue
        before = mine[-1].end_ns
        if mine[-1].phase == DECODE:
            mine.append(Span(PREEMPTED, before, start))
            before = start
        mine.append(Span(DECODE, before, end))


def slot_rows(record: RunRecord) -> Int64Array:
    """Return a row for each request such that requests on one row do not overlap in time.

    It is the request's slot where the system has slots; where it has none, the lowest row that is
    free. ABSENT for a request that never got in.
    """
    table = record.requests
    if (table.slot != ABSENT).any():
        return table.slot
    rows = np.full(len(table), ABSENT, dtype=np.int64)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    opened = 0
    inside = table.submitted_ns != ABSENT
    for request in np.argsort(table.submitted_ns, kind="stable").tolist():
        if not inside[request]:
            continue
        while busy and busy[0][0] <= table.submitted_ns[request]:
            heappush(free, heappop(busy)[1])
        if not free:
            heappush(free, opened)
            opened += 1
        rows[request] = heappop(free)
        heappush(busy, (int(table.finish_ns[request]), int(rows[request])))
    return rows
