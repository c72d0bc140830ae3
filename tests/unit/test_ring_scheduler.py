"""The scheduler's side, slot by slot, over loopback memory."""

from __future__ import annotations

import pytest

from blink.ring_protocol.descriptor import Descriptor, cancel_word
from blink.ring_protocol.errors import LayoutMismatch, LocalViolation, PeerViolation
from blink.ring_protocol.layout import HEARTBEAT_OFFSET, SCHEDULER_GENERATION_OFFSET, Geometry
from blink.ring_protocol.loopback import LoopbackMemory
from blink.ring_protocol.ring import SchedulerRing
from blink.ring_protocol.slot import SlotWord, pack, unpack
from blink.ring_protocol.states import Outcome, State

RING = Geometry(slots=8, prompt_tokens_max=4, output_tokens_max=16)


@pytest.fixture
def memory() -> LoopbackMemory:
    return LoopbackMemory.formatted(RING)


@pytest.fixture
def ring(memory: LoopbackMemory) -> SchedulerRing:
    return SchedulerRing(memory, RING)


def submit(memory: LoopbackMemory, slot: int, *, output_max: int = 16, arrival_ns: int = 5) -> int:
    """What a front end's submission leaves in memory; returns the flag word."""
    generation = unpack(memory.load_acquire(RING.metadata_offset(slot))).generation + 1
    descriptor = Descriptor(arrival_ns, 0, 2, output_max, 0.0, 1.0, 0, 0, 0, generation)
    memory.write(RING.prompt_offset(slot), b"\1\0\0\0\2\0\0\0")
    memory.write(RING.descriptor_offset(slot), descriptor.pack())
    memory.store_release(RING.request_id_offset(slot), 100 + slot)
    word = pack(State.PREFILL_PENDING, Outcome.NONE, generation, 0)
    memory.store_release(RING.metadata_offset(slot), word)
    return word


def word_of(memory: LoopbackMemory, slot: int) -> SlotWord:
    return unpack(memory.load_acquire(RING.metadata_offset(slot)))


def test_memory_without_a_header_is_refused() -> None:
    with pytest.raises(LayoutMismatch):
        SchedulerRing(LoopbackMemory(RING.total_bytes), RING)


def test_a_scan_finds_pending_slots_in_order(memory: LoopbackMemory, ring: SchedulerRing) -> None:
    assert ring.scan() == []
    for slot in (6, 1, 4):
        submit(memory, slot)
    assert ring.scan() == [1, 4, 6]
    assert ring.scan([6, 2, 1]) == [1, 6]
    ring.claim(4)
    assert ring.scan() == [1, 6]


@pytest.mark.parametrize("tokens", [0, RING.output_tokens_max + 1])
def test_a_request_that_does_not_fit_its_slot_is_refused(
    memory: LoopbackMemory, ring: SchedulerRing, tokens: int
) -> None:
    """It would be written over its neighbours' tokens: ORDER."""
    submit(memory, 3, output_max=tokens)
    with pytest.raises(PeerViolation, match=f"holds {tokens} output tokens, a slot holds 1 to 16"):
        ring.claim(3)


def test_a_claim_returns_the_request_once(memory: LoopbackMemory, ring: SchedulerRing) -> None:
    submit(memory, 3, arrival_ns=77)
    peeked = ring.peek(3)
    claimed = ring.claim(3)
    assert claimed is not None
    assert claimed == peeked
    assert (claimed.slot, claimed.generation, claimed.request_id) == (3, 1, 103)
    assert (claimed.prompt_tokens, claimed.output_tokens_max, claimed.arrival_ns) == (2, 16, 77)
    assert ring.read_prompt(claimed) == b"\1\0\0\0\2\0\0\0"
    assert ring.claim(3) is None
    assert ring.peek(3) is None


def test_of_two_schedulers_one_wins(memory: LoopbackMemory, ring: SchedulerRing) -> None:
    seen = submit(memory, 3)
    other = SchedulerRing(memory, RING)
    assert other.claim(3, seen=seen) is not None
    assert ring.claim(3, seen=seen) is None
    with pytest.raises(LocalViolation, match="does not hold"):
        ring.first_token(3)


def test_a_claim_by_a_word_of_an_earlier_life_loses(
    memory: LoopbackMemory, ring: SchedulerRing
) -> None:
    seen = submit(memory, 3)
    ring.claim(3)
    ring.complete(3, Outcome.FAILED)
    memory.store_release(RING.metadata_offset(3), pack(State.EMPTY, Outcome.NONE, 1, 0))
    submit(memory, 3)
    assert ring.claim(3, seen=seen) is None
    assert ring.claim(3) is not None


def test_a_flag_that_overtook_its_descriptor_is_noticed(
    memory: LoopbackMemory, ring: SchedulerRing
) -> None:
    memory.store_release(RING.metadata_offset(2), pack(State.PREFILL_PENDING, Outcome.NONE, 9, 0))
    with pytest.raises(PeerViolation, match="overtook"):
        ring.claim(2)


def test_tokens_are_published_up_to_the_limit(memory: LoopbackMemory, ring: SchedulerRing) -> None:
    submit(memory, 0, output_max=5)
    ring.claim(0)
    ring.first_token(0)
    ring.advance(0, 3)
    with pytest.raises(LocalViolation, match="exceed the request's limit of 5"):
        ring.advance(0, 2)
    assert word_of(memory, 0) == (State.DECODE_PROCESSING, Outcome.NONE, 1, 4)
    ring.advance(0)
    ring.complete(0, Outcome.LENGTH)
    assert word_of(memory, 0) == (State.DECODE_COMPLETED, Outcome.LENGTH, 1, 5)


@pytest.mark.parametrize("count", [0, -1])
def test_no_tokens_is_not_an_advance(
    memory: LoopbackMemory, ring: SchedulerRing, count: int
) -> None:
    submit(memory, 0)
    ring.claim(0)
    ring.first_token(0)
    with pytest.raises(LocalViolation, match="do not go with"):
        ring.advance(0, count)
    assert word_of(memory, 0).tokens == 1


def test_a_paused_slot_stands_still(memory: LoopbackMemory, ring: SchedulerRing) -> None:
    for slot in (0, 1):
        submit(memory, slot)
        ring.claim(slot)
        ring.first_token(slot)
    ring.pause_all([0, 1])
    assert word_of(memory, 1) == (State.DECODE_PAUSED, Outcome.NONE, 1, 1)
    for forbidden in (ring.advance, ring.pause, lambda slot: ring.complete(slot, Outcome.STOP)):
        with pytest.raises(LocalViolation, match="DECODE_PAUSED"):
            forbidden(0)
    ring.resume_all([0, 1])
    ring.advance(0, 15)
    with pytest.raises(LocalViolation, match="limit"):
        ring.advance(0)
    with pytest.raises(LocalViolation, match="RESUME"):
        ring.resume(1)


def test_an_abort_ends_a_slot_wherever_it_is(memory: LoopbackMemory, ring: SchedulerRing) -> None:
    for slot in (0, 1, 2):
        submit(memory, slot)
        ring.claim(slot)
    for slot in (1, 2):
        ring.first_token(slot)
    ring.pause(2)
    for slot in (0, 1, 2):
        ring.complete(slot, Outcome.CANCELLED)
        assert word_of(memory, slot).outcome is Outcome.CANCELLED
        with pytest.raises(LocalViolation, match="does not hold"):
            ring.complete(slot, Outcome.CANCELLED)


def test_a_cancel_is_heard_by_the_generation_it_means(
    memory: LoopbackMemory, ring: SchedulerRing
) -> None:
    submit(memory, 0)
    ring.claim(0)
    assert not ring.cancelled(0)
    memory.store_release(RING.cancel_offset(0), cancel_word(2, Outcome.CANCELLED))
    assert not ring.cancelled(0)
    memory.store_release(RING.cancel_offset(0), cancel_word(1, Outcome.TIMED_OUT))
    assert ring.cancelled(0) is Outcome.TIMED_OUT


def test_tokens_are_written_ahead_of_the_count_and_never_behind_it(
    memory: LoopbackMemory, ring: SchedulerRing
) -> None:
    submit(memory, 1, output_max=3)
    ring.claim(1)
    ring.write_tokens(1, 0, b"\7\0\0\0\x08\0\0\0")
    ring.first_token(1)
    assert memory.read(RING.output_offset(1), 8) == b"\7\0\0\0\x08\0\0\0"
    with pytest.raises(LocalViolation, match="not within"):
        ring.write_tokens(1, 0, b"\0\0\0\0")
    with pytest.raises(LocalViolation, match="not within"):
        ring.write_tokens(1, 2, b"\0\0\0\0\0\0\0\0")


def test_a_relaunched_scheduler_goes_on_where_the_last_one_stopped(
    memory: LoopbackMemory, ring: SchedulerRing
) -> None:
    assert ring.adopt() == []
    for slot in (0, 1, 2, 3):
        submit(memory, slot)
    for slot in (0, 1, 2):
        ring.claim(slot)
    ring.first_token(0)
    ring.first_token(1)
    ring.pause(1)
    fresh = SchedulerRing(memory, RING)
    assert [claimed.request_id for claimed in fresh.adopt()] == [100, 101, 102]
    fresh.advance(0, 4)
    fresh.resume(1)
    fresh.first_token(2)
    assert fresh.scan() == [3]
    assert memory.load_acquire(SCHEDULER_GENERATION_OFFSET) == 2


def test_the_heart_beats(memory: LoopbackMemory, ring: SchedulerRing) -> None:
    ring.beat()
    ring.beat()
    assert memory.load_acquire(HEARTBEAT_OFFSET) == 2


def test_a_word_that_is_none_is_the_peers_fault(
    memory: LoopbackMemory, ring: SchedulerRing
) -> None:
    memory.store_release(RING.metadata_offset(5), 0xFF)
    with pytest.raises(PeerViolation, match="not a flag word"):
        ring.adopt()
