"""The KV ledger of sequences that may grow by several tokens a step, each by as many as it likes.

Before a step every running sequence has room for all that the step may write, ``lookahead`` tokens
(vLLM calls these lookahead slots). What it does not use it keeps: the next step needs it anyway.
So a sequence of context ``c`` holds the blocks of ``c + lookahead`` tokens while a step runs, and
whether one more step fits takes a look at every sequence.
"""

from __future__ import annotations

from blink.model.policy.kv import KvLedger
from blink.model.policy.prefix import PrefixCache


class LookaheadLedger(KvLedger):
    """See KvLedger; steps come one at a time, and :meth:`keep` says how far each sequence came."""

    __slots__ = ("_blocks", "lookahead")

    def __init__(
        self,
        blocks_total: int,
        block_tokens: int,
        lookahead: int,
        prefixes: PrefixCache | None = None,
    ) -> None:
        super().__init__(blocks_total, block_tokens, prefixes)
        self.lookahead = lookahead
        self._blocks: dict[int, int] = {}

    def start_growing(self, key: int, ordinal: int) -> None:
        """See KvLedger."""
        self._blocks[key] = self.blocks_for(self._held[key])

    def release(self, key: int, ordinal: int, *, growing: bool) -> int:
        """See KvLedger."""
        context = self._held.pop(key)
        self._give_back(key, self._blocks.pop(key) if growing else self.blocks_for(context))
        return context

    def blocks_of_step(self, ordinal: int) -> int:
        """See KvLedger; of the next step, whatever its ordinal."""
        return sum(self._short(key) for key in self._blocks)

    def steps_that_fit(self, ordinal: int, steps_max: int) -> int:
        """See KvLedger; 1 at most."""
        return min(steps_max, 1) if self.blocks_of_step(ordinal) <= self.blocks_free else 0

    def grow(self, ordinal: int, steps: int) -> None:
        """Take the blocks that one step may write to."""
        assert steps == 1, "how far a step comes is known after it"
        blocks = self.blocks_of_step(ordinal)
        assert blocks <= self.blocks_free, "growth beyond the free blocks: a policy bug"
        for key in self._blocks:
            self._blocks[key] += self._short(key)
        self._take(blocks)

    def keep(self, key: int, tokens: int) -> None:
        """``key`` came ``tokens`` tokens further."""
        assert 0 < tokens <= self.lookahead, "more tokens than the step had room for"
        self._held[key] += tokens

    def _short(self, key: int) -> int:
        return max(0, self.blocks_for(self._held[key] + self.lookahead) - self._blocks[key])
