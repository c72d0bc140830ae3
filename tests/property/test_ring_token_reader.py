"""The token reader finds everything once, whenever it looks, and its schedule has a closed form."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blink.ring_protocol.front_end import TokenReader
from blink.ring_protocol.slot import SlotWord, pack
from blink.ring_protocol.states import Outcome, State

SLOTS = 4
NOTHING = bytes(16 * SLOTS)


@st.composite
def readers(draw: st.DrawFn) -> TokenReader:
    """A reader somewhere in its schedule, with nothing to find."""
    shortest = draw(st.integers(1, 50))
    longest = draw(st.integers(shortest, 2000))
    reader = TokenReader(shortest, longest, 3, start_ns=draw(st.integers(0, 10_000)))
    if draw(st.booleans()):
        reader.watch(0, 1, reader.due_ns + draw(st.integers(0, 5000)))
    for _ in range(draw(st.integers(0, 3))):
        reader.poll(NOTHING, reader.due_ns)
    return reader


def copy_of(reader: TokenReader) -> TokenReader:
    copy = TokenReader(reader.interval_min_ns, reader.interval_max_ns, reader.slots_per_poll_max)
    copy.due_ns, copy.interval_ns = reader.due_ns, reader.interval_ns
    copy.polls, copy.polls_empty = reader.polls, reader.polls_empty
    return copy


@given(readers(), st.integers(-100, 20_000))
def test_the_closed_form_is_what_stepping_gives(reader: TokenReader, later_ns: int) -> None:
    time_ns = reader.due_ns + later_ns
    stepped = copy_of(reader)
    while stepped.due_ns < time_ns:
        stepped.poll(NOTHING, stepped.due_ns)
    assert reader.next_poll_at_or_after(time_ns) == stepped.due_ns
    skipped = reader.skip_empty_polls(time_ns)
    assert reader.due_ns == stepped.due_ns
    assert reader.interval_ns == stepped.interval_ns
    assert (reader.polls, reader.polls_empty) == (stepped.polls, stepped.polls_empty)
    assert (skipped == 0) is (later_ns <= 0)
    assert reader.due_ns >= time_ns


@given(readers())
def test_a_poll_skipped_for_its_known_news_leaves_the_schedule_of_one_made(
    reader: TokenReader,
) -> None:
    made = copy_of(reader)
    made.watch(2, 1, made.due_ns)
    due_ns = reader.due_ns
    made.due_ns, made.interval_ns = due_ns, reader.interval_ns
    decoding = pack(State.DECODE_PROCESSING, Outcome.NONE, 1, 1).to_bytes(8, "little")
    assert made.poll(bytes(32) + decoding + bytes(24), due_ns)
    reader.skip_found_poll()
    assert (reader.due_ns, reader.interval_ns) == (made.due_ns, made.interval_ns)
    assert (reader.polls, reader.polls_empty) == (made.polls, made.polls_empty)


@given(readers(), st.integers(0, 20_000))
def test_a_new_slot_is_looked_at_within_the_shortest_interval(
    reader: TokenReader, later_ns: int
) -> None:
    now_ns = reader.due_ns + later_ns
    reader.watch(1, 1, now_ns)
    assert now_ns <= reader.due_ns <= now_ns + reader.interval_min_ns


@given(readers())
def test_intervals_stay_within_their_bounds(reader: TokenReader) -> None:
    for _ in range(12):
        due_ns = reader.due_ns
        reader.poll(NOTHING, due_ns)
        assert reader.interval_min_ns <= reader.due_ns - due_ns <= reader.interval_max_ns
    assert reader.interval_ns == reader.interval_max_ns


@st.composite
def lives(draw: st.DrawFn) -> list[SlotWord]:
    """The words of one life of one slot, in order, from before its submission to its end."""
    words = [
        SlotWord(State.EMPTY, Outcome.NONE, 0, 0),
        SlotWord(State.PREFILL_PENDING, Outcome.NONE, 1, 0),
        SlotWord(State.PREFILL_PROCESSING, Outcome.NONE, 1, 0),
    ]
    tokens = 0
    for grown in draw(st.lists(st.integers(1, 3), max_size=6)):
        tokens += grown
        words.append(SlotWord(State.DECODE_PROCESSING, Outcome.NONE, 1, tokens))
        if draw(st.booleans()):
            words.append(SlotWord(State.DECODE_PAUSED, Outcome.NONE, 1, tokens))
    outcome = Outcome.STOP if tokens else Outcome.CANCELLED
    return [*words, SlotWord(State.DECODE_COMPLETED, outcome, 1, tokens)]


@given(st.lists(lives(), min_size=SLOTS, max_size=SLOTS), st.data(), st.integers(1, SLOTS))
def test_whatever_polls_are_skipped_every_token_is_reported_once_and_in_order(
    slots: list[list[SlotWord]], data: st.DataObject, slots_per_poll_max: int
) -> None:
    reader = TokenReader(1, 8, slots_per_poll_max)
    for slot in range(SLOTS):
        reader.watch(slot, 1, 0)
    at, reported, outcomes = [0] * SLOTS, [0] * SLOTS, dict[int, Outcome]()
    now_ns, patience = 0, 200
    while len(outcomes) < SLOTS and patience:
        now_ns, patience = now_ns + 1, patience - 1
        for slot, life in enumerate(slots):
            hurry = patience < 100  # by then everybody has finished
            at[slot] = (
                len(life) - 1
                if hurry
                else min(at[slot] + data.draw(st.integers(0, 3)), len(life) - 1)
            )
        metadata = b"".join(
            pack(*life[place]).to_bytes(8, "little") + bytes(8)
            for life, place in zip(slots, at, strict=True)
        )
        found = reader.poll(metadata, now_ns)
        assert len(found) <= slots_per_poll_max
        for slot, first, tokens, outcome in found:
            assert slot not in outcomes, "news after the end"
            assert first == reported[slot]
            reported[slot] += tokens
            if outcome is not None:
                outcomes[slot] = outcome
    assert reported == [life[-1].tokens for life in slots]
    assert outcomes == {slot: life[-1].outcome for slot, life in enumerate(slots)}
    assert reader.watched == 0
