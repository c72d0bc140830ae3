"""Prefix caching: KV blocks that several requests share because their prompts begin alike.

A prompt comes with the hashes of its prefixes, one for every ``hash_tokens`` tokens; equal hashes
mean that everything up to there is equal (vLLM's block hashes, Mooncake's ``hash_ids``). One
*entry* holds the KV blocks of one hash. It is *computed* once the prompt that brought it is; then
others may hold it too. When nobody does it lies *idle*: its blocks count as free, and the entry
that lay idle longest goes first when they are needed. Of one prompt the last entries go before the
first, for without its beginning a prefix is of no use (Kwon et al., PagedAttention, SOSP 2023;
Zheng et al., RadixAttention, NeurIPS 2024).

The blocks themselves are counted by the ledger (:mod:`blink.model.policy.kv`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Entry:
    holders: int
    computed: bool


class PrefixCache:
    """Which hashes are in the KV cache, and who holds them.

    hash_tokens: tokens of one hash; block_tokens: of one KV block, which divides it.
    hit_tokens: prompt tokens that were found; asked_tokens: that were looked for; evicted: entries.
    """

    __slots__ = (
        "_entries",
        "_held",
        "_idle",
        "asked_tokens",
        "blocks_per_entry",
        "evicted",
        "hash_tokens",
        "hit_tokens",
    )

    def __init__(self, hash_tokens: int, block_tokens: int) -> None:
        assert hash_tokens % block_tokens == 0
        self.hash_tokens = hash_tokens
        self.blocks_per_entry = hash_tokens // block_tokens
        self.hit_tokens = 0
        self.asked_tokens = 0
        self.evicted = 0
        self._entries: dict[int, _Entry] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._held: dict[int, list[int]] = {}

    @property
    def idle_blocks(self) -> int:
        """Blocks that hold something that may be found again, and that nobody holds."""
        return len(self._idle) * self.blocks_per_entry

    @property
    def entries(self) -> int:
        """Hashes in the cache, held or idle."""
        return len(self._entries)

    def held_blocks(self, key: int) -> int:
        """Blocks that ``key`` holds through entries, shared or not."""
        return len(self._held.get(key, ())) * self.blocks_per_entry

    def find(self, hashes: Sequence[int], prompt_tokens: int) -> tuple[int, int]:
        """How many tokens of a prompt are here, and in how many blocks that somebody else holds.

        At least one token is left: the last one must be computed to know what follows it.
        """
        found = self._found(hashes, prompt_tokens)
        held = sum(self._entries[each].holders > 0 for each in found)
        return len(found) * self.hash_tokens, held * self.blocks_per_entry

    def hold(self, key: int, hashes: Sequence[int], prompt_tokens: int) -> tuple[int, int]:
        """Hold for ``key`` what :meth:`find` found; return its tokens, and the blocks taken so."""
        assert key not in self._held, f"sequence {key} already holds a prefix"
        found = self._found(hashes, prompt_tokens)
        woken = 0
        for each in found:
            entry = self._entries[each]
            if not entry.holders:
                del self._idle[each]
                woken += 1
            entry.holders += 1
        self._held[key] = list(found)
        self.hit_tokens += len(found) * self.hash_tokens
        self.asked_tokens += prompt_tokens
        return len(found) * self.hash_tokens, woken * self.blocks_per_entry

    def bring(self, key: int, hashes: Sequence[int], prompt_tokens: int) -> None:
        """Enter the hashes that ``key`` computes itself, as far as nobody else is about to."""
        held = self._held[key]
        for each in hashes[len(held) : prompt_tokens // self.hash_tokens]:
            if each in self._idle:  # its beginning was evicted, so it could not be found
                self._evict(each)
            if each in self._entries:
                return
            self._entries[each] = _Entry(holders=1, computed=False)
            held.append(each)

    def computed(self, key: int) -> None:
        """The prompt of ``key`` is computed: others may hold what it brought."""
        for each in self._held.get(key, ()):
            self._entries[each].computed = True

    def let_go(self, key: int) -> int:
        """``key`` holds nothing any more; return the blocks that nobody holds now."""
        freed = 0
        for each in reversed(self._held.pop(key, [])):
            entry = self._entries[each]
            entry.holders -= 1
            if entry.holders:
                continue
            freed += self.blocks_per_entry
            if entry.computed:
                self._idle[each] = None
            else:
                del self._entries[each]
        return freed

    def make_room(self, blocks_free: int) -> None:
        """Forget idle entries, the oldest first, until all of them fit into the free blocks."""
        while self.idle_blocks > blocks_free:
            self._evict(next(iter(self._idle)))
            self.evicted += 1

    def _found(self, hashes: Sequence[int], prompt_tokens: int) -> Sequence[int]:
        most = min(len(hashes), (prompt_tokens - 1) // self.hash_tokens)
        for count in range(most):
            entry = self._entries.get(hashes[count])
            if entry is None or not entry.computed:
                return hashes[:count]
        return hashes[:most]

    def _evict(self, each: int) -> None:
        del self._idle[each]
        del self._entries[each]
