"""One slot's flag word, and the only function that makes a new one.

A flag word is 64 bits and is only ever written whole:

     63            40 39               16 15      8 7      0
    +----------------+-------------------+---------+--------+
    | tokens (24)    | generation (24)   | outcome | state  |
    +----------------+-------------------+---------+--------+

State, generation and token count therefore change together, in one 8-byte store: a reader can
never see a new count beside an old state. The token count is on top so that publishing `n` tokens
is one addition, and so that, within a generation and a state, a larger word is a later word.

`step` is where `states.py` meets a word. It is pure: it returns the word to expect and the word to
write, and leaves the writing to whoever has the memory. An illegal event raises and, there being
nothing to change, changes nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from blink.ring_protocol.constants import (
    GENERATION_BITS,
    GENERATIONS,
    OUTCOME_BITS,
    STATE_BITS,
    TOKENS_BITS,
    TOKENS_MAX,
)
from blink.ring_protocol.errors import LocalViolation, PeerViolation
from blink.ring_protocol.states import (
    FUTURES_OF,
    OUTCOMES_OF,
    TOKEN_EVENTS,
    TRANSITIONS,
    WRITER_OF,
    Event,
    Outcome,
    State,
    Writer,
)

OUTCOME_SHIFT: Final = STATE_BITS
GENERATION_SHIFT: Final = OUTCOME_SHIFT + OUTCOME_BITS
TOKENS_SHIFT: Final = GENERATION_SHIFT + GENERATION_BITS

STATE_MASK: Final = (1 << STATE_BITS) - 1
OUTCOME_MASK: Final = (1 << OUTCOME_BITS) - 1
GENERATION_MASK: Final = GENERATIONS - 1
TOKEN: Final = 1 << TOKENS_SHIFT
"""What one more token adds to a flag word."""
SAME_LIFE_MASK: Final = TOKEN - 1
"""Everything but the token count: equal in two words of one generation in one state."""

_STATES: Final = tuple(State)
_OUTCOMES: Final = tuple(Outcome)
_NO_OUTCOME: Final = frozenset({Outcome.NONE})
_ABORTED: Final = OUTCOMES_OF[Event.ABORT]
_WRITTEN: Final = _ABORTED | OUTCOMES_OF[Event.COMPLETE]

assert TOKENS_SHIFT + TOKENS_BITS == 64
assert all(state == place for place, state in enumerate(_STATES)), "a state is its own index"
assert all(outcome == place for place, outcome in enumerate(_OUTCOMES))


class SlotWord(NamedTuple):
    """A flag word, taken apart."""

    state: State
    outcome: Outcome
    generation: int
    tokens: int


class CasIntent(NamedTuple):
    """A move: if the word is still `expected`, it becomes `desired`.

    The owner of a state may store `desired` without comparing, because nobody else can have
    written. A contested event (CLAIM) must compare and swap.
    """

    expected: int
    desired: int


def step(
    word: int,
    event: Event,
    writer: Writer,
    *,
    tokens: int = 0,
    outcome: Outcome = Outcome.NONE,
    slot: int | None = None,
) -> CasIntent:
    """The move that `event`, made by `writer`, is to a slot whose flag word is `word`.

    `tokens` (>= 1) goes with FIRST_TOKEN and TOKENS, `outcome` with COMPLETE and ABORT; `slot`
    only makes the error message say where. Raises LocalViolation if the table, the writer or the
    arguments do not allow it, and PeerViolation if `word` is not a flag word at all.
    """
    before = unpack(word, slot=slot)
    target = TRANSITIONS.get((before.state, event))
    if target is None:
        reason = "the table has no such transition"
    elif WRITER_OF[event] is not writer:
        reason = f"only {WRITER_OF[event].name} may do this"
    elif (tokens >= 1) is not (event in TOKEN_EVENTS) or tokens < 0:
        reason = f"{tokens} tokens do not go with this event"
    elif outcome not in OUTCOMES_OF.get(event, _NO_OUTCOME):
        reason = f"the outcome {outcome.name} does not go with this event"
    elif before.tokens + tokens > TOKENS_MAX:
        reason = f"{before.tokens} + {tokens} tokens overflow the count ({TOKENS_MAX} at most)"
    else:
        return CasIntent(word, _after(before, event, target, tokens, outcome))
    raise LocalViolation(reason, slot=slot, state=before.state, event=event, writer=writer)


def _after(before: SlotWord, event: Event, target: State, tokens: int, outcome: Outcome) -> int:
    if event is Event.SUBMIT:
        return pack(target, Outcome.NONE, (before.generation + 1) % GENERATIONS, 0)
    if event is Event.RELEASE:
        # The generation stays: the slot is empty, but it has not forgotten whom it served.
        return pack(target, Outcome.NONE, before.generation, 0)
    return pack(target, outcome, before.generation, before.tokens + tokens)


def pack(state: State, outcome: Outcome, generation: int, tokens: int) -> int:
    """The flag word of these fields. Raises LocalViolation if a number has too many bits."""
    if not (0 <= generation < GENERATIONS and 0 <= tokens <= TOKENS_MAX):
        raise LocalViolation(f"generation {generation} or {tokens} tokens do not fit a flag word")
    return (
        state
        | (outcome << OUTCOME_SHIFT)
        | (generation << GENERATION_SHIFT)
        | (tokens << TOKENS_SHIFT)
    )


def unpack(word: int, *, slot: int | None = None) -> SlotWord:
    """The fields of a flag word. Raises PeerViolation if it holds no known state or outcome."""
    state, outcome = word & STATE_MASK, (word >> OUTCOME_SHIFT) & OUTCOME_MASK
    if state >= len(_STATES) or outcome >= len(_OUTCOMES) or not 0 <= word < 1 << 64:
        raise PeerViolation(f"{word:#018x} is not a flag word", slot=slot)
    return SlotWord(
        _STATES[state],
        _OUTCOMES[outcome],
        (word >> GENERATION_SHIFT) & GENERATION_MASK,
        word >> TOKENS_SHIFT,
    )


def explain(before: int, after: int) -> Event | None:
    """The one event that turns `before` into `after`, or None: nobody may write that.

    The inverse of `step`, for observers (traces, invariants) that see only words.
    """
    old, new = unpack(before), unpack(after)
    for (state, event), target in TRANSITIONS.items():
        if state is old.state and target is new.state:
            added = new.tokens - old.tokens if event in TOKEN_EVENTS else 0
            try:
                intent = step(before, event, WRITER_OF[event], tokens=added, outcome=new.outcome)
            except LocalViolation:
                continue
            if intent.desired == after:
                return event
    return None


def is_coherent(word: SlotWord) -> bool:
    """Can any sequence of events have left this word? State, outcome and tokens must agree."""
    if word.state is State.DECODE_COMPLETED:
        return word.outcome in _WRITTEN and (word.outcome in _ABORTED or word.tokens >= 1)
    decoding = word.state in (State.DECODE_PROCESSING, State.DECODE_PAUSED)
    return word.outcome is Outcome.NONE and (word.tokens >= 1) is decoding


def may_become(before: SlotWord, after: SlotWord) -> bool:
    """Could the scheduler alone, in any number of steps, have turned `before` into `after`?"""
    if before.state is State.DECODE_COMPLETED or before.state is State.EMPTY:
        return after == before
    return (
        after.generation == before.generation
        and after.tokens >= before.tokens
        and after.state in FUTURES_OF[before.state]
        and is_coherent(after)
    )
