"""The reference scheduler by its own loop: nobody but it decides what is next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from blink.hw.host.scheduler import HostScheduler
from blink.model.policy import GraphCache, Limits
from blink.model.policy.blocks import BlockPool
from blink.model.scheduler import ResidentScheduler
from blink.ring_protocol.descriptor import Descriptor
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.loopback import LoopbackMemory
from blink.ring_protocol.ring import SchedulerRing
from blink.ring_protocol.slot import pack, unpack
from blink.ring_protocol.states import Outcome, State
from blink.ring_protocol.window import LaunchWindow
from blink.testing.explorer.parts import Config
from blink.testing.explorer.world import World


def test_it_serves_a_request_from_scan_to_outcome_by_steps_alone() -> None:
    world = World(Config(slots=1, front_ends=1, requests=1, threads=1))
    world.do(("submit", 0, 0))
    for _ in range(60):
        world.scheduler.step()
        if world.gpu.running and not world.gpu.done:
            world.gpu.finish()
    assert world.scheduler.idle
    world._check_moves()  # what was written, for the book
    world.do(("sample", 0, 0))
    assert world.books[0].outcome is Outcome.STOP
    assert world.books[0].received == world.config.output_of(0)
    world.check_done()


RING = Geometry(slots=1, prompt_tokens_max=2, output_tokens_max=40)
BLOCKS, BLOCK_TOKENS = 4, 2
STOP_TOKEN = 7


class Answering:
    """Every sequence gets token 1, then STOP_TOKEN as its last of `tokens`."""

    def __init__(self, tokens: int) -> None:
        self.left = tokens

    def launch(self, graph: int, exec_index: int, slots: Sequence[int]) -> None:
        self.left -= 1

    def finished(self) -> bool:
        return True

    def token(self, slot: int) -> int:
        return 1 if self.left else STOP_TOKEN

    def tail_launch(self) -> None: ...


@pytest.mark.parametrize("make", [ResidentScheduler, HostScheduler], ids=["python", "c++"])
@pytest.mark.parametrize(
    ("answer_tokens", "outcome", "tokens"),
    [
        pytest.param(7, Outcome.STOP, 7, id="ends-early"),
        pytest.param(9, Outcome.FAILED, 7, id="outgrows-the-cache"),
    ],
)
@pytest.mark.usefixtures("host_build")
def test_a_limit_beyond_the_cache_is_served_until_the_cache_is_full(
    make: Callable[..., ResidentScheduler], answer_tokens: int, outcome: Outcome, tokens: int
) -> None:
    """On an H200, specs/faults/kv_pressure.toml once refused each of its requests for its limit.

    The cache holds 8 tokens: the prompt's 2, and all of the answer but its last.
    """
    memory = LoopbackMemory.formatted(RING)
    wanted = Descriptor(0, 0, 2, RING.output_tokens_max, 0.0, 1.0, 0, STOP_TOKEN, 0, 1)
    memory.write(RING.descriptor_offset(0), wanted.pack())
    flag = RING.metadata_offset(0)
    memory.store_release(flag, pack(State.PREFILL_PENDING, Outcome.NONE, 1, 0))
    scheduler = make(
        memory,
        SchedulerRing(memory, RING),
        Answering(answer_tokens),
        BlockPool(BLOCKS, BLOCK_TOKENS),
        Limits(1, 1, 2),
        GraphCache(1, 2),
        LaunchWindow(3),
    )
    scheduler.step()
    while not scheduler.idle:
        scheduler.step()
    assert unpack(memory.load_acquire(flag)) == (State.DECODE_COMPLETED, outcome, 1, tokens)
    assert scheduler.blocks.blocks_free == BLOCKS
