"""Which slots are free, known without asking the GPU.

Finding a free slot must not cost a trip across the link, so the front end keeps its own view of
the ring. It can: it is the only writer of EMPTY slots. What it cannot know is what happened before
it started, or what another front end does; a bulk read of the metadata tells it that.
"""

from __future__ import annotations

from blink.ring_protocol.constants import SLOT_METADATA_BYTES, WORD_BYTES
from blink.ring_protocol.errors import LocalViolation
from blink.ring_protocol.slot import STATE_MASK
from blink.ring_protocol.states import State

_WORDS_PER_SLOT = SLOT_METADATA_BYTES // WORD_BYTES
_TAKEN, _FREE, _HELD = 0, 1, 2


class SlotTracker:
    """The free slots of a ring of `slots`, all of them free to begin with.

    own: the slots that this front end may use; the others belong to other front ends, for only one
    writer may leave EMPTY. A slot is *free*, *held* by this front end, or *taken* by somebody else.
    """

    def __init__(self, slots: int, own: range | None = None) -> None:
        self.slots = slots
        self.own = range(slots) if own is None else own
        if not (self.own.step == 1 and 0 <= self.own.start < self.own.stop <= slots):
            raise ValueError(f"{self.own} are not slots of a ring of {slots}")
        self.free_count = len(self.own)
        self._use = bytearray([_TAKEN]) * slots
        self._use[self.own.start : self.own.stop] = bytes([_FREE]) * len(self.own)
        self._words = [0] * slots
        self._hint = self.own.start

    def acquire(self) -> int | None:
        """Hold a free slot, or None if there is none.

        The search goes on where the last one ended: with slots released in about the order they
        were taken, the next one is almost always free, and a slot just released rests longest.
        """
        slot = self._use.find(_FREE, self._hint)
        if slot < 0:
            slot = self._use.find(_FREE, 0, self._hint)
            if slot < 0:
                return None
        self._use[slot] = _HELD
        self.free_count -= 1
        self._hint = slot + 1
        return slot

    def word(self, slot: int) -> int:
        """The EMPTY flag word that a submission to this held slot starts from."""
        return self._words[slot]

    def hold(self, slot: int) -> None:
        """Hold a slot of our own that is in use: an earlier front end left it so."""
        if self._use[slot] == _HELD or slot not in self.own:
            raise LocalViolation("not ours to take over", slot=slot)
        self.free_count -= self._use[slot] == _FREE
        self._use[slot] = _HELD

    def release(self, slot: int, word: int) -> None:
        """Free a held slot, whose flag word is now `word` (EMPTY, with its generation)."""
        if self._use[slot] != _HELD:
            raise LocalViolation("released, but this front end does not hold it", slot=slot)
        self._use[slot] = _FREE
        self._words[slot] = word
        self.free_count += 1

    def refresh(self, metadata: bytes | memoryview) -> None:
        """Learn from a bulk read of the metadata which of the slots not held here are free.

        Held slots are left alone: we know more about them than a read that may be older than our
        own writes. A slot that such a read shows as in use merely stays unused until the next one.
        """
        words = memoryview(metadata).cast("B").cast("Q")
        for slot in self.own:
            if self._use[slot] != _HELD:
                word = words[slot * _WORDS_PER_SLOT]
                free = word & STATE_MASK == State.EMPTY
                self._use[slot] = _FREE if free else _TAKEN
                self._words[slot] = word
        self.free_count = self._use.count(_FREE)
