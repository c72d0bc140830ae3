"""The C++ core decides as the Python reference does, and writes the same bytes."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blink.ring_protocol.constants import TOKENS_MAX
from blink.ring_protocol.slot import pack
from blink.ring_protocol.states import Event, Outcome, State, Writer
from tests.differential import cases

pytestmark = pytest.mark.usefixtures("host_build")


@pytest.mark.parametrize("event", Event)
def test_every_edge_of_the_table_and_no_other(event: Event) -> None:
    for state, outcome, word_tokens in product(State, Outcome, (0, 1, TOKENS_MAX)):
        word = pack(state, outcome, 7, word_tokens)
        for writer, tokens, written in product(Writer, (-1, 0, 1, 2, TOKENS_MAX), Outcome):
            cases.same_step((word, event, writer, tokens, written))


@given(st.lists(cases.STEPS, max_size=40))
def test_steps(drawn: list[cases.StepCase]) -> None:
    for case in drawn:
        cases.same_step(case)


@given(st.lists(cases.ASKED, max_size=40))
def test_cancel_words(drawn: list[cases.AskedCase]) -> None:
    for case in drawn:
        cases.same_asked(case)


@given(cases.OFFSETS)
def test_offsets(case: cases.OffsetCase) -> None:
    cases.same_offsets(case)


@given(st.lists(cases.DECISIONS, max_size=10))
def test_decisions(drawn: list[cases.DecideCase]) -> None:
    for case in drawn:
        cases.same_decision(case)


@given(cases.RINGS)
def test_whatever_is_done_to_a_ring(case: cases.RingCase) -> None:
    cases.same_ring(case)


@given(cases.WALKS)
@settings(max_examples=200)
def test_whole_schedulers(seed: int) -> None:
    cases.same_walk(seed)


@given(cases.WALKS)
def test_a_team_ends_where_single_steps_end(seed: int) -> None:
    cases.same_turns(seed)
