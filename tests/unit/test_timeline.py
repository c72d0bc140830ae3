"""A timeline is something that Perfetto loads, and it says what it leaves out."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink.model.record import ABSENT, RunRecord
from blink.plan.spans import DECODE, PREEMPTED, PREFILL, QUEUE, request_spans, slot_rows
from blink.plan.timeline import CONTROL_PLANE, GPU, SLOTS, timeline, write_timeline
from tests.builders import MS, build_record, decode_ranges

REQUIRED = {"ph", "pid", "tid", "name", "ts"}
"""The keys that each event needs, whatever its phase."""


def spans_of(events: list[dict[str, Any]], pid: int) -> dict[int, list[tuple[float, float]]]:
    rows: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["pid"] == pid:
            rows[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    return rows


@pytest.fixture
def record() -> RunRecord:
    return build_record(requests=60, control_ns=700_000, unfinished=2)


def test_each_event_has_what_its_phase_needs(tmp_path: Path, record: RunRecord) -> None:
    write_timeline(tmp_path / "timeline.json", record)
    document = json.loads((tmp_path / "timeline.json").read_text("utf-8"))
    opened: defaultdict[tuple[str, int], int] = defaultdict(int)
    for event in document["traceEvents"]:
        assert set(event) >= REQUIRED
        assert event["ts"] >= 0
        match event["ph"]:
            case "X":
                assert event["dur"] >= 0
            case "i":
                assert event["s"] == "t"
            case "C":
                assert all(isinstance(value, int) for value in event["args"].values())
            case "b" | "e":
                opened[event["cat"], event["id"]] += 1 if event["ph"] == "b" else -1
            case "M":
                assert event["name"] in {"process_name", "thread_name", "process_sort_index"}
            case other:
                pytest.fail(f"unknown phase {other}")
    assert set(opened.values()) == {0}
    assert document["otherData"]["truncated"] is False
    assert document == timeline(record)


def test_spans_of_one_row_do_not_cross(record: RunRecord) -> None:
    events = timeline(record)["traceEvents"]
    for pid in (GPU, SLOTS):
        for row in spans_of(events, pid).values():
            ordered = sorted(row)
            assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(ordered))


def test_launches_of_an_overlapped_control_plane_do_not_cross(record: RunRecord) -> None:
    steps = record.steps
    steps.launched_ns[1:] = steps.launched_ns[1:] - 2 * MS
    launches = spans_of(timeline(record)["traceEvents"], CONTROL_PLANE)[1]
    assert len(launches) == len(steps)
    assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(launches))


def test_there_is_a_span_for_each_step_and_a_flush_for_each_delivery(record: RunRecord) -> None:
    events = timeline(record)["traceEvents"]
    steps = [event for event in events if event["ph"] == "X" and event["pid"] == GPU]
    assert [event["args"]["batch"] for event in steps] == record.steps.decode_batch.tolist()
    assert {event["name"] for event in steps} == {"prefill", "decode"}
    flushes = [event for event in events if event["name"] == "flush"]
    assert [event["ts"] for event in flushes] == (record.steps.delivered_ns / 1000).tolist()
    assert [e["args"]["window"] for e in events if e["name"] == "tail relaunch"] == [120]


def test_the_window_bounds_it_and_says_so(record: RunRecord) -> None:
    document = timeline(record, window_s=0.5)
    assert document["otherData"]["truncated"] is True
    assert document["otherData"]["shown_s"] == 0.5
    for event in document["traceEvents"]:
        assert event["ts"] + event.get("dur", 0) <= 0.5e6


def test_the_event_limit_bounds_it_and_says_so(record: RunRecord) -> None:
    full = timeline(record)
    short = timeline(record, events_max=300)
    assert len(short["traceEvents"]) <= 300 < len(full["traceEvents"])
    about = short["otherData"]
    assert about["truncated"] is True
    assert 0 < about["shown_s"] < full["otherData"]["shown_s"]
    begun = [event["id"] for event in short["traceEvents"] if event["ph"] == "b"]
    assert begun == [event["id"] for event in short["traceEvents"] if event["ph"] == "e"]


def test_a_request_goes_through_its_phases_without_a_gap(record: RunRecord) -> None:
    for request, spans in enumerate(request_spans(record)[:58]):
        assert [span.phase for span in spans][:2] == [QUEUE, PREFILL]
        assert spans[0].start_ns == record.requests.submitted_ns[request]
        for before, after in pairwise(spans):
            assert before.end_ns == after.start_ns
    assert request_spans(record)[59] == []  # turned away


def test_a_preempted_request_says_so(record: RunRecord) -> None:
    ranges = record.decode_ranges
    rows = np.stack([ranges.request, ranges.first, ranges.end], axis=1).tolist()
    request, first, end = max(rows, key=lambda row: row[2] - row[1])
    rows.remove([request, first, end])
    rows += [(request, first + 3, end), (request, first, first + 1)]
    record.decode_ranges = decode_ranges(rows)
    phases = [span.phase for span in request_spans(record)[request]]
    assert phases == [QUEUE, PREFILL, DECODE, PREEMPTED, DECODE]


def test_systems_without_slots_get_rows(record: RunRecord) -> None:
    record.requests.slot[:] = ABSENT
    rows = slot_rows(record)
    table = record.requests
    assert (rows[:58] != ABSENT).all()
    assert (rows[58:] == ABSENT).all()
    assert rows.max() < 40
    for row in range(rows.max() + 1):
        mine = np.flatnonzero(rows == row)
        assert (table.submitted_ns[mine][1:] >= table.finish_ns[mine][:-1]).all()


def test_an_empty_run_is_an_empty_timeline() -> None:
    document = timeline(build_record(requests=0))
    assert {event["ph"] for event in document["traceEvents"]} == {"M"}
