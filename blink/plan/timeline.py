"""A record as a timeline: Chrome trace events, which Perfetto and chrome://tracing load.

The format is the "Trace Event Format" (JSON object form): ``X`` is a span, ``i`` an instant, ``b``
and ``e`` begin and end an asynchronous span, ``C`` is a counter, ``M`` names a row. Times are
microseconds, with the nanoseconds behind the point.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from blink.model.record import ABSENT, STEP_KINDS, RunRecord
from blink.plan.spans import Span, request_spans, slot_rows
from blink.ring_protocol.states import Outcome

WINDOW_S: Final = 30.0
"""Seconds from the start of a run that a timeline shows unless told otherwise."""

EVENTS_MAX: Final = 200_000
"""Events in a file; beyond that viewers become slow, so later ones are left out, and it is said."""

GPU: Final = 1
CONTROL_PLANE: Final = 2
SLOTS: Final = 3
REQUESTS: Final = 4
_PROCESSES: Final = {
    GPU: "GPU",
    CONTROL_PLANE: "control plane",
    SLOTS: "slots",
    REQUESTS: "requests",
}
_LAUNCHES: Final = 1
_FLUSHES: Final = 2
_MARKS: Final = 3

Event = dict[str, Any]


def write_timeline(path: Path, record: RunRecord, *, window_s: float = WINDOW_S) -> None:
    """Write :func:`timeline` as compact JSON, the same bytes for the same record."""
    document = timeline(record, window_s=window_s)
    lines = ",\n".join(
        json.dumps(event, separators=(",", ":")) for event in document["traceEvents"]
    )
    rest = {name: value for name, value in document.items() if name != "traceEvents"}
    head = json.dumps(rest, indent=1, allow_nan=False, ensure_ascii=False)[:-2]
    path.write_text(f'{head},\n "traceEvents": [\n{lines}\n]}}\n', "utf-8")


def timeline(
    record: RunRecord, *, window_s: float = WINDOW_S, events_max: int = EVENTS_MAX
) -> dict[str, Any]:
    """Return a trace of the first ``window_s`` seconds of a run, of at most ``events_max`` events.

    What goes on after the window is cut at its end. ``otherData`` says what is shown and what not.
    """
    window = _Window(record, int(window_s * 1e9))
    groups = sorted(window.groups(), key=lambda group: group[0]["ts"])
    names = window.row_names()
    events: list[Event] = []
    shown_s = window_s
    for group in groups:
        if len(names) + len(events) + len(group) > events_max:
            shown_s = group[0]["ts"] / 1e6
            break
        events += group
    end_s = int(record.steps.end_ns.max(initial=0)) / 1e9
    about = {
        "label": record.label,
        "system": record.system,
        "condition": record.condition,
        "seed": record.seed,
        "commit": record.commit,
        "run_s": end_s,
        "shown_s": min(shown_s, end_s),
        "truncated": shown_s < end_s,
        "window_s": window_s,
        "events_max": events_max,
        "marks_dropped": record.counters.get("marks_dropped", 0),
    }
    return {"displayTimeUnit": "ms", "otherData": about, "traceEvents": names + events}


@dataclass(slots=True)
class _Window:
    """The part of a record that is shown: ``[0, end_ns)``."""

    record: RunRecord
    end_ns: int

    def groups(self) -> Iterator[list[Event]]:
        """Yield events that are only useful together, each group as a list in order of time."""
        yield from self._steps()
        yield from self._marks()
        yield from self._requests()

    def row_names(self) -> list[Event]:
        """Return the metadata events that name the rows."""
        names = [_name("process_name", pid, 0, name) for pid, name in _PROCESSES.items()]
        names += [_order(pid) for pid in _PROCESSES]
        names.append(_name("thread_name", GPU, 1, "steps"))
        names.append(_name("thread_name", CONTROL_PLANE, _LAUNCHES, "launches"))
        names.append(_name("thread_name", CONTROL_PLANE, _FLUSHES, "flushes to clients"))
        for index, track in enumerate(self._tracks()):
            names.append(_name("thread_name", CONTROL_PLANE, _MARKS + index, track))
        rows = slot_rows(self.record)
        shown = self._shown_requests()
        for row in np.unique(rows[shown]).tolist():
            names.append(_name("thread_name", SLOTS, row, f"slot {row}"))
        return names

    def _steps(self) -> Iterator[list[Event]]:
        steps = self.record.steps
        count = int(np.searchsorted(steps.end_ns, self.end_ns))
        next_launch = np.append(steps.launched_ns[1:], steps.end_ns[-1:])
        # An overlapped control plane launches a step before the last one is done; spans on one
        # row may not cross, so a launch is shown up to the next one at most.
        launch_end = np.minimum(steps.start_ns, next_launch)
        for row in range(count):
            batch, tokens = int(steps.decode_batch[row]), int(steps.prefill_tokens[row])
            start, end = int(steps.start_ns[row]), int(steps.end_ns[row])
            args = {
                "step": row,
                "batch": batch,
                "prefill_tokens": tokens,
                "context_tokens": int(steps.context_tokens[row]),
            }
            yield [
                _span(GPU, 1, STEP_KINDS[int(steps.kind[row])], start, end, args),
                _event("C", GPU, 0, "batch", start, args={"sequences": batch}),
            ]
            launched = int(steps.launched_ns[row])
            yield [_span(CONTROL_PLANE, _LAUNCHES, "launch", launched, int(launch_end[row]))]
            yield from self._flush(row, batch)

    def _flush(self, row: int, batch: int) -> Iterator[list[Event]]:
        steps = self.record.steps
        delivered = int(steps.delivered_ns[row])
        if delivered == ABSENT or delivered >= self.end_ns:
            return
        lag_ns = delivered - int(steps.end_ns[row])
        args = {"step": row, "streams": batch, "after_step_ns": lag_ns}
        yield [_event("i", CONTROL_PLANE, _FLUSHES, "flush", delivered, args=args) | {"s": "t"}]

    def _tracks(self) -> list[str]:
        return sorted({mark.track for mark in self.record.marks})

    def _marks(self) -> Iterator[list[Event]]:
        tids = {track: _MARKS + index for index, track in enumerate(self._tracks())}
        for mark in self.record.marks:
            if mark.start_ns >= self.end_ns:
                continue
            tid, details = tids[mark.track], dict(mark.details)
            if mark.duration_ns:
                end = mark.start_ns + mark.duration_ns
                yield [_span(CONTROL_PLANE, tid, mark.name, mark.start_ns, end, details)]
            else:
                instant = _event("i", CONTROL_PLANE, tid, mark.name, mark.start_ns, args=details)
                yield [instant | {"s": "t"}]

    def _shown_requests(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.flatnonzero(self.record.requests.arrival_ns < self.end_ns)

    def _requests(self) -> Iterator[list[Event]]:
        """Each request twice: as spans on the row of its slot, and as one asynchronous span."""
        rows = slot_rows(self.record)
        spans = request_spans(self.record)
        for request in self._shown_requests().tolist():
            for span in spans[request]:
                if span.start_ns < self.end_ns and rows[request] != ABSENT:
                    yield [self._slot_span(request, int(rows[request]), span)]
            yield self._whole(request)

    def _slot_span(self, request: int, row: int, span: Span) -> Event:
        end = min(span.end_ns, self.end_ns)
        return _span(SLOTS, row, span.phase, span.start_ns, end, {"request": request})

    def _whole(self, request: int) -> list[Event]:
        table = self.record.requests
        arrival, finish = int(table.arrival_ns[request]), int(table.finish_ns[request])
        args = {
            "input_tokens": int(table.input_tokens[request]),
            "output_tokens": int(table.output_tokens[request]),
            "outcome": Outcome(int(table.outcome[request])).name.lower(),
            "slot": int(table.slot[request]),
            "preemptions": int(table.preemptions[request]),
        }
        name = f"request {request}"
        end = self.end_ns if finish == ABSENT else min(finish, self.end_ns)
        both = {"cat": "request", "id": request}
        return [
            _event("b", REQUESTS, 0, name, arrival, args=args) | both,
            _event("e", REQUESTS, 0, name, end) | both,
        ]


def _event(
    phase: str, pid: int, tid: int, name: str, when_ns: int, *, args: dict[str, Any] | None = None
) -> Event:
    event: Event = {"ph": phase, "pid": pid, "tid": tid, "name": name, "ts": when_ns / 1000}
    if args:
        event["args"] = args
    return event


def _span(
    pid: int, tid: int, name: str, start_ns: int, end_ns: int, args: dict[str, Any] | None = None
) -> Event:
    duration = {"dur": max(end_ns - start_ns, 0) / 1000}
    return _event("X", pid, tid, name, start_ns, args=args) | duration


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "ts": 0, "args": {"name": name}}


def _order(pid: int) -> Event:
    args = {"sort_index": pid}
    return {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "ts": 0, "args": args}
