"""The ring keeps its promises on every machine, and the check would notice if it did not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, settings

from blink.ring_protocol.errors import ProtocolViolation
from blink.ring_protocol.events import CasLost, SlotMoved, TraceEvent
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.middleware import TraceMemory, TraceTransport
from blink.ring_protocol.states import Event, Outcome
from blink.testing.canary import CasAlwaysWins, FlagOvertakesPayload, LosesOutput
from blink.testing.conformance import MemoryMaker, RingMemory, check_ring, default_settings

CAUGHT = (AssertionError, ProtocolViolation)

# A canary must be caught, not explained: finding it is enough, shrinking it is not needed.
QUICK = settings(
    default_settings(),
    max_examples=1000,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    database=None,
    derandomize=True,
)


def test_the_ring_conforms(ring_memory_maker: MemoryMaker) -> None:
    check_ring(ring_memory_maker)


def test_the_search_goes_deep(ring_memory_maker: MemoryMaker) -> None:
    """A search that finds nothing must have looked: at every event, at lost claims, at reuse."""
    seen: list[TraceEvent] = []

    def watched(geometry: Geometry) -> RingMemory:
        world = ring_memory_maker(geometry)
        return replace(
            world,
            memory=TraceMemory(world.memory, geometry, seen.append),
            transport=TraceTransport(world.transport, geometry, seen.append),
        )

    check_ring(watched, settings=settings(default_settings(), max_examples=100, derandomize=True))
    moves = [event for event in seen if isinstance(event, SlotMoved)]
    assert {move.event for move in moves} == set(Event)
    assert {move.outcome for move in moves} == set(Outcome) - {Outcome.REJECTED}
    assert any(isinstance(event, CasLost) for event in seen)
    assert max(move.generation for move in moves) >= 2, "hardly a slot was used again"


def test_a_cas_that_always_wins_is_caught(ring_memory_maker: MemoryMaker) -> None:
    def sick(geometry: Geometry) -> RingMemory:
        world = ring_memory_maker(geometry)
        return replace(world, memory=CasAlwaysWins(world.memory, geometry))

    with pytest.raises(CAUGHT):
        check_ring(sick, settings=QUICK)


def test_lost_output_is_caught(ring_memory_maker: MemoryMaker) -> None:
    def sick(geometry: Geometry) -> RingMemory:
        world = ring_memory_maker(geometry)
        return replace(world, memory=LosesOutput(world.memory, geometry))

    with pytest.raises(CAUGHT):
        check_ring(sick, settings=QUICK)


def test_a_flag_that_overtakes_its_payload_is_caught(ring_memory_maker: MemoryMaker) -> None:
    def sick(geometry: Geometry) -> RingMemory:
        world = ring_memory_maker(geometry)
        return replace(world, transport=FlagOvertakesPayload(world.transport))

    with pytest.raises(CAUGHT):
        check_ring(sick, settings=QUICK)
