"""The front end's side, without a link: what it posts, what it makes of the answers."""

from __future__ import annotations

import pytest

from blink.ring_protocol.constants import HEADER_BYTES
from blink.ring_protocol.errors import (
    LocalViolation,
    OutputTooLong,
    PeerViolation,
    PromptTooLong,
    RequestRefused,
    TransportFailed,
)
from blink.ring_protocol.front_end import (
    BackPressure,
    FrontEnd,
    Progress,
    SlotTracker,
    Submitted,
    TokenReader,
    Update,
)
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.loopback import LoopbackMemory, LoopbackTransport
from blink.ring_protocol.middleware import Break, FaultyTransport
from blink.ring_protocol.ports import Completion, Op, Publish, Read, Status, Transport, Write
from blink.ring_protocol.ring import SchedulerRing
from blink.ring_protocol.slot import pack, unpack
from blink.ring_protocol.states import Outcome, State

RING = Geometry(slots=4, prompt_tokens_max=8, output_tokens_max=8)
PROMPT = b"\1\0\0\0\2\0\0\0"


class Pair:
    """A front end and a scheduler on one loopback ring, and a link that is pumped by hand."""

    def __init__(self, *, payload: bool = True, transport: Transport | None = None) -> None:
        self.memory = LoopbackMemory.formatted(RING)
        self.transport = transport or LoopbackTransport(self.memory)
        self.ring = SchedulerRing(self.memory, RING)
        self.front_end = FrontEnd(RING, TokenReader(10, 80, 64), payload=payload)
        self.prompt = PROMPT if payload else None
        self.now_ns = 0

    def submit(self, request_id: int, deadline_ns: int | None = None) -> Submitted:
        result = self.front_end.submit(
            request_id, 2, 8, now_ns=self.now_ns, prompt=self.prompt, deadline_ns=deadline_ns
        )
        assert isinstance(result, Submitted)
        return result

    def pump(self) -> list[Update]:
        """Post what waits, read the metadata, and take every answer."""
        self.now_ns += 10
        self.transport.post(self.front_end.take_ops(64))
        self.transport.post([self.front_end.read_metadata(self.now_ns)])
        updates: list[Update] = []
        while done := self.transport.poll(64):
            for completion in done:
                updates += self.front_end.on_completion(completion)
            self.transport.post(self.front_end.take_ops(64))
        return updates

    def start(self, request_id: int) -> int:
        """Submit a request and bring it to its first token; returns its slot."""
        slot = self.submit(request_id).slot
        self.pump()
        self.ring.claim(slot)
        self.ring.write_tokens(slot, 0, b"\x0a\0\0\0")
        self.ring.first_token(slot)
        return slot


def test_a_submission_is_payload_then_one_flag() -> None:
    front_end = Pair().front_end
    front_end.submit(7, 2, 8, now_ns=0, prompt=PROMPT)
    prompt, descriptor, request_id, flag = front_end.take_ops(8)
    assert prompt == Write(RING.prompt_offset(0), PROMPT)
    assert isinstance(descriptor, Write)
    assert descriptor.remote == RING.descriptor_offset(0)
    assert request_id == Write(RING.request_id_offset(0), b"\7" + bytes(7))
    word = pack(State.PREFILL_PENDING, Outcome.NONE, 1, 0)
    assert flag == Publish(RING.metadata_offset(0), word)
    assert front_end.ops_waiting == 0


def test_requests_that_arrive_together_share_a_doorbell_and_are_never_divided() -> None:
    pair = Pair()
    for request_id in range(3):
        pair.submit(request_id)
    assert [len(pair.front_end.take_ops(10)) for _ in range(3)] == [8, 4, 0]
    with pytest.raises(ValueError, match="cannot hold"):
        pair.front_end.take_ops(3)


def test_a_request_comes_back_token_by_token() -> None:
    pair = Pair()
    slot = pair.start(5)
    assert pair.pump() == [Update(5, 0, 1, None, b"\x0a\0\0\0")]
    pair.ring.write_tokens(slot, 1, b"\x0b\0\0\0\x0c\0\0\0")
    pair.ring.advance(slot, 2)
    pair.ring.complete(slot, Outcome.STOP)
    assert pair.pump() == [Update(5, 1, 2, Outcome.STOP, b"\x0b\0\0\0\x0c\0\0\0")]
    assert pair.pump() == []
    assert pair.front_end.slots.free_count == 4
    assert pair.memory.load_acquire(RING.metadata_offset(slot)) == pack(
        State.EMPTY, Outcome.NONE, 1, 0
    )


def test_an_ending_without_tokens_waits_for_those_under_way() -> None:
    pair = Pair()
    slot = pair.start(5)
    front_end = pair.front_end
    metadata = pair.memory.view(HEADER_BYTES, RING.metadata_bytes)
    assert front_end.on_metadata(metadata, 1) == []
    (read,) = front_end.take_ops(8)
    assert read == Read(RING.output_offset(slot), 4, 2)
    pair.ring.complete(slot, Outcome.FAILED)
    assert front_end.on_metadata(metadata, 2) == []
    assert front_end.ops_waiting == 0, "a slot is not given back while it is read"
    updates = front_end.on_completion(Completion(2, Status.OK, data=b"\x0a\0\0\0"))
    assert updates == [Update(5, 0, 1, None, b"\x0a\0\0\0"), Update(5, 1, 0, Outcome.FAILED)]
    assert front_end.ops_waiting == 1


def test_without_payload_only_counts_travel() -> None:
    pair = Pair(payload=False)
    slot = pair.submit(5).slot
    assert len(pair.front_end.take_ops(8)) == 3
    with pytest.raises(RequestRefused, match="prompt"):
        pair.front_end.submit(6, 2, 8, now_ns=0, prompt=PROMPT)
    metadata = bytearray(RING.metadata_bytes)
    word = pack(State.DECODE_COMPLETED, Outcome.LENGTH, 1, 8)
    metadata[16 * slot : 16 * slot + 8] = word.to_bytes(8, "little")
    updates = pair.front_end.on_metadata(bytes(metadata), 0)
    assert updates == [Update(5, 0, 8, Outcome.LENGTH, None)]


def test_a_full_ring_pushes_back_and_remembers_nothing() -> None:
    pair = Pair()
    for request_id in range(4):
        pair.submit(request_id)
    before = pair.front_end.ops_waiting
    refused = pair.front_end.submit(9, 2, 8, now_ns=0, prompt=PROMPT)
    assert refused == BackPressure(request_id=9, slots_in_use=4)
    assert pair.front_end.ops_waiting == before
    assert 9 not in pair.front_end.requests


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens_max", "error", "field"),
    [
        (9, 8, PromptTooLong, "prompt_tokens"),
        (0, 8, PromptTooLong, "prompt_tokens"),
        (2, 9, OutputTooLong, "output_tokens_max"),
        (2, 0, OutputTooLong, "output_tokens_max"),
        (3, 8, RequestRefused, "prompt"),
    ],
)
def test_what_no_slot_can_hold_is_refused_by_field(
    prompt_tokens: int, output_tokens_max: int, error: type[RequestRefused], field: str
) -> None:
    front_end = Pair().front_end
    with pytest.raises(error, match=field) as caught:
        front_end.submit(1, prompt_tokens, output_tokens_max, now_ns=0, prompt=PROMPT)
    assert caught.value.field == field
    assert (front_end.ops_waiting, front_end.slots.free_count) == (0, 4)


def test_a_request_id_is_in_the_ring_once() -> None:
    pair = Pair()
    pair.submit(1)
    with pytest.raises(LocalViolation, match="request 1 is already in the ring"):
        pair.submit(1)
    assert pair.front_end.slots.free_count == 3


def test_a_cancel_reaches_the_scheduler_and_ends_the_request_once() -> None:
    pair = Pair()
    slot = pair.start(5)
    assert pair.front_end.cancel(5)
    assert not pair.front_end.cancel(5), "asked already"
    assert pair.pump() == [Update(5, 0, 1, None, b"\x0a\0\0\0")]
    outcome = pair.ring.cancelled(slot)
    assert outcome is Outcome.CANCELLED
    pair.ring.complete(slot, outcome)
    assert pair.pump() == [Update(5, 1, 0, Outcome.CANCELLED)]
    assert not pair.front_end.cancel(5), "ended already"
    assert pair.front_end.requests.outcomes[Outcome.CANCELLED] == 1


def test_a_late_cancel_does_not_hit_the_next_request_in_the_slot() -> None:
    pair = Pair()
    slot = pair.start(5)
    pair.front_end.cancel(5)
    pair.ring.complete(slot, Outcome.STOP)
    assert pair.pump()[-1].outcome is Outcome.STOP, "it completed first"
    for request_id in (6, 7, 8):
        pair.submit(request_id)
    assert pair.start(9) == slot
    assert not pair.ring.cancelled(slot)


def test_deadlines_ask_for_an_abort_each_once() -> None:
    pair = Pair()
    pair.submit(1, deadline_ns=100)
    pair.submit(2, deadline_ns=50)
    pair.submit(3)
    assert pair.front_end.expire(49) == []
    assert pair.front_end.expire(1000) == [2, 1]
    assert pair.front_end.expire(2000) == []
    pair.pump()
    slot = next(slot for slot in pair.ring.scan() if pair.ring.peek(slot))
    pair.ring.claim(slot)
    assert pair.ring.cancelled(slot) is Outcome.TIMED_OUT


def test_a_broken_link_fails_what_is_open_once() -> None:
    memory = LoopbackMemory.formatted(RING)

    def plan(op: Op) -> Break | None:
        return Break() if isinstance(op, Read) else None

    pair = Pair(transport=FaultyTransport(LoopbackTransport(memory), plan))
    pair.submit(1)
    pair.submit(2)
    with pytest.raises(TransportFailed, match="reconnect"):
        pair.pump()
    ended = pair.front_end.abandon()
    assert ended == [Update(1, 0, 0, Outcome.FAILED), Update(2, 0, 0, Outcome.FAILED)]
    assert pair.front_end.abandon() == []
    assert pair.front_end.ops_waiting == 0


def test_a_completion_of_nobodys_read_is_a_bug() -> None:
    with pytest.raises(LocalViolation, match="belongs to no read"):
        Pair().front_end.on_completion(Completion(99, Status.OK, data=b""))


def test_a_front_end_attaches_to_a_ring_in_use() -> None:
    pair = Pair()
    pair.start(5)
    fresh = FrontEnd(RING, TokenReader(10, 80, 64))
    fresh.attach(pair.memory.read(HEADER_BYTES, RING.metadata_bytes))
    assert fresh.slots.free_count == 3
    result = fresh.submit(6, 2, 8, now_ns=0, prompt=PROMPT)
    assert result == Submitted(slot=1, generation=1)


def test_more_tokens_than_asked_for_are_the_peers_fault() -> None:
    pair = Pair(payload=False)
    result = pair.front_end.submit(5, 2, 3, now_ns=0)
    assert isinstance(result, Submitted)
    metadata = bytearray(RING.metadata_bytes)
    metadata[:8] = pack(State.DECODE_PROCESSING, Outcome.NONE, 1, 4).to_bytes(8, "little")
    with pytest.raises(PeerViolation, match="asked for 3 at most"):
        pair.front_end.on_metadata(bytes(metadata), 0)


def test_slots_are_taken_in_a_circle() -> None:
    tracker = SlotTracker(3)
    assert [tracker.acquire() for _ in range(4)] == [0, 1, 2, None]
    tracker.release(1, 0)
    tracker.release(0, 0)
    assert [tracker.acquire() for _ in range(3)] == [0, 1, None]
    tracker.release(2, 0)
    with pytest.raises(LocalViolation, match="slot 2"):
        tracker.release(2, 0)


def metadata_of(*words: int) -> bytes:
    return b"".join(word.to_bytes(8, "little") + bytes(8) for word in words)


def test_urgent_slots_are_reported_first_and_a_full_poll_leaves_the_rest_for_the_next() -> None:
    reader = TokenReader(10, 80, slots_per_poll_max=2)
    words = [pack(State.DECODE_PROCESSING, Outcome.NONE, 1, n) for n in range(1, 4)]
    for slot in range(3):
        reader.watch(slot, 1, 0)
    first = reader.poll(metadata_of(words[0], words[0], 0), 10)
    assert first == [Progress(0, 0, 1, None), Progress(1, 0, 1, None)]
    second = reader.poll(metadata_of(words[1], words[1], words[0]), 20)
    assert second == [Progress(2, 0, 1, None), Progress(0, 1, 1, None)]
    third = reader.poll(metadata_of(words[2], words[2], words[1]), 30)
    assert third == [Progress(1, 1, 2, None), Progress(2, 1, 1, None)], "the one left waiting leads"


@pytest.mark.parametrize(
    "word",
    [
        pack(State.DECODE_PROCESSING, Outcome.NONE, 2, 1),  # a generation nobody submitted
        pack(State.DECODE_PROCESSING, Outcome.NONE, 1, 0),  # decoding without a token
        pack(State.EMPTY, Outcome.NONE, 1, 0),  # released by somebody else
        pack(State.DECODE_COMPLETED, Outcome.NONE, 1, 3),  # over, but how?
        pack(State.PREFILL_PROCESSING, Outcome.NONE, 1, 3),  # tokens before the first
        0xFF,
    ],
)
def test_a_word_from_nowhere_is_the_peers_fault(word: int) -> None:
    reader = TokenReader(10, 80, 8)
    reader.watch(0, 1, 0)
    with pytest.raises(PeerViolation, match="slot 0"):
        reader.poll(metadata_of(word), 10)


def test_a_word_from_before_is_counted_and_ignored() -> None:
    reader = TokenReader(10, 80, 8)
    reader.watch(0, 1, 0)
    assert reader.poll(metadata_of(pack(State.EMPTY, Outcome.NONE, 0, 0)), 10) == []
    later = pack(State.DECODE_PROCESSING, Outcome.NONE, 1, 3)
    assert reader.poll(metadata_of(later), 20) == [Progress(0, 0, 3, None)]
    earlier = pack(State.DECODE_PROCESSING, Outcome.NONE, 1, 2)
    assert reader.poll(metadata_of(earlier), 30) == []
    assert reader.words_stale == 2
    assert reader.poll(metadata_of(pack(State.DECODE_PAUSED, Outcome.NONE, 1, 4)), 40) == [
        Progress(0, 3, 1, None)
    ]


def test_a_slot_is_watched_once() -> None:
    reader = TokenReader(10, 80, 8)
    reader.watch(0, 1, 0)
    with pytest.raises(LocalViolation, match="already watched"):
        reader.watch(0, 2, 0)


@pytest.mark.parametrize(("shortest", "longest", "slots"), [(0, 5, 1), (6, 5, 1), (1, 5, 0)])
def test_a_reader_must_be_possible(shortest: int, longest: int, slots: int) -> None:
    with pytest.raises(ValueError, match="poll"):
        TokenReader(shortest, longest, slots)


def test_a_bulk_read_that_could_not_be_posted_leaves_nothing_behind() -> None:
    front_end = Pair().front_end
    metadata = bytes(RING.metadata_bytes)
    for posted_ns in (10, 20):
        front_end.read_metadata(posted_ns)
    read = front_end.read_metadata(30)
    assert front_end.on_completion(Completion(read.tag, Status.OK, data=metadata)) == []
    assert front_end.reader.due_ns == 30 + front_end.reader.interval_ns
    for tag in (1, 2, 3):
        with pytest.raises(LocalViolation, match="belongs to no read"):
            front_end.on_completion(Completion(tag, Status.OK, data=metadata))


def test_a_restarted_front_end_frees_what_its_predecessor_left() -> None:
    """Its request, whose client is gone, is aborted, and the slot comes back."""
    pair = Pair()
    pair.start(5)
    fresh = FrontEnd(RING, TokenReader(10, 80, 64))
    fresh.attach(pair.memory.read(HEADER_BYTES, RING.metadata_bytes))
    assert fresh.orphans == 1
    pair.transport.post(fresh.take_ops(16))
    assert pair.ring.cancelled(0) is Outcome.CANCELLED
    pair.ring.complete(0, Outcome.CANCELLED)
    assert fresh.on_metadata(pair.memory.read(HEADER_BYTES, RING.metadata_bytes), 0) == []
    pair.transport.post(fresh.take_ops(16))
    assert fresh.orphans == 0 and fresh.slots.free_count == RING.slots
    assert unpack(pair.memory.load_acquire(RING.metadata_offset(0))).state is State.EMPTY


def test_front_ends_share_a_ring_by_ranges_of_slots() -> None:
    mine = FrontEnd(RING, TokenReader(10, 80, 64), slots=range(2))
    theirs = FrontEnd(RING, TokenReader(10, 80, 64), slots=range(2, 4))
    taken = [end.submit(n, 2, 8, now_ns=0, prompt=PROMPT) for end in (mine, theirs) for n in (1, 2)]
    assert [each.slot for each in taken if isinstance(each, Submitted)] == [0, 1, 2, 3]
    assert isinstance(mine.submit(3, 2, 8, now_ns=0, prompt=PROMPT), BackPressure)
    with pytest.raises(ValueError, match="are not slots of a ring of 4"):
        SlotTracker(4, range(2, 5))
