"""The table: complete, closed, and merciless."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from blink.ring_protocol import diagram
from blink.ring_protocol.constants import TOKENS_MAX
from blink.ring_protocol.errors import LocalViolation
from blink.ring_protocol.slot import pack, step, unpack
from blink.ring_protocol.states import (
    FUTURES_OF,
    OUTCOMES_OF,
    OWNER_OF,
    TOKEN_EVENTS,
    TRANSITIONS,
    WRITER_OF,
    Event,
    Outcome,
    State,
    Writer,
)

EVERYTHING = list(product(State, Event, Writer))
LEGAL = [
    (state, event, writer)
    for state, event, writer in EVERYTHING
    if (state, event) in TRANSITIONS and WRITER_OF[event] is writer
]


def some_outcome(event: Event) -> Outcome:
    return min(OUTCOMES_OF.get(event, {Outcome.NONE}))


@pytest.mark.parametrize(("state", "event", "writer"), EVERYTHING)
def test_the_table_decides_every_case(state: State, event: Event, writer: Writer) -> None:
    word = pack(state, Outcome.NONE, 7, 3)
    tokens, outcome = int(event in TOKEN_EVENTS), some_outcome(event)
    if (state, event, writer) in LEGAL:
        intent = step(word, event, writer, tokens=tokens, outcome=outcome)
        assert intent.expected == word
        assert unpack(intent.desired).state is TRANSITIONS[state, event]
    else:
        with pytest.raises(LocalViolation) as caught:
            step(word, event, writer, tokens=tokens, outcome=outcome, slot=12)
        assert (caught.value.slot, caught.value.state) == (12, state)
        assert (caught.value.event, caught.value.writer) == (event, writer)
        for named in ("slot 12", state.name, OWNER_OF[state].name, event.name, writer.name):
            assert named in str(caught.value)


@pytest.mark.parametrize(("state", "event", "writer"), LEGAL)
def test_an_event_takes_its_own_arguments_only(state: State, event: Event, writer: Writer) -> None:
    word = pack(state, Outcome.NONE, 7, 3)
    right_tokens = int(event in TOKEN_EVENTS)
    for tokens in (-1, 1 - right_tokens, TOKENS_MAX + 1):
        with pytest.raises(LocalViolation):
            step(word, event, writer, tokens=tokens, outcome=some_outcome(event))
    for outcome in set(Outcome) - OUTCOMES_OF.get(event, frozenset({Outcome.NONE})):
        with pytest.raises(LocalViolation):
            step(word, event, writer, tokens=right_tokens, outcome=outcome)


def test_a_life_ends_where_it_began_one_generation_later() -> None:
    life = [
        (Event.SUBMIT, 0, Outcome.NONE),
        (Event.CLAIM, 0, Outcome.NONE),
        (Event.FIRST_TOKEN, 1, Outcome.NONE),
        (Event.TOKENS, 5, Outcome.NONE),
        (Event.PAUSE, 0, Outcome.NONE),
        (Event.RESUME, 0, Outcome.NONE),
        (Event.COMPLETE, 0, Outcome.STOP),
        (Event.RELEASE, 0, Outcome.NONE),
    ]
    word = pack(State.EMPTY, Outcome.NONE, 41, 0)
    for event, tokens, outcome in life:
        word = step(word, event, WRITER_OF[event], tokens=tokens, outcome=outcome).desired
    assert unpack(word) == (State.EMPTY, Outcome.NONE, 42, 0)


def test_the_front_end_owns_the_ends_of_a_life_and_the_scheduler_the_rest() -> None:
    front_end = {state for state, owner in OWNER_OF.items() if owner is Writer.FRONT_END}
    assert front_end == {State.EMPTY, State.DECODE_COMPLETED}


def test_the_scheduler_cannot_reach_what_it_does_not_own() -> None:
    assert FUTURES_OF[State.EMPTY] == {State.EMPTY}
    assert FUTURES_OF[State.DECODE_COMPLETED] == {State.DECODE_COMPLETED}
    assert FUTURES_OF[State.PREFILL_PENDING] == set(State) - {State.EMPTY}


def test_no_slot_holds_an_outcome_that_only_the_front_end_gives() -> None:
    written = frozenset().union(*OUTCOMES_OF.values())
    assert written == set(Outcome) - {Outcome.NONE, Outcome.REJECTED}


def test_the_documented_state_machine_is_the_one_in_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "state_machine.md"
    assert page.read_text(encoding="utf-8") == diagram.page(), (
        "python -m blink.ring_protocol.diagram > docs/state_machine.md"
    )


def test_the_last_token_that_fits_is_counted_and_the_next_one_overflows() -> None:
    """By one token: a mutation of the limit survived every other test."""
    almost = pack(State.DECODE_PROCESSING, Outcome.NONE, 1, TOKENS_MAX - 1)
    full = step(almost, Event.TOKENS, Writer.SCHEDULER, tokens=1).desired
    assert unpack(full).tokens == TOKENS_MAX
    with pytest.raises(LocalViolation, match="overflow the count"):
        step(full, Event.TOKENS, Writer.SCHEDULER, tokens=1)
