"""What is new in the ring, found by reading all of its metadata at once.

One bulk read a poll; the flag word of every watched slot is compared with the last one seen. A
difference in the token count is news, and so is an outcome. Slots whose first token is awaited are
*urgent*: they are looked at first, for nothing is as visible to a client as its first token.

When to poll is decided here too, and the clock is the caller's:

* after a poll that found news, and when a slot begins to be watched, the interval is the shortest;
* after a poll that found none, it doubles, up to the longest;
* intervals run from one read's posting to the next one's.

A run of polls that find nothing is therefore a fixed sequence. `next_poll_at_or_after` computes it
without going through it, which is how a simulation pays nothing for an idle ring.

What a poll finds does not depend on which polls came before: news is a difference of counts, never
a transition observed. So polls may be late, rare or skipped, and nothing is lost.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from blink.ring_protocol.constants import GENERATIONS, SLOT_METADATA_BYTES, WORD_BYTES
from blink.ring_protocol.errors import LocalViolation, PeerViolation
from blink.ring_protocol.slot import (
    GENERATION_MASK,
    SAME_LIFE_MASK,
    STATE_MASK,
    TOKENS_SHIFT,
    SlotWord,
    may_become,
    pack,
    unpack,
)
from blink.ring_protocol.states import Outcome, State, Writer

_WORDS_PER_SLOT: Final = SLOT_METADATA_BYTES // WORD_BYTES
_DECODE_STATES: Final = frozenset({int(State.DECODE_PROCESSING), int(State.DECODE_PAUSED)})
_DECODING: Final = int(State.DECODE_PROCESSING)
_PAUSE: Final = int(State.DECODE_PAUSED) - _DECODING
_SAME_REQUEST_MASK: Final = SAME_LIFE_MASK & ~STATE_MASK
"""Generation and outcome: what two words of one living request share."""


class Progress(NamedTuple):
    """News of one slot: `tokens` more from output index `first` on, and how it ended, if it did.

    A tuple, not a dataclass: one is made for every watched slot at every step of the model.
    """

    slot: int
    first: int
    tokens: int
    outcome: Outcome | None


class TokenReader:
    """Watches slots, and says when to read the metadata next.

    interval_min_ns, interval_max_ns: bounds of the polling interval.
    slots_per_poll_max: slots whose news one poll may report; the others wait for the next poll.
    last_poll_full: the last poll left news for the next one.
    """

    def __init__(
        self, interval_min_ns: int, interval_max_ns: int, slots_per_poll_max: int, start_ns: int = 0
    ) -> None:
        if not 1 <= interval_min_ns <= interval_max_ns:
            raise ValueError(f"poll interval {interval_min_ns} to {interval_max_ns} ns")
        if slots_per_poll_max < 1:
            raise ValueError(f"slots_per_poll_max is {slots_per_poll_max}, must be at least 1")
        self.interval_min_ns = interval_min_ns
        self.interval_max_ns = interval_max_ns
        self.slots_per_poll_max = slots_per_poll_max
        self.due_ns = start_ns + interval_max_ns
        self.interval_ns = interval_max_ns
        self.polls = 0
        self.polls_empty = 0
        self.words_stale = 0
        self.last_poll_full = False
        self._ramp, self._ramp_ns = _ramp(interval_min_ns, interval_max_ns)
        self._urgent: dict[int, int] = {}  # slot -> flag word last seen
        self._steady: dict[int, int] = {}

    @property
    def watched(self) -> int:
        """How many slots are watched."""
        return len(self._urgent) + len(self._steady)

    def watch(self, slot: int, generation: int, now_ns: int) -> None:
        """Expect news of this generation of a slot that has just been submitted."""
        if slot in self._urgent or slot in self._steady:
            raise LocalViolation("already watched", slot=slot, writer=Writer.FRONT_END)
        self._urgent[slot] = pack(State.PREFILL_PENDING, Outcome.NONE, generation, 0)
        self.skip_empty_polls(now_ns)
        self.interval_ns = self.interval_min_ns
        self.due_ns = min(self.due_ns, now_ns + self.interval_min_ns)

    def take_over(self, slot: int, word: int) -> None:
        """Watch a slot that an earlier front end left in use, from this flag word on."""
        if slot in self._urgent or slot in self._steady:
            raise LocalViolation("already watched", slot=slot, writer=Writer.FRONT_END)
        if word >> TOKENS_SHIFT:
            self._steady[slot] = _as_decoding(word)
        else:
            self._urgent[slot] = word

    def unwatch(self, slot: int) -> None:
        """Expect no more of a slot. A poll that reports an outcome has done this already."""
        self._urgent.pop(slot, None)
        self._steady.pop(slot, None)

    def poll(self, metadata: bytes | memoryview, posted_ns: int) -> list[Progress]:
        """The news in a bulk read of the metadata that was posted at `posted_ns`.

        metadata: slots x 16 bytes, as bytes or as a memoryview of bytes or of 64-bit words.
        Raises PeerViolation for a word that the scheduler cannot have written.
        """
        self.last_poll_full = False
        found: list[Progress] = []
        steady, new = self._steady, tuple.__new__  # Progress(...) at half the price
        for slot, seen, word in self._changed(_as_words(metadata)):
            if len(found) == self.slots_per_poll_max:
                self.last_poll_full = True
                self._let_others_first(found)
                break
            tokens = (word >> TOKENS_SHIFT) - (seen >> TOKENS_SHIFT)
            if (
                tokens >= 0
                and (word ^ seen) & _SAME_REQUEST_MASK == 0
                and word & STATE_MASK in _DECODE_STATES
                and slot in steady
            ):
                # By far the most frequent news: a slot has decoded on, or been paused since.
                steady[slot] = _as_decoding(word)
                if tokens:
                    found.append(new(Progress, (slot, seen >> TOKENS_SHIFT, tokens, None)))
            elif (progress := self._look_closely(slot, seen, word)) is not None:
                found.append(progress)
        self._schedule(posted_ns, bool(found))
        return found

    def has_news(self, metadata: bytes | memoryview) -> bool:
        """Whether `poll` would look at any slot; changes nothing."""
        return bool(self._changed(_as_words(metadata)))

    # --- when --------------------------------------------------------------------------------

    def next_poll_at_or_after(self, time_ns: int) -> int:
        """When the first scheduled poll at or after `time_ns` is, if those before it are empty."""
        due_ns, _, _ = self._fast_forward(time_ns)
        return due_ns

    def skip_empty_polls(self, until_ns: int) -> int:
        """Account for the polls due before `until_ns` as if each had been made and found nothing.

        Returns how many there were. Afterwards `due_ns` is `next_poll_at_or_after(until_ns)`.
        """
        self.due_ns, self.interval_ns, skipped = self._fast_forward(until_ns)
        self.polls += skipped
        self.polls_empty += skipped
        return skipped

    def skip_found_poll(self) -> None:
        """Account for the poll that is due as if it had been made and had found news."""
        self._schedule(self.due_ns, True)

    def _fast_forward(self, time_ns: int) -> tuple[int, int, int]:
        """(due, interval, polls passed) of the schedule at `time_ns`, all polls being empty."""
        due_ns, interval_ns, passed = self.due_ns, self.interval_ns, 0
        if interval_ns == self.interval_min_ns and time_ns - due_ns > self._ramp_ns:
            due_ns, interval_ns, passed = due_ns + self._ramp_ns, self.interval_max_ns, self._ramp
        while due_ns < time_ns and interval_ns < self.interval_max_ns:  # a few doublings at most
            interval_ns = min(2 * interval_ns, self.interval_max_ns)
            due_ns += interval_ns
            passed += 1
        if due_ns < time_ns:
            rest = -(-(time_ns - due_ns) // interval_ns)
            due_ns += rest * interval_ns
            passed += rest
        return due_ns, interval_ns, passed

    def _schedule(self, posted_ns: int, found: bool) -> None:
        self.polls += 1
        if found:
            self.interval_ns = self.interval_min_ns
        else:
            self.polls_empty += 1
            self.interval_ns = min(2 * self.interval_ns, self.interval_max_ns)
        self.due_ns = posted_ns + self.interval_ns

    # --- what --------------------------------------------------------------------------------

    def _changed(self, words: memoryview) -> list[tuple[int, int, int]]:
        """(slot, word last seen, word now) where there is news, urgent slots first.

        A steady slot is remembered as decoding; that it is paused meanwhile is no news.
        """
        changed = [
            (slot, seen, word)
            for slot, seen in self._urgent.items()
            if (word := words[slot * _WORDS_PER_SLOT]) != seen
        ]
        changed += [
            (slot, seen, word)
            for slot, seen in self._steady.items()
            if (word := words[slot * _WORDS_PER_SLOT]) != seen and word != seen + _PAUSE
        ]
        return changed

    def _look_closely(self, slot: int, seen_word: int, word: int) -> Progress | None:
        """The news between two words of a slot, or None if there is none."""
        seen, now = unpack(seen_word, slot=slot), unpack(word, slot=slot)
        if not may_become(seen, now):
            self._check_stale(slot, seen, now)
            return None
        tokens = now.tokens - seen.tokens
        if now.state is State.DECODE_COMPLETED:
            self.unwatch(slot)
            return _progress(slot, seen.tokens, tokens, now.outcome)
        if now.tokens == 0:
            self._urgent[slot] = word
            return None
        self._urgent.pop(slot, None)
        self._steady[slot] = _as_decoding(word)
        return _progress(slot, seen.tokens, tokens, None) if tokens else None

    def _check_stale(self, slot: int, seen: SlotWord, now: SlotWord) -> None:
        """Count a word from before the last one seen; a word from nowhere is a violation.

        A read posted before our own submission has landed shows an earlier generation, and a
        link that repeats an old answer shows an earlier word of this one.
        """
        behind = (seen.generation - now.generation) & GENERATION_MASK
        earlier_generation = 0 < behind < GENERATIONS // 2
        if not earlier_generation and not may_become(now, seen):
            raise PeerViolation(
                f"{now} cannot follow {seen}", slot=slot, state=now.state, writer=Writer.SCHEDULER
            )
        self.words_stale += 1

    def _let_others_first(self, served: list[Progress]) -> None:
        """Move the steady slots just served behind those that a full poll left waiting."""
        for slot, _, _, _ in served:
            if slot in self._steady:
                self._steady[slot] = self._steady.pop(slot)


def _ramp(interval_ns: int, interval_max_ns: int) -> tuple[int, int]:
    """How many empty polls it takes from the shortest interval to the longest, and how long."""
    polls = ramp_ns = 0
    while interval_ns < interval_max_ns:
        interval_ns = min(2 * interval_ns, interval_max_ns)
        ramp_ns += interval_ns
        polls += 1
    return polls, ramp_ns


def _as_decoding(word: int) -> int:
    """The word of a decoding or paused slot, as if it were decoding."""
    return word - (word & STATE_MASK) + _DECODING


def _as_words(metadata: bytes | memoryview) -> memoryview:
    view = memoryview(metadata)
    return view if view.format == "Q" else view.cast("Q")


def _progress(slot: int, first: int, tokens: int, outcome: Outcome | None) -> Progress:
    """Half the price of the constructor, which a decoding batch pays for every slot and step."""
    return tuple.__new__(Progress, (slot, first, tokens, outcome))
