"""The scheduler on a real GPU: it serves, and what goes wrong is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blink.hw.cuda.memory import CudaTransport, GpuMemory
from blink.hw.cuda.null_engine import NullEngine
from blink.hw.cuda.scheduler import FIRE_AND_FORGET, TAIL_CHAIN, GpuScheduler
from blink.model.scheduler import DECODE_GRAPH, PREFILL_GRAPH
from blink.ring_protocol.errors import PeerViolation
from blink.ring_protocol.slot import pack, unpack
from blink.ring_protocol.states import Outcome, State
from tests.hw.cuda.serving import RING, Client, config_of

pytestmark = [pytest.mark.hw, pytest.mark.usefixtures("gpu")]

MODES = {
    "fire and forget": {DECODE_GRAPH: FIRE_AND_FORGET, PREFILL_GRAPH: FIRE_AND_FORGET},
    "tail chain": {DECODE_GRAPH: TAIL_CHAIN, PREFILL_GRAPH: TAIL_CHAIN},
    "each its best": {DECODE_GRAPH: FIRE_AND_FORGET, PREFILL_GRAPH: TAIL_CHAIN},
}


def engine() -> NullEngine:
    """A step takes long enough for a client to leave meanwhile."""
    return NullEngine(lambda shape: (40_000, 0.0, 0.0))


def client_of(scheduler: GpuScheduler, requests: int) -> Client:
    transport = CudaTransport(scheduler.ring.pointer, RING.total_bytes)
    return Client(RING, transport, requests, cancel_one_in=2)


def states_of(memory: GpuMemory) -> set[State]:
    return {
        unpack(memory.load_acquire(RING.metadata_offset(slot))).state for slot in range(RING.slots)
    }


def serve(scheduler: GpuScheduler, client: Client) -> None:
    while not client.is_done:
        for _ in range(64):
            client.turn()
        scheduler.check()


@pytest.mark.parametrize("modes", MODES.values(), ids=MODES)
@pytest.mark.parametrize(("window", "blocks"), [(120, 80), (3, 10)], ids=["roomy", "tight"])
def test_it_serves(modes: dict[int, int], window: int, blocks: int) -> None:
    config = config_of(modes, window=window, blocks=blocks)
    with GpuScheduler(config, engine()) as scheduler:
        client = Client(
            RING, CudaTransport(scheduler.ring.pointer, RING.total_bytes), 300, cancel_one_in=2
        )
        scheduler.start()
        serve(scheduler, client)
        scheduler.stop()
        report = scheduler.check()
        memory = GpuMemory(scheduler.ring.pointer, RING)
        assert states_of(memory) == {State.EMPTY}
        assert report.blocks_free == blocks, "KV: a block leaked"
        steps = scheduler.steps()
    assert sum(client.outcomes.values()) == 300
    assert client.outcomes[Outcome.STOP] > 0 and client.outcomes[Outcome.CANCELLED] > 0
    assert report.relaunches > 0 or modes is MODES["fire and forget"]
    assert len(steps) == report.steps == report.launches_total
    for step in steps:
        assert step.decided_ns <= step.start_ns <= step.end_ns <= step.seen_ns, "CLOCK"


def test_a_flag_before_its_payload_stops_it() -> None:
    with GpuScheduler(config_of(MODES["each its best"]), engine()) as scheduler:
        scheduler.start()
        memory = GpuMemory(scheduler.ring.pointer, RING)
        word = pack(State.PREFILL_PENDING, Outcome.NONE, 1, 0)
        memory.store_release(RING.metadata_offset(5), word)
        with pytest.raises(PeerViolation, match=r"slot 5.*a flag overtook its payload"):
            until_it_fails(scheduler.check)


def until_it_fails(check: Callable[[], object]) -> None:
    for _ in range(10_000):
        check()


def test_it_starts_again_where_it_stopped() -> None:
    with GpuScheduler(config_of(MODES["each its best"]), engine()) as scheduler:
        client = client_of(scheduler, 200)
        for _ in range(5):
            scheduler.start()
            for _ in range(40):
                client.turn()
            scheduler.stop()
        scheduler.start()
        serve(scheduler, client)
        scheduler.stop()
        assert scheduler.check().blocks_free == 80
