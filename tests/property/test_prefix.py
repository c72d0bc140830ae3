"""Sharing by prefix never leaks a block, never gives one away, and only shares what is equal."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from blink.model.policy import KvLedger, PrefixCache

BLOCKS, BLOCK_TOKENS, HASH_TOKENS = 60, 4, 8
TEXT = st.tuples(*[st.integers(0, 1)] * 5)
PER_ENTRY = HASH_TOKENS // BLOCK_TOKENS


def hashes_of(text: tuple[int, ...]) -> list[int]:
    """A hash of everything up to each point, as a prefix hash is."""
    return [hash(text[: end + 1]) for end in range(len(text))]


class Sharing(RuleBasedStateMachine):
    """Prompts over two letters come, are computed, grow and go. Beside the ledger: what they are.

    ``texts``: the letters of each prompt that is in, one letter for each hash. ``done``: those that
    are computed. ``ever``: all hashes that were ever computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(HASH_TOKENS, BLOCK_TOKENS)
        self.kv = KvLedger(BLOCKS, BLOCK_TOKENS, self.cache)
        self.texts: dict[int, tuple[int, ...]] = {}
        self.contexts: dict[int, int] = {}
        self.done: set[int] = set()
        self.ever: set[int] = set()
        self.ordinal = 0
        self.next_key = 0

    @rule(texts=st.lists(TEXT, min_size=1, max_size=3), data=st.data())
    def admit_together(self, texts: list[tuple[int, ...]], data: st.DataObject) -> None:
        """One step's prompts: those that fit by what the policy is told."""
        group: list[tuple[int, list[int], int]] = []
        needed = 0
        for text in texts:
            tokens = data.draw(st.integers(1, len(text) * HASH_TOKENS))
            hashes = hashes_of(text)[: -(-tokens // HASH_TOKENS)]
            needed += self.kv.blocks_for(tokens + 1) - self.kv.find(hashes, tokens)[1]
            if needed <= self.kv.blocks_free:
                group.append((self.next_key, hashes, tokens))
                self.texts[self.next_key] = text
                self.next_key += 1
        found = {key: self.kv.find(hashes, tokens)[0] for key, hashes, tokens in group}
        for key, hashes, tokens in group:
            held = self.kv.hold(key, hashes, tokens)
            assert held == found[key] < tokens, "as found before the others were held"
            assert set(hashes[: held // HASH_TOKENS]) <= self.ever, "found what never was computed"
        for key, hashes, tokens in group:
            self.kv.admit(key, tokens, hashes)
            self.contexts[key] = tokens

    def waiting(self) -> list[int]:
        return sorted(self.texts.keys() - self.done)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.waiting()))
        self.kv.computed(key)
        self.kv.start_growing(key, self.ordinal)
        full = self.contexts[key] // HASH_TOKENS
        self.ever |= set(hashes_of(self.texts[key])[:full])
        self.done.add(key)

    @rule(steps=st.integers(1, 12))
    def grow(self, steps: int) -> None:
        fitting = self.kv.steps_that_fit(self.ordinal, steps)
        self.kv.grow(self.ordinal, fitting)
        self.ordinal += fitting
        for key in self.done:
            self.contexts[key] += fitting

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.texts)))
        context = self.kv.release(key, self.ordinal, growing=key in self.done)
        assert context == self.contexts.pop(key)
        del self.texts[key]
        self.done.discard(key)

    @invariant()
    def every_block_is_counted_once(self) -> None:
        held = self.cache.held_blocks
        private = sum(self.kv.blocks_for(c) - held(key) for key, c in self.contexts.items())
        shared = self.cache.entries * PER_ENTRY - self.cache.idle_blocks
        assert self.kv.blocks_free == BLOCKS - private - shared
        assert 0 <= self.cache.idle_blocks <= self.kv.blocks_free
        if not self.contexts:
            assert self.kv.blocks_free == BLOCKS and self.kv.holders == 0


TestSharing = Sharing.TestCase


def ledger(blocks: int) -> KvLedger:
    return KvLedger(blocks, 4, PrefixCache(8, 4))


def serve(kv: KvLedger, key: int, hashes: list[int], tokens: int) -> int:
    """Admit and compute a prompt; return what was found of it."""
    found = kv.hold(key, hashes, tokens)
    kv.admit(key, tokens, hashes)
    kv.computed(key)
    return found


def test_a_second_prompt_takes_only_what_is_its_own() -> None:
    kv = ledger(20)
    assert serve(kv, 1, [7, 8, 9], 24) == 0
    assert kv.blocks_free == 14
    assert serve(kv, 2, [7, 8, 10], 24) == 16
    assert kv.blocks_free == 12, "two blocks of its own"
    kv.release(1, 0, growing=False)
    assert kv.blocks_free == 14, "the shared ones stay with the second"
    kv.release(2, 0, growing=False)
    assert kv.blocks_free == 20


def test_the_last_token_is_always_computed() -> None:
    kv = ledger(20)
    serve(kv, 1, [7, 8], 16)
    assert serve(kv, 2, [7, 8], 16) == 8


def test_what_lay_idle_longest_goes_first_and_ends_before_beginnings() -> None:
    kv = ledger(6)
    serve(kv, 1, [1, 2], 17)
    kv.release(1, 0, growing=False)
    serve(kv, 2, [], 12)  # three blocks: one entry must go
    assert kv.prefixes is not None and kv.prefixes.evicted == 1
    assert kv.find([1, 2], 17) == (8, 0)


def test_prompts_of_one_step_do_not_share_what_neither_has_computed() -> None:
    kv = ledger(20)
    for key in (1, 2):
        assert kv.hold(key, [5], 9) == 0
    for key in (1, 2):
        kv.admit(key, 9, [5])
    assert kv.blocks_free == 14
    kv.computed(1)
    assert kv.find([5], 9) == (8, 2)
    for key in (1, 2):
        kv.release(key, 0, growing=False)
    assert kv.blocks_free == 20


def test_a_prompt_that_ends_before_it_is_computed_leaves_nothing() -> None:
    kv = ledger(20)
    kv.hold(1, [5], 9)
    kv.admit(1, 9, [5])
    kv.release(1, 0, growing=False)
    assert kv.blocks_free == 20 and kv.find([5], 9) == (0, 0)
