"""The C++ core on real threads, under load: nothing breaks, and what is broken on purpose is found.

Ten million lifecycles are benchmarks/stress.py's; these are enough for every planted bug.
"""

from __future__ import annotations

import ctypes as c
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blink.hw.host import stress
from blink.hw.host.core import Core
from blink.hw.kernel.status import Status
from blink.ring_protocol.descriptor import Descriptor
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.loopback import LoopbackMemory
from blink.ring_protocol.slot import pack
from blink.ring_protocol.states import Event, Outcome, State
from tests.formal.traces import line

pytestmark = pytest.mark.usefixtures("host_build")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("processes", [0, 1], ids=["threads", "processes"])
@pytest.mark.parametrize("contested", [0, 1], ids=["dealt out", "contested"])
def test_nothing_breaks(processes: int, contested: int) -> None:
    report = stress.run({"lifecycles": 40_000, "processes": processes, "contested": contested})
    assert report["violations"] == 0, report["violation"]
    assert report["lifecycles"] == 40_000
    assert report["cancelled"] > 0
    assert report["relaunches"] > 0, "the window was never used up"


def test_one_scanner_and_one_slot() -> None:
    shape = {"slots": 1, "front-ends": 1, "scanners": 1, "threads": 1, "window": 2, "blocks": 3}
    report = stress.run({"lifecycles": 500, **shape})
    assert (report["lifecycles"], report["violations"]) == (500, 0), report["violation"]


FOUND_AS = {
    "cas_always_wins": ("ORDER", "SLOT", "OWNER", "WINDOW", "KV", "CONSERVE"),
    "lost_output": ("ORDER",),
    "flag_before_payload": ("SLOT", "CAUSAL"),
}
"""Plant: the invariants that may break first; which one does is the race's to say."""


class WonByAll(LoopbackMemory):
    """A compare-and-swap that always wins."""

    def cas(self, offset: int, expected: int, desired: int) -> int:
        self.store_release(offset, desired)
        return expected


def test_more_claims_than_slots_stop_the_scheduler() -> None:
    """They would be written behind the queue's end."""
    ring = Geometry(slots=1, prompt_tokens_max=1, output_tokens_max=1)
    memory = WonByAll.formatted(ring)
    core = Core(memory, ring)
    memory.write(ring.descriptor_offset(0), Descriptor(0, 0, 1, 1, 0, 1, 0, 0, 0, 1).pack())
    pending = pack(State.PREFILL_PENDING, Outcome.NONE, 1, 0)
    for _ in range(2):
        core.value("scheduler_claim", 0, pending)
    assert core.call("scheduler_fault", c.c_uint32()) is Status.CLAIMED_TWICE


@pytest.mark.canary
@pytest.mark.parametrize("plant", FOUND_AS)
def test_a_planted_bug_is_found(plant: str) -> None:
    report = stress.run({"lifecycles": 200_000}, plant=plant)
    assert report["violations"] > 0, f"{plant} survives {report}"
    assert report["violation"].startswith(FOUND_AS[plant]), report["violation"]


@pytest.mark.canary
def test_a_store_without_release_is_found_by_thread_sanitizer() -> None:
    """No x86 machine reorders two stores, so that only a race detector can see it."""
    with pytest.raises(stress.StressFailed, match="data race"):
        stress.run({"lifecycles": 2_000}, sanitizer="tsan", plant="relaxed_store")


def test_every_plant_has_its_test() -> None:
    assert set(stress.PLANTS) - {"none"} == {*FOUND_AS, "relaxed_store"}


# --- the formal model --------------------------------------------------------------------------


def logged(tmp_path: Path, **options: Any) -> list[dict[str, Any]]:
    log = tmp_path / "stress.log"
    report = stress.run({"lifecycles": 2_000, "log": 100_000, "log-path": str(log), **options})
    assert report["violations"] == 0, report["violation"]
    return [line(move) for move in stress.moves(log)]


@pytest.mark.parametrize("processes", [0, 1], ids=["threads", "processes"])
def test_the_formal_model_accepts_what_the_threads_did(
    tmp_path: Path, formal_tools: None, processes: int
) -> None:
    lines = logged(tmp_path, processes=processes)
    assert {each["event"] for each in lines} == {event.name for event in Event}
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(ROOT / "formal" / "accept.py"), str(trace)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"accepted; {len(lines)} events")


def test_a_log_that_no_event_explains_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "stress.log"
    stress.run({"lifecycles": 100, "log": 10_000, "log-path": str(log)})
    whole = log.read_bytes()
    log.write_bytes(whole[16:])  # its first event is lost
    with pytest.raises(ValueError, match="SLOT: slot"):
        list(stress.moves(log))
