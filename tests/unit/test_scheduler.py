"""The reference scheduler by its own loop: nobody but it decides what is next."""

from __future__ import annotations

from blink.ring_protocol.states import Outcome
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
