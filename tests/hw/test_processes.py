"""Front ends in processes of their own, the C++ scheduler on threads of its own, one ring."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blink.hw.host.memory import SharedMemory
from blink.hw.host.threads import Graph, HostThreads
from blink.model.policy import Limits
from blink.ring_protocol.constants import TOKEN_BYTES
from blink.ring_protocol.errors import PeerViolation
from blink.ring_protocol.slot import pack, unpack
from blink.ring_protocol.states import Outcome, State
from tests.hw.front_end_process import geometry_of, packed, prompt_of, token_of

pytestmark = pytest.mark.usefixtures("host_build")

ROOT = Path(__file__).resolve().parents[2]
SLOTS = 16
LOWER, UPPER = range(8), range(8, 16)
BLOCKS = 24
LIMITS = Limits(batch_max=8, prefill_batch_max=4, prefill_tokens_max=64)


def scheduler_of(memory: SharedMemory) -> HostThreads:
    return HostThreads(
        memory, limits=LIMITS, window=6, blocks_total=BLOCKS, block_tokens=2, contested=True
    )


Start = Callable[[SharedMemory, range, int, int], "subprocess.Popen[str]"]


@pytest.fixture
def front_end() -> Iterator[Start]:
    """Starts a front end for some slots, requests and a seed; none outlives its test."""
    started: list[subprocess.Popen[str]] = []

    def start(memory: SharedMemory, own: range, requests: int, seed: int) -> subprocess.Popen[str]:
        numbers = (memory.fd, SLOTS, own.start, own.stop - 1, requests, seed)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.hw.front_end_process", *map(str, numbers)],
            pass_fds=[memory.fd],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def compute(memory: SharedMemory, graph: Graph) -> dict[int, int]:
    """The model's next tokens; what a GPU would not survive is an assertion."""
    blocks = [block for each in graph.sequences for block in each.blocks]
    assert len(blocks) == len(set(blocks)), f"KV: two sequences share a block: {graph}"
    for each in graph.sequences:
        assert each.blocks, f"KV: slot {each.slot} has no block"
        if graph.prefill:
            offset = memory.geometry.prompt_offset(each.slot)
            prompt = memory.read(offset, each.prompt_tokens * TOKEN_BYTES)
            assert prompt == packed(prompt_of(each.request_id)), f"CAUSAL: slot {each.slot}"
    return {each.slot: token_of(each.request_id, each.tokens) for each in graph.sequences}


def serve(
    memory: SharedMemory,
    scheduler: HostThreads,
    processes: list[subprocess.Popen[str]],
    until: Callable[[Graph], bool] = lambda graph: False,
) -> None:
    """Compute until the processes have ended, or such a graph runs: it is left running."""
    while any(each.poll() is None for each in processes):
        graph = scheduler.running()
        if graph is None:
            os.sched_yield()
        elif until(graph):
            return
        else:
            scheduler.finish(compute(memory, graph))


def serve_for_ever(scheduler: HostThreads) -> None:
    while scheduler.running() is None:
        os.sched_yield()


def decodes_in(graph: Graph, slots: range) -> bool:
    return not graph.prefill and any(each.slot in slots for each in graph.sequences)


def orphans_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    found: int = json.loads(process.stdout.readline())["orphans"]
    return found


def report(process: subprocess.Popen[str]) -> dict[str, int]:
    """How many requests ended in each way."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    found: dict[str, int] = json.loads(out.splitlines()[-1])["outcomes"]
    return found


def states_of(memory: SharedMemory) -> set[State]:
    ring = memory.geometry
    words = [memory.load_acquire(ring.metadata_offset(slot)) for slot in range(ring.slots)]
    return {unpack(word).state for word in words}


def test_two_processes_share_a_ring(front_end: Start) -> None:
    memory = SharedMemory.formatted(geometry_of(SLOTS))
    with scheduler_of(memory) as scheduler:
        processes = [front_end(memory, LOWER, 150, 1), front_end(memory, UPPER, 150, 2)]
        serve(memory, scheduler, processes)
        reports = [report(each) for each in processes]
    for each in reports:
        assert sum(each.values()) == 150
        assert set(each) == {"STOP", "LENGTH", "CANCELLED"}
    assert states_of(memory) == {State.EMPTY}
    assert scheduler.blocks_free() == BLOCKS, "KV: a block leaked"


def test_a_killed_front_end_leaks_nothing(front_end: Start) -> None:
    memory = SharedMemory.formatted(geometry_of(SLOTS))
    with scheduler_of(memory) as scheduler:
        neighbour = front_end(memory, UPPER, 60, 2)
        killed = front_end(memory, LOWER, 100_000, 1)
        serve(memory, scheduler, [killed], lambda graph: decodes_in(graph, LOWER))
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        heir = front_end(memory, LOWER, 60, 3)
        assert orphans_of(heir) > 0, "a graph runs with its predecessor's requests"
        serve(memory, scheduler, [heir, neighbour])
        reports = [report(heir), report(neighbour)]
    assert [sum(each.values()) for each in reports] == [60, 60]
    assert states_of(memory) == {State.EMPTY}
    assert scheduler.blocks_free() == BLOCKS, "KV: a block leaked"


def test_what_stops_the_scheduler_is_told() -> None:
    memory = SharedMemory.formatted(geometry_of(SLOTS))
    with scheduler_of(memory) as scheduler:
        # A flag without a payload: the descriptor is of generation 0.
        word = pack(State.PREFILL_PENDING, Outcome.NONE, 1, 0)
        memory.store_release(memory.geometry.metadata_offset(5), word)
        with pytest.raises(PeerViolation, match=r"slot 5.*a flag overtook its payload"):
            serve_for_ever(scheduler)
