"""The scheduler's side of the ring: find, claim, work, publish.

This is the reference for the GPU's own code. It holds the one thing that makes it fast: since the
scheduler is the only writer of the slots it has claimed, it knows their words without reading
them, and every move is a single store. Payload first, flag last, always.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from blink.ring_protocol.constants import (
    DESCRIPTOR_BYTES,
    HEADER_BYTES,
    SLOT_METADATA_BYTES,
    TOKEN_BYTES,
    WORD_BYTES,
)
from blink.ring_protocol.descriptor import Descriptor, outcome_asked
from blink.ring_protocol.errors import LocalViolation, PeerViolation
from blink.ring_protocol.layout import (
    HEARTBEAT_OFFSET,
    SCHEDULER_GENERATION_OFFSET,
    Geometry,
)
from blink.ring_protocol.ports import DeviceMemory
from blink.ring_protocol.slot import (
    GENERATION_MASK,
    GENERATION_SHIFT,
    SAME_LIFE_MASK,
    STATE_MASK,
    TOKENS_SHIFT,
    pack,
    step,
    unpack,
)
from blink.ring_protocol.states import (
    OUTCOMES_OF,
    OWNER_OF,
    Event,
    Outcome,
    State,
    Writer,
)

_PENDING = int(State.PREFILL_PENDING)
_DECODING = int(State.DECODE_PROCESSING)
_PAUSED = int(State.DECODE_PAUSED)
_PENDING_BYTE = bytes([_PENDING])
_HELD_STATES = frozenset(
    state
    for state, owner in OWNER_OF.items()
    if owner is Writer.SCHEDULER and state is not State.PREFILL_PENDING
)


def _added_by(event: Event, state: State) -> int:
    """What an event that changes nothing but the state adds to any word of `state`."""
    expected, desired = step(pack(state, Outcome.NONE, 0, 1), event, Writer.SCHEDULER)
    return desired - expected


# A whole batch pauses for every inline prefill: the table is consulted here, once.
_PAUSE = _added_by(Event.PAUSE, State.DECODE_PROCESSING)
_RESUME = _added_by(Event.RESUME, State.DECODE_PAUSED)


class Claimed(NamedTuple):
    """A request that the scheduler holds (or, from `peek`, could claim)."""

    slot: int
    generation: int
    request_id: int
    prompt_tokens: int
    output_tokens_max: int
    arrival_ns: int
    descriptor: Descriptor


class SchedulerRing:
    """The ring as one scheduler instance sees it.

    A fresh instance holds nothing. The first thing it does is `adopt()`, which takes over what its
    predecessor held: at the first launch, nothing. Raises LayoutMismatch if `memory` is not a ring
    of this geometry.
    """

    def __init__(self, memory: DeviceMemory, geometry: Geometry) -> None:
        geometry.check_header(memory.read(0, HEADER_BYTES))
        self.geometry = geometry
        self._memory = memory
        self._store = memory.store_release
        self._flags = [geometry.metadata_offset(slot) for slot in range(geometry.slots)]
        # Words of the slots we hold; 0 (EMPTY, never held) for all others.
        self._held = [0] * geometry.slots
        # The largest word that TOKENS may lead to: while decoding, that of the output limit;
        # otherwise 0, which no word is below. One comparison checks both state and limit.
        self._ceiling = [0] * geometry.slots
        self._limit = [0] * geometry.slots

    # --- finding work ------------------------------------------------------------------------

    def scan(self, slots: Iterable[int] | None = None) -> list[int]:
        """The slots that are PREFILL_PENDING, in slot order; of `slots` only, if given.

        A relaxed look: what it finds may be gone, which `claim` will notice.
        """
        if slots is None:
            return self._scan_all()
        load, flags = self._memory.load_relaxed, self._flags
        return sorted(slot for slot in slots if load(flags[slot]) & STATE_MASK == _PENDING)

    def _scan_all(self) -> list[int]:
        records = self._memory.read(HEADER_BYTES, self.geometry.metadata_bytes)
        states = records[::SLOT_METADATA_BYTES]  # the state is the lowest byte of each record
        found: list[int] = []
        slot = states.find(_PENDING_BYTE)
        while slot >= 0:
            found.append(slot)
            slot = states.find(_PENDING_BYTE, slot + 1)
        return found

    def peek(self, slot: int) -> Claimed | None:
        """What `claim` would return, without claiming: for choosing whom to claim first."""
        word = self._memory.load_acquire(self._flags[slot])
        return self._read_request(slot, word) if word & STATE_MASK == _PENDING else None

    def claim(self, slot: int, seen: int | None = None) -> Claimed | None:
        """Take a pending slot, or None if it is not pending (any more).

        `seen`: its flag word, if the caller has it from a scan; a stale one loses.
        Raises PeerViolation if the descriptor is not the one that the flag announced.
        """
        flag = self._flags[slot]
        word = self._memory.load_acquire(flag) if seen is None else seen
        if word & STATE_MASK != _PENDING:
            return None
        intent = step(word, Event.CLAIM, Writer.SCHEDULER, slot=slot)
        if self._memory.cas(flag, intent.expected, intent.desired) != intent.expected:
            return None
        claimed = self._read_request(slot, intent.desired)
        self._hold(slot, intent.desired, claimed.output_tokens_max)
        return claimed

    def adopt(self) -> list[Claimed]:
        """Begin an execution: count it in the header, and take over the slots in progress.

        Returns them in slot order. This is all that a relaunched scheduler needs to go on.
        """
        generation = self._memory.load_acquire(SCHEDULER_GENERATION_OFFSET)
        self._store(SCHEDULER_GENERATION_OFFSET, generation + 1)
        adopted = []
        for slot, flag in enumerate(self._flags):
            word = self._memory.load_acquire(flag)
            if unpack(word, slot=slot).state in _HELD_STATES:
                claimed = self._read_request(slot, word)
                self._hold(slot, word, claimed.output_tokens_max)
                adopted.append(claimed)
        return adopted

    # --- moving what is held -----------------------------------------------------------------

    def first_token(self, slot: int) -> None:
        """The prompt is computed and one token is out. Its bytes must have been written."""
        self._move(slot, Event.FIRST_TOKEN, tokens=1)

    def advance(self, slot: int, count: int = 1) -> None:
        """Publish `count` (>= 1) more tokens of a decoding slot. Their bytes must be written."""
        self.advance_all((slot,), count)

    def advance_all(self, slots: Iterable[int], count: int) -> None:
        """`advance` each of `slots` by `count`, as a batch does after its steps.

        The hottest loop of the protocol: one addition, one comparison, one store a slot.
        """
        held, ceiling, flags, store = self._held, self._ceiling, self._flags, self._store
        tokens = count << TOKENS_SHIFT
        for slot in slots:
            word = held[slot] + tokens
            if count < 1 or word > ceiling[slot]:
                raise self._cannot_advance(slot, count)
            store(flags[slot], word)
            held[slot] = word

    def pause(self, slot: int) -> None:
        """Let a decoding slot stand still."""
        self.pause_all((slot,))

    def resume(self, slot: int) -> None:
        """Let a paused slot decode on."""
        self.resume_all((slot,))

    def pause_all(self, slots: Iterable[int]) -> None:
        """Pause each of `slots`: the batch makes way for a prompt."""
        held, ceiling, flags, store = self._held, self._ceiling, self._flags, self._store
        for slot in slots:
            word = held[slot]
            if word & STATE_MASK != _DECODING:
                raise self._cannot(slot, Event.PAUSE)
            store(flags[slot], word + _PAUSE)
            held[slot] = word + _PAUSE
            ceiling[slot] = 0

    def resume_all(self, slots: Iterable[int]) -> None:
        """Resume each of `slots`."""
        held, ceiling, flags, store = self._held, self._ceiling, self._flags, self._store
        limit = self._limit
        for slot in slots:
            word = held[slot]
            if word & STATE_MASK != _PAUSED:
                raise self._cannot(slot, Event.RESUME)
            word += _RESUME
            store(flags[slot], word)
            held[slot] = word
            ceiling[slot] = word & SAME_LIFE_MASK | limit[slot] << TOKENS_SHIFT

    def complete(self, slot: int, outcome: Outcome) -> None:
        """End a request: STOP or LENGTH while it decodes, any other outcome while it is held."""
        event = Event.COMPLETE if outcome in OUTCOMES_OF[Event.COMPLETE] else Event.ABORT
        self._move(slot, event, outcome=outcome)
        self._held[slot] = 0

    def cancelled(self, slot: int) -> Outcome:
        """The outcome that the front end asks for, or NONE, which is falsy.

        A scheduler that finds one completes the slot with it within one step.
        """
        generation = (self._word_of(slot) >> GENERATION_SHIFT) & GENERATION_MASK
        word = self._memory.load_acquire(self.geometry.cancel_offset(slot))
        return outcome_asked(word, generation, slot=slot)

    # --- payload -----------------------------------------------------------------------------

    def read_prompt(self, claimed: Claimed) -> bytes:
        """The prompt's token ids, 4 bytes each."""
        offset = self.geometry.prompt_offset(claimed.slot)
        return self._memory.read(offset, claimed.prompt_tokens * TOKEN_BYTES)

    def write_tokens(self, slot: int, first_index: int, tokens: bytes | memoryview) -> None:
        """Write token ids from output index `first_index` on. Publishes nothing.

        Raises LocalViolation if any of them is already published or beyond the limit.
        """
        word = self._word_of(slot)
        last_index = first_index + len(tokens) // TOKEN_BYTES
        if first_index < word >> TOKENS_SHIFT or last_index > self._limit[slot]:
            raise LocalViolation(
                f"output tokens {first_index} to {last_index} are not within "
                f"{word >> TOKENS_SHIFT} (published) and {self._limit[slot]} (limit)",
                slot=slot,
                state=unpack(word).state,
                writer=Writer.SCHEDULER,
            )
        self._memory.write(self.geometry.output_offset(slot, first_index), tokens)

    def beat(self) -> None:
        """Show a watchdog that the scheduler is alive."""
        self._store(HEARTBEAT_OFFSET, self._memory.load_relaxed(HEARTBEAT_OFFSET) + 1)

    # --- inside ------------------------------------------------------------------------------

    def _move(
        self, slot: int, event: Event, *, tokens: int = 0, outcome: Outcome = Outcome.NONE
    ) -> None:
        word = self._word_of(slot, event)
        intent = step(word, event, Writer.SCHEDULER, tokens=tokens, outcome=outcome, slot=slot)
        self._store(self._flags[slot], intent.desired)
        self._hold(slot, intent.desired, self._limit[slot])

    def _hold(self, slot: int, word: int, output_tokens_max: int) -> None:
        self._held[slot] = word
        self._limit[slot] = output_tokens_max
        decoding = word & STATE_MASK == _DECODING
        ceiling = word & SAME_LIFE_MASK | output_tokens_max << TOKENS_SHIFT
        self._ceiling[slot] = ceiling if decoding else 0

    def _word_of(self, slot: int, event: Event | None = None) -> int:
        word = self._held[slot]
        if word == 0:
            found = unpack(self._memory.load_relaxed(self._flags[slot]), slot=slot)
            raise LocalViolation(
                "this scheduler does not hold the slot: claim it first",
                slot=slot,
                state=found.state,
                event=event,
                writer=Writer.SCHEDULER,
            )
        return word

    def _cannot(self, slot: int, event: Event) -> LocalViolation:
        """Why the table does not allow this event."""
        word = self._word_of(slot, event)  # raises, if that is why
        try:
            step(word, event, Writer.SCHEDULER, slot=slot)
        except LocalViolation as violation:
            return violation
        raise AssertionError(f"{event.name} was refused, but the table allows it")

    def _cannot_advance(self, slot: int, count: int) -> LocalViolation:
        word = self._word_of(slot, Event.TOKENS)
        step(word, Event.TOKENS, Writer.SCHEDULER, tokens=count, slot=slot)  # raises, if a bad move
        return LocalViolation(
            f"{word >> TOKENS_SHIFT} + {count} tokens exceed the request's limit of "
            f"{self._limit[slot]}: complete it with LENGTH",
            slot=slot,
            state=unpack(word).state,
            event=Event.TOKENS,
            writer=Writer.SCHEDULER,
        )

    def _read_request(self, slot: int, word: int) -> Claimed:
        offset = self.geometry.descriptor_offset(slot)
        descriptor = Descriptor.unpack(self._memory.read(offset, DESCRIPTOR_BYTES))
        generation = (word >> GENERATION_SHIFT) & GENERATION_MASK
        if descriptor.generation != generation:
            raise PeerViolation(
                f"the flag announces generation {generation}, the descriptor holds "
                f"{descriptor.generation}: a flag overtook its payload",
                slot=slot,
                state=unpack(word).state,
            )
        self._check_room(descriptor, slot, word)
        return Claimed(
            slot,
            generation,
            self._memory.load_relaxed(self._flags[slot] + WORD_BYTES),
            descriptor.prompt_tokens,
            descriptor.output_tokens_max,
            descriptor.arrival_ns,
            descriptor,
        )

    def _check_room(self, descriptor: Descriptor, slot: int, word: int) -> None:
        """A request that is larger than its slot would be written over its neighbours."""
        rooms = (
            ("prompt", descriptor.prompt_tokens, self.geometry.prompt_tokens_max),
            ("output", descriptor.output_tokens_max, self.geometry.output_tokens_max),
        )
        for what, tokens, room in rooms:
            if not 1 <= tokens <= room:
                raise PeerViolation(
                    f"the descriptor holds {tokens} {what} tokens, a slot holds 1 to {room}",
                    slot=slot,
                    state=unpack(word).state,
                )
