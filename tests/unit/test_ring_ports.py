"""Loopback and the middlewares: what they let pass, what they refuse, what they spoil."""

from __future__ import annotations

import pytest

from blink.ring_protocol.errors import LocalViolation, QueueFull
from blink.ring_protocol.events import CasLost, Completed, Posted, SlotMoved, TraceEvent
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.loopback import LoopbackMemory, LoopbackTransport
from blink.ring_protocol.middleware import (
    Break,
    Delay,
    Fault,
    FaultyTransport,
    Overtake,
    Repeat,
    TraceMemory,
    TraceTransport,
    may_swap,
)
from blink.ring_protocol.ports import Cas, Completion, Op, Publish, Read, Status, Write
from blink.ring_protocol.slot import pack
from blink.ring_protocol.states import Event, Outcome, State, Writer

RING = Geometry(slots=2, prompt_tokens_max=4, output_tokens_max=4)


def faulty(memory: LoopbackMemory, *faults: Fault | None, depth: int = 8) -> FaultyTransport:
    """A faulty transport with one decision for each operation, and none after the last."""
    decisions = iter(faults)
    return FaultyTransport(LoopbackTransport(memory, depth), lambda op: next(decisions, None))


# --- loopback --------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1, 4, -8])
def test_a_word_is_aligned(offset: int) -> None:
    memory = LoopbackMemory(64)
    with pytest.raises(ValueError, match=str(offset)):
        memory.load_acquire(offset)
    with pytest.raises(ValueError, match=str(offset)):
        memory.store_release(offset, 1)


def test_memory_ends() -> None:
    memory = LoopbackMemory(60)
    assert len(memory) == 64
    with pytest.raises(IndexError):
        memory.load_relaxed(64)
    for offset, length in ((60, 5), (-1, 1), (0, -1)):
        with pytest.raises(IndexError):
            memory.read(offset, length)


def test_memory_may_be_somebody_elses() -> None:
    mine = bytearray(32)
    LoopbackMemory(mine).store_release(8, 0x0102)
    assert mine[8:10] == b"\2\1"


def test_a_view_shows_later_stores() -> None:
    memory = LoopbackMemory(16)
    view = memory.view(8, 8)
    memory.store_release(8, 7)
    assert view[0] == 7


def test_only_tagged_operations_complete_and_in_order() -> None:
    transport = LoopbackTransport(LoopbackMemory(64))
    transport.post([Write(0, b"abc"), Read(0, 3, 1), Publish(8, 5), Cas(8, 5, 6, 2)])
    assert transport.poll(1) == [Completion(1, Status.OK, data=b"abc")]
    assert transport.poll(9) == [Completion(2, Status.OK, old=5)]
    assert transport.poll(9) == []


def test_a_failed_operation_flushes_all_that_follow() -> None:
    memory = LoopbackMemory(64)
    transport = LoopbackTransport(memory)
    transport.post([Write(0, b"a", 1), Publish(3, 1, 2), Write(0, b"b", 3), Write(0, b"c")])
    transport.post([Write(0, b"d", 4)])
    assert [(done.tag, done.status.name) for done in transport.poll(9)] == [
        (1, "OK"),
        (2, "REMOTE_ACCESS"),
        (3, "FLUSHED"),
        (None, "FLUSHED"),
        (4, "FLUSHED"),
    ]
    assert memory.read(0, 1) == b"a"


@pytest.mark.parametrize("op", [Write(60, b"12345", 1), Read(65, 1, 1), Cas(64, 0, 1, 1)])
def test_beyond_the_end_is_a_failed_operation_not_an_exception(op: Op) -> None:
    transport = LoopbackTransport(LoopbackMemory(64))
    transport.post([op])
    assert transport.poll(1) == [Completion(1, Status.REMOTE_ACCESS)]


def test_a_full_queue_takes_nothing() -> None:
    memory = LoopbackMemory(64)
    for transport in (LoopbackTransport(memory, depth=2), faulty(memory, depth=2)):
        transport.post([Write(0, b"a", 1)])
        with pytest.raises(QueueFull, match="2 operations, 1 places"):
            transport.post([Write(0, b"b", 2), Write(0, b"c", 3)])
        transport.poll(9)
        assert memory.read(0, 1) == b"a"


# --- watching --------------------------------------------------------------------------------


def test_a_trace_tells_what_the_scheduler_published() -> None:
    seen: list[TraceEvent] = []
    inner = LoopbackMemory.formatted(RING)
    memory = TraceMemory(inner, RING, seen.append)
    flag = RING.metadata_offset(1)
    pending, processing = (
        pack(state, Outcome.NONE, 1, 0)
        for state in (State.PREFILL_PENDING, State.PREFILL_PROCESSING)
    )
    inner.store_release(flag, pending)
    memory.cas(flag, pending, processing)
    memory.cas(flag, pending, processing)
    memory.store_release(flag, pack(State.DECODE_PROCESSING, Outcome.NONE, 1, 1))
    memory.store_release(RING.cancel_offset(1), 5)
    assert seen == [
        SlotMoved(1, 1, Event.CLAIM, Writer.SCHEDULER, State.PREFILL_PROCESSING, 0, Outcome.NONE),
        CasLost(1, pending, processing),
        SlotMoved(
            1, 1, Event.FIRST_TOKEN, Writer.SCHEDULER, State.DECODE_PROCESSING, 1, Outcome.NONE
        ),
    ]


def test_a_trace_refuses_what_the_table_does_not_explain() -> None:
    inner = LoopbackMemory.formatted(RING)
    memory = TraceMemory(inner, RING, lambda event: None)
    flag = RING.metadata_offset(0)
    for after in (
        pack(State.DECODE_PROCESSING, Outcome.NONE, 1, 1),  # no transition
        pack(State.PREFILL_PENDING, Outcome.NONE, 1, 0),  # the front end's
        pack(State.PREFILL_PENDING, Outcome.NONE, 2, 0),  # nobody's
    ):
        with pytest.raises(LocalViolation, match="slot 0"):
            memory.store_release(flag, after)
        assert inner.load_acquire(flag) == 0


def test_a_trace_tells_what_the_front_end_posted() -> None:
    seen: list[TraceEvent] = []
    inner = LoopbackTransport(LoopbackMemory.formatted(RING))
    transport = TraceTransport(inner, RING, seen.append)
    word = pack(State.PREFILL_PENDING, Outcome.NONE, 1, 0)
    transport.post([Write(4096, bytes(3)), Publish(RING.metadata_offset(0), word), Read(0, 9, 1)])
    transport.poll(4)
    assert seen == [
        Posted(ops=3, write_bytes=11, read_bytes=9),
        SlotMoved(0, 1, Event.SUBMIT, Writer.FRONT_END, State.PREFILL_PENDING, 0, Outcome.NONE),
        Completed(1, Status.OK),
    ]
    with pytest.raises(LocalViolation, match="DECODE_PAUSED, which is not its to write"):
        transport.post(
            [Publish(RING.metadata_offset(0), pack(State.DECODE_PAUSED, Outcome.NONE, 1, 1))]
        )


# --- spoiling --------------------------------------------------------------------------------


def test_a_delay_holds_back_everything_behind_it() -> None:
    memory = LoopbackMemory(64)
    transport = faulty(memory, None, Delay(2))
    transport.post([Write(0, b"a", 1), Write(1, b"b", 2), Write(2, b"c", 3)])
    landed = []
    for _ in range(4):
        tags = [done.tag for done in transport.poll(9)]
        landed.append((tags, memory.read(0, 3)))
    assert landed == [([1], b"a\0\0"), ([], b"a\0\0"), ([2, 3], b"abc"), ([], b"abc")]


def test_disjoint_writes_may_swap_and_nothing_else_may() -> None:
    first, overlapping, apart = Write(0, b"ab"), Write(1, b"cd"), Write(2, b"ef")
    assert may_swap(first, apart)
    assert may_swap(apart, first)
    assert not may_swap(first, overlapping)
    assert not may_swap(first, Write(2, b"ef", 1))
    assert not may_swap(first, Publish(8, 1))
    assert not may_swap(Publish(8, 1), first)
    assert not may_swap(first, Read(8, 1))


class WriteLog(LoopbackMemory):
    """Memory that remembers in which order it was written."""

    __slots__ = ("log",)

    def __init__(self, memory: int) -> None:
        super().__init__(memory)
        self.log = b""

    def write(self, offset: int, data: bytes | memoryview) -> None:
        self.log += data
        super().write(offset, data)

    def store_release(self, offset: int, value: int) -> None:
        self.log += b"!"
        super().store_release(offset, value)


def test_an_overtaken_write_lands_later_and_never_behind_a_flag() -> None:
    memory = WriteLog(64)
    transport = faulty(memory, Overtake(), None, Overtake(), None, Overtake())
    transport.post([Write(0, b"a"), Write(1, b"b"), Write(2, b"c"), Publish(8, 1), Write(0, b"d")])
    transport.poll(9)
    assert memory.log == b"bac!d"
    assert memory.read(0, 3) == b"dbc"


def test_a_repeated_read_answers_with_the_past() -> None:
    memory = LoopbackMemory(64)
    transport = faulty(memory, None, None, Repeat(), None)
    for tag, letter in ((1, b"a"), (2, b"b")):
        transport.post([Write(0, letter), Read(0, 1, tag)])
        (done,) = transport.poll(9)
        assert done.tag == tag
    memory.write(0, b"c")
    transport.post([Read(0, 1, 3)])
    assert transport.poll(9)[0].data == b"c"
    transport = faulty(memory, None, Repeat())
    transport.post([Read(0, 1, 1)])
    transport.poll(9)
    memory.write(0, b"d")
    transport.post([Read(0, 1, 2)])
    assert transport.poll(9) == [Completion(2, Status.OK, data=b"c")]


def test_a_break_fails_one_operation_and_flushes_the_rest() -> None:
    memory = LoopbackMemory(64)
    transport = faulty(memory, None, Break(), None)
    transport.post([Write(0, b"a", 1), Write(1, b"b", 2), Write(2, b"c")])
    transport.post([Write(3, b"d", 4)])
    assert [(done.tag, done.status.name) for done in transport.poll(9)] == [
        (1, "OK"),
        (2, "UNREACHABLE"),
        (None, "FLUSHED"),
        (4, "FLUSHED"),
    ]
    assert memory.read(0, 4) == b"a\0\0\0"
