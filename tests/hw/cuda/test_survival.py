"""What a server must live through: many requests, a killed front end, a hang."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from blink.hw.cuda.memory import CudaTransport, GpuMemory, export_ring
from blink.hw.cuda.null_engine import NullEngine
from blink.hw.cuda.scheduler import GpuScheduler
from blink.ring_protocol.slot import unpack
from blink.ring_protocol.states import Outcome, State
from tests.hw.cuda.serving import RING, Client, config_of

pytestmark = [pytest.mark.hw, pytest.mark.usefixtures("gpu")]

ROOT = Path(__file__).resolve().parents[3]
MANY = 100_000


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process of process.py; none outlives its test."""
    with ExitStack() as started:

        def run(*arguments: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.hw.cuda.process", *arguments],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.enter_context(process)
            started.callback(process.kill)
            return process

        yield run


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    found = process.stdout.readline().strip()
    assert found, process.communicate()
    return found


@pytest.fixture
def scheduler() -> Iterator[GpuScheduler]:
    engine = NullEngine(lambda shape: (30_000, 0.0, 0.0))
    with GpuScheduler(config_of(), engine) as made:
        made.start()
        yield made
        made.stop()
        memory = GpuMemory(made.ring.pointer, RING)
        words = [memory.load_acquire(RING.metadata_offset(slot)) for slot in range(RING.slots)]
        assert {unpack(word).state for word in words} == {State.EMPTY}
        assert made.check().blocks_free == made.config.blocks_total, "KV: a block leaked"


@pytest.mark.timeout(300)
def test_a_hundred_thousand_requests_leave_nothing(scheduler: GpuScheduler) -> None:
    transport = CudaTransport(scheduler.ring.pointer, RING.total_bytes)
    client = Client(RING, transport, MANY, cancel_one_in=3)
    while not client.is_done:
        for _ in range(256):
            client.turn()
        scheduler.check()
    assert sum(client.outcomes.values()) == MANY
    assert client.outcomes[Outcome.CANCELLED] > 0


def test_a_front_end_in_another_process(scheduler: GpuScheduler, start: Start) -> None:
    process = start("front-end", export_ring(scheduler.ring.pointer).hex(), "500", "1")
    assert line_of(process) == "orphans 0"
    assert line_of(process) == "ended 500"
    assert process.wait() == 0


def test_a_killed_front_end_leaks_nothing(scheduler: GpuScheduler, start: Start) -> None:
    handle = export_ring(scheduler.ring.pointer).hex()
    killed = start("front-end", handle, "1000000", "1")
    assert line_of(killed) == "orphans 0"
    while scheduler.check().steps < 200:
        pass
    killed.kill()
    killed.wait()
    heir = start("front-end", handle, "100", "2")
    assert line_of(heir).startswith("orphans ")
    assert line_of(heir) == "ended 100"
    assert heir.wait() == 0


def test_a_hang_ends_in_a_clear_error(start: Start) -> None:
    process = start("hang")
    assert line_of(process).startswith("hung: no heartbeat for 0.5 s: the scheduler has launched 1")
    assert process.wait() == 1
