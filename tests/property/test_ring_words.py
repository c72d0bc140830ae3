"""What holds of every flag word, launch count and slot, not only of those we thought of."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.ring_protocol.constants import GENERATIONS, LAUNCH_WINDOW_MAX
from blink.ring_protocol.errors import LocalViolation, ProtocolViolation, WindowExhausted
from blink.ring_protocol.front_end import SlotTracker
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.slot import (
    SlotWord,
    explain,
    is_coherent,
    may_become,
    pack,
    step,
    unpack,
)
from blink.ring_protocol.states import (
    OUTCOMES_OF,
    TOKEN_EVENTS,
    WRITER_OF,
    Event,
    Outcome,
    State,
    Writer,
)
from blink.ring_protocol.window import LaunchWindow
from blink.testing import strategies

NO_OUTCOME = frozenset({Outcome.NONE})
BOTH = st.integers(0, (1 << 64) - 1)


def successors(word: SlotWord, writers: tuple[Writer, ...] = tuple(Writer)) -> set[SlotWord]:
    """Every word that one legal event can make of this one, adding at most two tokens."""
    found = set()
    for event in Event:
        for tokens in (1, 2) if event in TOKEN_EVENTS else (0,):
            for outcome in OUTCOMES_OF.get(event, NO_OUTCOME):
                if WRITER_OF[event] in writers:
                    try:
                        intent = step(
                            pack(*word), event, WRITER_OF[event], tokens=tokens, outcome=outcome
                        )
                    except LocalViolation:
                        continue
                    found.add(unpack(intent.desired))
    return found


def reachable(word: SlotWord, tokens_max: int) -> set[SlotWord]:
    """Every word that the scheduler alone can make of this one, up to a token count."""
    found, queue = {word}, deque([word])
    while queue:
        for after in successors(queue.popleft(), (Writer.SCHEDULER,)):
            if after not in found and after.tokens <= tokens_max:
                found.add(after)
                queue.append(after)
    return found


@given(strategies.slot_words)
def test_packing_loses_nothing(word: SlotWord) -> None:
    assert unpack(pack(*word)) == word


@given(BOTH)
def test_unpacking_any_64_bits_is_a_word_or_a_violation(bits: int) -> None:
    try:
        word = unpack(bits)
    except ProtocolViolation:
        return
    assert pack(*word) == bits


@pytest.mark.parametrize("bits", [-1, 1 << 64, 1 << 64 | 1, (1 << 65) - 1])
def test_what_is_no_64_bits_is_a_violation(bits: int) -> None:
    with pytest.raises(ProtocolViolation):
        unpack(bits)


@given(strategies.coherent_words)
def test_no_event_leads_out_of_the_possible(word: SlotWord) -> None:
    for after in successors(word):
        assert is_coherent(after)


@given(strategies.coherent_words)
def test_an_observer_can_tell_which_event_it_was(word: SlotWord) -> None:
    for after in successors(word):
        event = explain(pack(*word), pack(*after))
        assert event is not None
        tokens = after.tokens - word.tokens if event in TOKEN_EVENTS else 0
        again = step(pack(*word), event, WRITER_OF[event], tokens=tokens, outcome=after.outcome)
        assert again.desired == pack(*after)


@given(strategies.slot_words, strategies.slot_words)
def test_what_no_event_explains_no_event_makes(before: SlotWord, after: SlotWord) -> None:
    event = explain(pack(*before), pack(*after))
    near = abs(after.tokens - before.tokens) <= 2
    if near:
        assert (event is not None) is (after in successors(before))


@given(strategies.coherent_words, strategies.events, strategies.writers, strategies.outcomes)
def test_only_a_submission_begins_a_generation(
    word: SlotWord, event: Event, writer: Writer, outcome: Outcome
) -> None:
    try:
        intent = step(
            pack(*word), event, writer, tokens=int(event in TOKEN_EVENTS), outcome=outcome
        )
    except LocalViolation:
        return
    begun = int(event is Event.SUBMIT)
    assert unpack(intent.desired).generation == (word.generation + begun) % GENERATIONS


def test_may_become_is_exactly_what_the_scheduler_can_reach() -> None:
    """Exhaustive for up to three tokens: every coherent word against every other."""
    words = [
        word
        for state in State
        for outcome in Outcome
        for tokens in range(4)
        if is_coherent(word := SlotWord(state, outcome, 5, tokens))
    ]
    assert len(words) > 20
    for before in words:
        futures = reachable(before, tokens_max=3)
        assert {word for word in words if may_become(before, word)} == futures


@given(st.integers(1, LAUNCH_WINDOW_MAX), st.lists(st.integers(1, 150)))
def test_no_execution_launches_more_than_its_window(size: int, counts: list[int]) -> None:
    window, in_execution, total = LaunchWindow(size), 0, 0
    for count in counts:
        try:
            window.launch(count)
        except WindowExhausted:
            assert in_execution + count > size, "refused with room left"
            window.relaunch()
            in_execution = 0
        else:
            in_execution += count
            total += count
        assert in_execution == window.launches <= size <= LAUNCH_WINDOW_MAX
        assert window.headroom == size - in_execution
        assert window.launches_total == total


@given(st.lists(st.sampled_from("abc")))
def test_no_exec_is_launched_twice_in_a_row(graphs: list[str]) -> None:
    window, last = LaunchWindow(), dict[str, int]()
    for graph in graphs:
        turn = window.alternate(graph)
        assert last.get(graph) != turn
        last[graph] = turn


@given(strategies.geometries)
def test_no_two_things_share_a_byte(ring: Geometry) -> None:
    first, last = 0, ring.slots - 1
    ends = [
        (ring.metadata_offset(first), ring.metadata_offset(last) + 16),
        (ring.descriptor_offset(first), ring.descriptor_offset(last) + 64),
        (ring.prompt_offset(first), ring.prompt_offset(last) + 4 * ring.prompt_tokens_max),
        (ring.output_offset(first), ring.output_offset(last, ring.output_tokens_max)),
        (ring.total_bytes, ring.total_bytes),
    ]
    for (_, end), (begin, _) in pairwise(ends):
        assert end <= begin < end + 4096
    for slot in {first, last}:
        assert ring.cancel_offset(slot) % 8 == ring.metadata_offset(slot) % 8 == 0


@given(st.integers(1, 5), st.lists(st.one_of(st.none(), st.integers(0, 4))))
def test_the_slot_tracker_never_gives_a_slot_twice(slots: int, actions: list[int | None]) -> None:
    tracker, held = SlotTracker(slots), list[int]()
    for action in actions:
        if action is None:
            slot = tracker.acquire()
            assert (slot is None) is (len(held) == slots)
            if slot is not None:
                assert slot not in held
                held.append(slot)
        elif held:
            tracker.release(held.pop(action % len(held)), 0)
        assert tracker.free_count == slots - len(held)


@given(st.data(), st.integers(1, 6))
def test_a_refresh_frees_nothing_that_is_held(data: st.DataObject, slots: int) -> None:
    tracker = SlotTracker(slots)
    count = data.draw(st.integers(0, slots))
    held = {tracker.acquire() for _ in range(count)}
    words = data.draw(st.lists(strategies.coherent_words, min_size=slots, max_size=slots))
    tracker.refresh(b"".join(pack(*word).to_bytes(8, "little") + bytes(8) for word in words))
    free = {slot for slot in range(slots) if words[slot].state is State.EMPTY} - held
    assert tracker.free_count == len(free)
    given_out = {tracker.acquire() for _ in range(len(free))}
    assert given_out == free
    for slot in free:
        assert tracker.word(slot) == pack(*words[slot])
