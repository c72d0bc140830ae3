"""The ledger's shortcuts (one counter an offset) agree with counting every sequence's blocks."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from blink.model.policy import KvLedger

BLOCKS, BLOCK_TOKENS = 40, 4


class Ledger(RuleBasedStateMachine):
    """Sequences come, grow and go; beside the ledger stands the plain list of contexts."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = KvLedger(BLOCKS, BLOCK_TOKENS)
        self.ordinal = 0
        self.growing: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.next_key = 0

    def naive_free(self, more: int = 0) -> int:
        contexts = [c + more for c in self.growing.values()] + list(self.waiting.values())
        return BLOCKS - sum(-(-c // BLOCK_TOKENS) for c in contexts)

    @rule(tokens=st.integers(1, 20))
    def admit(self, tokens: int) -> None:
        if self.kv.blocks_for(tokens) <= self.kv.blocks_free:
            self.kv.admit(self.next_key, tokens)
            self.waiting[self.next_key] = tokens
            self.next_key += 1

    @precondition(lambda self: self.waiting)
    @rule()
    def start(self) -> None:
        key, tokens = self.waiting.popitem()
        self.kv.start_growing(key, self.ordinal)
        self.growing[key] = tokens

    @rule(steps=st.integers(1, 12))
    def grow(self, steps: int) -> None:
        fitting = self.kv.steps_that_fit(self.ordinal, steps)
        naive = max(n for n in range(steps + 1) if self.naive_free(n) >= 0)
        assert fitting == naive
        if fitting:
            self.kv.grow(self.ordinal, fitting)
            self.ordinal += fitting
            self.growing = {key: c + fitting for key, c in self.growing.items()}

    @precondition(lambda self: self.growing)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.growing)))
        assert self.kv.release(key, self.ordinal, growing=True) == self.growing.pop(key)

    @precondition(lambda self: self.waiting)
    @rule()
    def give_up(self) -> None:
        key, tokens = self.waiting.popitem()
        assert self.kv.release(key, self.ordinal, growing=False) == tokens

    @invariant()
    def the_ledger_counts_right(self) -> None:
        assert self.kv.blocks_free == self.naive_free()
        assert self.kv.holders == len(self.growing) + len(self.waiting)
        assert self.kv.blocks_of_step(self.ordinal) == self.naive_free() - self.naive_free(1)


TestLedger = Ledger.TestCase


def test_what_a_preempted_sequence_finds_again() -> None:
    """Free blocks are reused oldest first, so its own last blocks go before its first ones."""
    kv = KvLedger(10, 4)
    kv.admit(1, 16)
    kv.release(1, 0, growing=False)
    kv.remember(1, 16)
    kv.admit(2, 24)  # the six blocks that were free before
    assert kv.recall(1) == 16
    kv.remember(1, 16)
    assert kv.recall(1) == 16 and kv.recall(1) == 0, "asked once"


def test_nothing_is_found_again_once_it_is_reused() -> None:
    kv = KvLedger(10, 4)
    kv.admit(1, 16)
    kv.release(1, 0, growing=False)
    kv.remember(1, 16)
    kv.admit(2, 32)
    assert kv.recall(1) == 8
