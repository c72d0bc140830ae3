"""The formal model holds, its bugs are found, and it accepts what the rings of this project do.

The whole table is `python formal/check.py`; these are the shortest of its searches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, settings

from blink.ring_protocol.events import SlotMoved, TraceEvent
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.loopback import LoopbackMemory, LoopbackTransport
from blink.ring_protocol.middleware import TraceMemory, TraceTransport
from blink.ring_protocol.ports import Transport
from blink.ring_protocol.states import Event, Outcome, State, Writer
from blink.sim.clock import Clock
from blink.sim.memory import LinkCosts, SimTransport
from blink.testing.conformance import RingMemory, check_ring, default_settings
from formal import accept
from tests.formal.traces import Line, line

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.usefixtures("formal_tools")


def call(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "formal" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)


# --- the model itself ------------------------------------------------------------------------


def test_a_small_ring_is_safe_in_every_interleaving() -> None:
    done = call("check.py", "--json", "--only", "safety: batch of 1")
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert [check["exhaustive"] for check in report["checks"]] == [True]
    assert report["checks"][0]["states"] > 100_000, "hardly anything happened"


@pytest.mark.parametrize(
    ("bug", "violated"), [("WINDOW", "WINDOW"), ("CAS_ALWAYS", "OWNER"), ("LOST_STEP", "ORDER")]
)
def test_a_planted_bug_is_found(bug: str, violated: str) -> None:
    done = call("check.py", "--json", "--only", f"bug: {bug}")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["checks"][0]["violated"] == violated


def test_what_does_not_finish_does_not_pass() -> None:
    done = call("check.py", "--only", "safety: 2 front ends, 2 + 1", "--budget", "1")
    assert done.returncode == 1
    assert "NOT FINISHED" in done.stdout


def test_a_missing_tool_is_one_line() -> None:
    for script, arguments in (("check.py", []), ("accept.py", ["trace.jsonl"])):
        done = subprocess.run(
            [sys.executable, str(ROOT / "formal" / script), *arguments],
            env={**os.environ, "PATH": "/nowhere"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "apt-get install spin" in done.stderr


def test_the_vocabulary_is_the_protocols() -> None:
    assert [state.name for state in State] == accept.STATES
    assert [event.name for event in Event] == accept.EVENTS
    assert [writer.name for writer in Writer] == accept.WRITERS
    assert [outcome.name for outcome in Outcome] == accept.OUTCOMES


# --- traces ----------------------------------------------------------------------------------


def loopback(memory: LoopbackMemory) -> tuple[Transport, Callable[[], None]]:
    return LoopbackTransport(memory, depth=16), lambda: None


def simulated(memory: LoopbackMemory) -> tuple[Transport, Callable[[], None]]:
    clock = Clock(np.random.default_rng(1))
    costs = LinkCosts(
        post_ns=400, per_op_ns=60, one_way_ns=2200, bandwidth_bytes_s=25e9, outstanding_max=16
    )
    delays = cycle([0, 900, 0, 3000, 100])
    transport = SimTransport(clock, memory, costs, extra_delay_ns=lambda: next(delays))
    return transport, lambda: clock.run(until=clock.now + 5000)


def record(
    make: Callable[[LoopbackMemory], tuple[Transport, Callable[[], None]]],
) -> list[list[Line]]:
    """Let the conformance test drive rings of this kind, and write down what it saw of each."""
    traces: list[list[TraceEvent]] = []

    def watched(geometry: Geometry) -> RingMemory:
        seen: list[TraceEvent] = []
        traces.append(seen)
        memory = LoopbackMemory.formatted(geometry)
        transport, elapse = make(memory)
        return RingMemory(
            TraceMemory(memory, geometry, seen.append),
            TraceTransport(transport, geometry, seen.append),
            elapse,
        )

    check_ring(
        watched,
        settings=settings(
            default_settings(),
            max_examples=40,
            phases=[Phase.generate],
            derandomize=True,
            database=None,
        ),
    )
    return [[line(move) for move in trace if isinstance(move, SlotMoved)] for trace in traces]


def write(path: Path, trace: list[Line]) -> str:
    path.write_text("".join(json.dumps(fields) + "\n" for fields in trace), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("make", [loopback, simulated])
def test_recorded_traces_are_accepted(
    tmp_path: Path, make: Callable[[LoopbackMemory], tuple[Transport, Callable[[], None]]]
) -> None:
    traces = record(make)
    assert {fields["event"] for trace in traces for fields in trace} == set(accept.EVENTS)
    paths = [write(tmp_path / f"{number}.jsonl", trace) for number, trace in enumerate(traces)]
    done = call("accept.py", *paths)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("accepted;")


# One slot, three lives. Long enough for every event, short enough to read.
GOOD = """\
1 SUBMIT FRONT_END PREFILL_PENDING 0 NONE
1 CLAIM SCHEDULER PREFILL_PROCESSING 0 NONE
1 FIRST_TOKEN SCHEDULER DECODE_PROCESSING 1 NONE
1 PAUSE SCHEDULER DECODE_PAUSED 1 NONE
1 RESUME SCHEDULER DECODE_PROCESSING 1 NONE
1 TOKENS SCHEDULER DECODE_PROCESSING 4 NONE
1 COMPLETE SCHEDULER DECODE_COMPLETED 4 LENGTH
1 RELEASE FRONT_END EMPTY 0 NONE
2 SUBMIT FRONT_END PREFILL_PENDING 0 NONE
2 CLAIM SCHEDULER PREFILL_PROCESSING 0 NONE
2 ABORT SCHEDULER DECODE_COMPLETED 0 CANCELLED
2 RELEASE FRONT_END EMPTY 0 NONE
3 SUBMIT FRONT_END PREFILL_PENDING 0 NONE
"""


def good() -> list[Line]:
    names = ("generation", "event", "writer", "state", "tokens", "outcome")
    rows = [dict(zip(names, row.split(), strict=True)) for row in GOOD.splitlines()]
    numbers = ("generation", "tokens")
    return [{"slot": 7, **row, **{name: int(row[name]) for name in numbers}} for row in rows]


SPOILT: dict[str, tuple[int, dict[str, object] | None]] = {
    # what is wrong: the line that is changed (from 1), and how; None takes it out
    "claim missing": (2, None),
    "release missing": (8, None),
    "claimed by the front end": (2, {"writer": "FRONT_END"}),
    "no new token": (6, {"tokens": 1}),
    "a token lost in a pause": (4, {"tokens": 0}),
    "an end without an outcome": (7, {"outcome": "NONE"}),
    "completed as cancelled": (7, {"outcome": "CANCELLED"}),
    "aborted as stopped": (11, {"outcome": "STOP"}),
    "an earlier life's word": (10, {"generation": 1}),
    "a generation left out": (13, {"generation": 4}),
    "a life begins in the middle": (1, None),
}


def test_the_example_is_accepted(tmp_path: Path) -> None:
    assert call("accept.py", write(tmp_path / "good.jsonl", good())).returncode == 0


def test_a_spoilt_trace_is_refused(tmp_path: Path) -> None:
    """Each is refused at the first line that does not follow, with its slot and its event."""
    for name, (number, changes) in SPOILT.items():
        trace = good()
        if changes is None:
            del trace[number - 1]
        else:
            trace[number - 1] = {**trace[number - 1], **changes}
        done = call("accept.py", write(tmp_path / "spoilt.jsonl", trace))
        first = done.stdout.splitlines()[0]
        assert done.returncode == 1, f"{name}: {done.stdout}"
        assert f"spoilt.jsonl:{number}: slot 7" in first, f"{name}: {first}"
        assert trace[number - 1]["event"] in first, f"{name}: {first}"


def test_an_unreadable_trace_says_where(tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text('{"slot": 0, "state": "NOWHERE"}\n', encoding="utf-8")
    done = call("accept.py", str(path))
    assert done.returncode == 2
    assert f"{path}:1:" in done.stderr
