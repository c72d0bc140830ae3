"""Does a machine carry the ring? One function asks; whoever has a new machine calls it.

    def test_ring() -> None:
        check_ring(my_maker)

It drives the real front end and two real schedulers over the machine under test, in any order that
Hypothesis can think of: submissions, late and lost claims, pauses, aborts, cancels of the living
and the dead, relaunches, polls. It checks what every machine promises (sets, counts, bytes), not
what one happens to do (order between slots, time).

    SLOT      every flag word is one that the table can lead to
    OWNER     a stale compare-and-swap never wins; nobody else writes a slot that is held
    ORDER     tokens arrive in order, each once, with the bytes that were written
    CONSERVE  every request ends in exactly one outcome, the one that the scheduler wrote;
              at the end every slot is empty again

pytest is not needed, nor imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from blink.ring_protocol.constants import TOKEN_BYTES
from blink.ring_protocol.descriptor import cancel_word
from blink.ring_protocol.errors import LocalViolation, QueueFull
from blink.ring_protocol.front_end import BackPressure, FrontEnd, TokenReader, Update
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import DeviceMemory, Op, Publish, Transport
from blink.ring_protocol.ring import Claimed, SchedulerRing
from blink.ring_protocol.slot import SlotWord, is_coherent, pack, unpack
from blink.ring_protocol.states import OUTCOMES_OF, OWNER_OF, Event, Outcome, State, Writer

GEOMETRY = Geometry(slots=3, prompt_tokens_max=4, output_tokens_max=9)
"""Small on purpose: slots are reused within a few steps, which is where rings go wrong."""

DRAIN_ROUNDS_MAX = 500
BATCH_OPS = 8
_BY_ITSELF = sorted(OUTCOMES_OF[Event.COMPLETE])


class SchedulerSide(Protocol):
    """What check_ring asks of a scheduler's side of the ring; SchedulerRing says what each does."""

    def scan(self) -> list[int]: ...
    def claim(self, slot: int, seen: int | None = None) -> Claimed | None: ...
    def adopt(self) -> list[Claimed]: ...
    def first_token(self, slot: int) -> None: ...
    def advance(self, slot: int, count: int = 1) -> None: ...
    def pause(self, slot: int) -> None: ...
    def resume(self, slot: int) -> None: ...
    def complete(self, slot: int, outcome: Outcome) -> None: ...
    def cancelled(self, slot: int) -> Outcome: ...
    def read_prompt(self, claimed: Claimed) -> bytes: ...
    def write_tokens(self, slot: int, first_index: int, tokens: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class RingMemory:
    """One ring, formatted and empty, seen through both doors.

    elapse: let time pass in this world, enough for something under way to get on.
    scheduler: makes a scheduler's side of the ring; by default, the reference's.
    """

    memory: DeviceMemory
    transport: Transport
    elapse: Callable[[], None] = lambda: None
    scheduler: Callable[[DeviceMemory, Geometry], SchedulerSide] = SchedulerRing


MemoryMaker = Callable[[Geometry], RingMemory]


def check_ring(make_memory: MemoryMaker, *, settings: settings | None = None) -> None:
    """Raise AssertionError or ProtocolViolation with a shortest example if the machine fails.

    make_memory: called once for each example, with the geometry to lay out.
    settings: Hypothesis settings; by default those of the loaded profile, with 80 steps.
    """

    class Machine(_RingMachine):
        def __init__(self) -> None:
            super().__init__(make_memory(GEOMETRY))

    run_state_machine_as_test(Machine, settings=settings or default_settings())


def default_settings() -> settings:
    """What check_ring uses: as many examples as the loaded profile, each long enough to go deep."""
    return settings(
        stateful_step_count=80,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


@dataclass(slots=True)
class _Expected:
    """What one request was given, what the scheduler did with it, and what came back."""

    prompt: bytes
    output_tokens_max: int
    asked: set[Outcome] = field(default_factory=set)
    claims: int = 0
    written: bytes = b""
    written_outcome: Outcome | None = None
    received: bytes = b""
    received_outcome: Outcome | None = None


@dataclass(slots=True)
class _Held:
    """A slot in a scheduler's hands, and the word that must be in memory."""

    ring: SchedulerSide
    request_id: int
    word: SlotWord


class _RingMachine(RuleBasedStateMachine):
    """The front end, two schedulers, the machine under test, and a book of what is true."""

    def __init__(self, world: RingMemory) -> None:
        super().__init__()
        self.world = world
        self.front_end = FrontEnd(GEOMETRY, TokenReader(1, 4, 2))
        self.rings = [world.scheduler(world.memory, GEOMETRY) for _ in range(2)]
        self.requests: dict[int, _Expected] = {}
        self.held: dict[int, _Held] = {}
        self.seen: list[tuple[int, int]] = []  # (slot, a word that was pending once)
        self.batch: list[Op] = []
        self.now_ns = 0

    # --- the front end -----------------------------------------------------------------------

    @rule(
        prompts=st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=3),
        output_tokens_max=st.integers(1, GEOMETRY.output_tokens_max),
        at_once=st.booleans(),
    )
    def submit(self, prompts: list[bytes], output_tokens_max: int, at_once: bool) -> None:
        """Requests arrive together; the doorbell is rung now, or later."""
        self.now_ns += 1
        for prompt in prompts:
            self._submit(prompt, output_tokens_max)
        if at_once:
            self._ring_doorbell()

    def _submit(self, prompt: bytes, output_tokens_max: int) -> None:
        request_id = len(self.requests)
        ids = b"".join(bytes([byte, 0, 0, 0]) for byte in prompt)
        result = self.front_end.submit(
            request_id, len(prompt), output_tokens_max, now_ns=self.now_ns, prompt=ids
        )
        if isinstance(result, BackPressure):
            assert result.slots_in_use == GEOMETRY.slots, "turned away with a slot free"
        else:
            self.requests[request_id] = _Expected(ids, output_tokens_max)

    @rule(data=st.data(), outcome=st.sampled_from([Outcome.CANCELLED, Outcome.TIMED_OUT]))
    @precondition(lambda self: self.requests)
    def cancel(self, data: st.DataObject, outcome: Outcome) -> None:
        """A client leaves, or one leaves again whose request has ended."""
        living = [tracked.request_id for tracked in self.front_end.requests]
        request_id = data.draw(st.sampled_from([*living, len(self.requests) - 1]))
        expected = self.requests[request_id]
        taken = self.front_end.cancel(request_id, outcome)
        assert not (taken and expected.received_outcome), "cancelled after its end"
        if taken:
            expected.asked.add(outcome)

    @rule(data=st.data())
    @precondition(lambda self: self.held)
    def farewell_from_an_earlier_life(self, data: st.DataObject) -> None:
        """A cancel of the request before the one that a slot holds now, very late."""
        slot = data.draw(st.sampled_from(sorted(self.held)))
        earlier = self.held[slot].word.generation - 1
        late = cancel_word(earlier, Outcome.CANCELLED)
        self._post([Publish(GEOMETRY.cancel_offset(slot), late)])

    @rule(look=st.booleans(), limit=st.integers(1, 8))
    def exchange(self, look: bool, limit: int) -> None:
        """Go once round the front end's loop, with or without a bulk read."""
        self._ring_doorbell()
        if look:
            self.now_ns += 1
            self._post([self.front_end.read_metadata(self.now_ns)])
        self.world.elapse()
        for completion in self.world.transport.poll(limit):
            self._receive(self.front_end.on_completion(completion))

    def _ring_doorbell(self) -> None:
        self.batch = self.batch or self.front_end.take_ops(BATCH_OPS)
        if self.batch and self._post(self.batch):
            self.batch = []

    def _post(self, ops: list[Op]) -> bool:
        try:
            self.world.transport.post(ops)
        except QueueFull:
            return False
        return True

    def _receive(self, updates: Iterable[Update]) -> None:
        for update in updates:
            expected = self.requests[update.request_id]
            assert expected.received_outcome is None, "news of a request that has ended"
            assert update.first == len(expected.received) // TOKEN_BYTES, "a token lost or doubled"
            ids = bytes(update.ids or b"")
            assert len(ids) == update.tokens * TOKEN_BYTES
            expected.received += ids
            assert expected.written.startswith(expected.received), "not the tokens written"
            expected.received_outcome = update.outcome
            if update.outcome is not None:
                assert update.outcome is expected.written_outcome, "not the outcome written"
                assert expected.received == expected.written, "ended before its tokens were here"

    # --- the schedulers ----------------------------------------------------------------------

    @rule(data=st.data(), which=st.integers(0, 1))
    @precondition(lambda self: self._pending())
    def claim(self, data: st.DataObject, which: int) -> None:
        """Claim a slot that a scan has just found."""
        self._claim(self.rings[which], data.draw(st.sampled_from(self._pending())))

    def _claim(self, ring: SchedulerSide, slot: int) -> None:
        self.seen.append((slot, self._load(slot)))
        claimed = ring.claim(slot)
        assert claimed is not None, "a pending slot could not be claimed"
        self._hold(ring, claimed)

    @rule(data=st.data(), which=st.integers(0, 1))
    @precondition(lambda self: self.seen)
    def claim_late(self, data: st.DataObject, which: int) -> None:
        """Claim by a word that was pending when it was seen; by now, somebody else has."""
        slot, word = data.draw(st.sampled_from(self.seen))
        claimed = self.rings[which].claim(slot, seen=word)
        assert claimed is None, "a stale claim won"

    def _hold(self, ring: SchedulerSide, claimed: Claimed) -> None:
        expected = self.requests[claimed.request_id]
        expected.claims += 1
        assert expected.claims == 1, "claimed twice"
        assert claimed.slot not in self.held, "claimed out of somebody's hands"
        assert claimed.output_tokens_max == expected.output_tokens_max
        assert ring.read_prompt(claimed) == expected.prompt, "not the prompt submitted"
        word = SlotWord(State.PREFILL_PROCESSING, Outcome.NONE, claimed.generation, 0)
        self.held[claimed.slot] = _Held(ring, claimed.request_id, word)

    @rule(data=st.data(), count=st.integers(1, 3))
    @precondition(lambda self: self._in(State.PREFILL_PROCESSING, State.DECODE_PROCESSING))
    def generate(self, data: st.DataObject, count: int) -> None:
        """Compute a prompt, or decode `count` tokens on; never beyond the limit."""
        slot = self._draw(data, State.PREFILL_PROCESSING, State.DECODE_PROCESSING)
        self._generate(slot, count)

    @rule(data=st.data())
    @precondition(lambda self: self._in(State.DECODE_PROCESSING, State.DECODE_PAUSED))
    def pause_or_resume(self, data: st.DataObject) -> None:
        """Preempt, or go on."""
        self._pause_or_resume(self._draw(data, State.DECODE_PROCESSING, State.DECODE_PAUSED))

    def _pause_or_resume(self, slot: int) -> None:
        ring = self.held[slot].ring
        if self.held[slot].word.state is State.DECODE_PROCESSING:
            ring.pause(slot)
            self._now(slot, state=State.DECODE_PAUSED)
        else:
            ring.resume(slot)
            self._now(slot, state=State.DECODE_PROCESSING)

    @rule(data=st.data(), outcome=st.sampled_from([*_BY_ITSELF, Outcome.FAILED]))
    @precondition(lambda self: self.held)
    def end(self, data: st.DataObject, outcome: Outcome) -> None:
        """End a request: well if it decodes, otherwise not."""
        slot = data.draw(st.sampled_from(sorted(self.held)))
        decodes = self.held[slot].word.state is State.DECODE_PROCESSING
        self._end(slot, outcome if decodes else Outcome.FAILED)

    @rule(count=st.integers(1, 3), rounds=st.integers(1, 4))
    def go_round(self, count: int, rounds: int) -> None:
        """Both sides go round their loops as they should; the other rules disturb them."""
        for _ in range(rounds):
            self.honour_cancels()
            self._prefill_inline()
            for slot in self._in(State.DECODE_PROCESSING):
                self._generate(slot, count)
                if self._is_at_limit(slot):
                    self._end(slot, Outcome.LENGTH)
            self.exchange(look=True, limit=BATCH_OPS)

    def _prefill_inline(self) -> None:
        """The batch pauses, pending prompts are computed, and all decode on together."""
        pending = self._pending()
        paused = self._in(State.DECODE_PROCESSING) if pending else []
        for slot in paused:
            self._pause_or_resume(slot)
        for slot in pending:
            self._claim(self.rings[0], slot)
        for slot in self._in(State.PREFILL_PROCESSING):
            self._generate(slot, 1)
        for slot in paused:
            self._pause_or_resume(slot)

    @rule()
    @precondition(lambda self: self.held)
    def honour_cancels(self) -> None:
        """Abort whoever's client has left."""
        for slot, held in sorted(self.held.items()):
            asked = held.ring.cancelled(slot)
            assert not asked or asked in self.requests[held.request_id].asked, "nobody asked"
            if asked:
                self._end(slot, asked)

    @rule()
    def relaunch(self) -> None:
        """Both instances end. A fresh one finds everything they held, in memory alone."""
        self.rings = [self.world.scheduler(self.world.memory, GEOMETRY) for _ in range(2)]
        adopted = {claimed.slot: claimed.request_id for claimed in self.rings[0].adopt()}
        assert adopted == {slot: held.request_id for slot, held in self.held.items()}
        for held in self.held.values():
            held.ring = self.rings[0]

    @rule(data=st.data(), slot=st.integers(0, GEOMETRY.slots - 1))
    def break_the_rules(self, data: st.DataObject, slot: int) -> None:
        """What the table does not allow raises, and memory stays as it is."""
        held = self.held.get(slot)
        ring = held.ring if held else self.rings[0]
        state = held.word.state if held else None
        illegal: list[Callable[[], None]] = []
        if state is not State.PREFILL_PROCESSING:
            illegal.append(lambda: ring.first_token(slot))
        if state is not State.DECODE_PROCESSING:
            illegal += [lambda: ring.advance(slot), lambda: ring.pause(slot)]
            illegal.append(lambda: ring.complete(slot, Outcome.STOP))
        if state is not State.DECODE_PAUSED:
            illegal.append(lambda: ring.resume(slot))
        illegal.append(lambda: ring.advance(slot, GEOMETRY.output_tokens_max + 1))
        illegal.append(lambda: ring.complete(slot, Outcome.REJECTED))
        act = data.draw(st.sampled_from(illegal))
        before = self._words()
        try:
            act()
        except LocalViolation:
            assert self._words() == before, "a refused event left a trace"
        else:
            raise AssertionError("an illegal event was accepted")

    # --- what must always hold ---------------------------------------------------------------

    @invariant()
    def every_word_is_possible(self) -> None:
        for slot, word in enumerate(self._words()):
            assert is_coherent(unpack(word, slot=slot)), f"slot {slot}: {unpack(word)}"

    @invariant()
    def nobody_else_writes_what_is_held(self) -> None:
        for slot, held in self.held.items():
            assert self._load(slot) == pack(*held.word), f"slot {slot}: {unpack(self._load(slot))}"

    @invariant()
    def every_request_is_somewhere(self) -> None:
        ended = sum(expected.received_outcome is not None for expected in self.requests.values())
        assert len(self.front_end.requests) + ended == len(self.requests)
        assert sum(self.front_end.requests.outcomes.values()) == ended

    def teardown(self) -> None:
        """Let everything come to its end, and look whether it did."""
        for _ in range(DRAIN_ROUNDS_MAX):
            if self._is_quiet():
                break
            self._drain_once()
        assert self._is_quiet(), f"something never ended: {[unpack(w) for w in self._words()]}"
        for request_id, expected in self.requests.items():
            assert expected.received_outcome, f"request {request_id} never ended"
        assert self.front_end.slots.free_count == GEOMETRY.slots

    def _is_quiet(self) -> bool:
        empty = all(unpack(word).state is State.EMPTY for word in self._words())
        waiting = self.batch or self.front_end.ops_waiting
        return empty and not waiting and not len(self.front_end.requests)

    def _drain_once(self) -> None:
        self.exchange(look=True, limit=BATCH_OPS)
        for slot in self._pending():
            self._claim(self.rings[0], slot)
        self.honour_cancels()
        for slot, held in sorted(self.held.items()):
            if held.word.state is State.DECODE_PAUSED:
                self._pause_or_resume(slot)
            self._generate(slot, 1)
            self._end(slot, Outcome.STOP)

    # --- the book ----------------------------------------------------------------------------

    def _generate(self, slot: int, count: int) -> None:
        held = self.held[slot]
        expected = self.requests[held.request_id]
        first = held.word.tokens
        if held.word.state is State.PREFILL_PROCESSING:
            count = 1
        count = min(count, expected.output_tokens_max - first)
        if count == 0:
            return
        ids = b"".join(
            (1000 * held.request_id + index).to_bytes(TOKEN_BYTES, "little")
            for index in range(first, first + count)
        )
        held.ring.write_tokens(slot, first, ids)
        expected.written += ids
        if first == 0:
            held.ring.first_token(slot)
        else:
            held.ring.advance(slot, count)
        self._now(slot, state=State.DECODE_PROCESSING, tokens=first + count)

    def _is_at_limit(self, slot: int) -> bool:
        held = self.held[slot]
        return held.word.tokens == self.requests[held.request_id].output_tokens_max

    def _end(self, slot: int, outcome: Outcome) -> None:
        held = self.held[slot]
        held.ring.complete(slot, outcome)
        self.requests[held.request_id].written_outcome = outcome
        del self.held[slot]

    def _now(self, slot: int, *, state: State, tokens: int | None = None) -> None:
        word = self.held[slot].word
        tokens = word.tokens if tokens is None else tokens
        self.held[slot].word = word._replace(state=state, tokens=tokens)
        assert OWNER_OF[state] is Writer.SCHEDULER

    def _pending(self) -> list[int]:
        return self.rings[0].scan()

    def _in(self, *states: State) -> list[int]:
        return sorted(slot for slot, held in self.held.items() if held.word.state in states)

    def _draw(self, data: st.DataObject, *states: State) -> int:
        return data.draw(st.sampled_from(self._in(*states)))

    def _load(self, slot: int) -> int:
        return self.world.memory.load_acquire(GEOMETRY.metadata_offset(slot))

    def _words(self) -> list[int]:
        return [self._load(slot) for slot in range(GEOMETRY.slots)]
