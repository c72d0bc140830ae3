"""The paged KV ledger: how many blocks exist, who holds how many, and how long they will last.

Pure bookkeeping in blocks. Sequences of a running batch all grow by one token a step, so the blocks
that the next ``k`` steps need follow from how many sequences stand at which offset within a block:
one counter per offset answers "how many steps fit?" without looking at any sequence. It never
over-commits: a step that does not fit must first preempt, and asking for more than is free is a
bug. With a prefix cache (:mod:`blink.model.policy.prefix`) blocks whose contents may be found again
count as free while nobody holds them.
"""

from __future__ import annotations

from collections.abc import Sequence

from blink.model.policy.prefix import PrefixCache


class KvLedger:
    """Blocks of ``block_tokens`` tokens each; ``blocks_total`` of them.

    A *context* is the number of tokens whose keys and values are held. ``ordinal`` is the count of
    decode steps so far: a running sequence that joined at ordinal ``o`` with context ``c`` has
    context ``c + (ordinal - o)``.
    """

    __slots__ = (
        "_growing",
        "_held",
        "_left",
        "_offsets",
        "block_tokens",
        "blocks_free",
        "blocks_taken",
        "blocks_total",
        "prefixes",
    )

    def __init__(
        self, blocks_total: int, block_tokens: int, prefixes: PrefixCache | None = None
    ) -> None:
        assert blocks_total >= 1 and block_tokens >= 1
        self.blocks_total = blocks_total
        self.block_tokens = block_tokens
        self.blocks_free = blocks_total
        self._offsets = [0] * block_tokens
        self._growing = 0
        self._held: dict[int, int] = {}
        self.blocks_taken = 0
        self._left: dict[int, tuple[int, int]] = {}
        self.prefixes = prefixes

    def blocks_for(self, tokens: int) -> int:
        """Return the blocks that ``tokens`` tokens occupy."""
        return -(-tokens // self.block_tokens)

    def find(self, hashes: Sequence[int], context_tokens: int) -> tuple[int, int]:
        """Tokens of a prompt that are cached, and blocks of them that its admission need not take.

        The others lie idle: they count as free until they are held.
        """
        if self.prefixes is None:
            return 0, 0
        return self.prefixes.find(hashes, context_tokens)

    def hold(self, key: int, hashes: Sequence[int], context_tokens: int) -> int:
        """Keep for ``key``, which is about to be admitted, what :meth:`find` found; its tokens.

        All prompts of one step are held before the first is admitted, which may evict.
        """
        if self.prefixes is None:
            return 0
        tokens, woken = self.prefixes.hold(key, hashes, context_tokens)
        self._take(woken)
        return tokens

    def admit(self, key: int, context_tokens: int, hashes: Sequence[int] = ()) -> None:
        """Give ``key`` the blocks of its prompt. It does not grow until :meth:`start_growing`."""
        blocks = self.blocks_for(context_tokens)
        assert key not in self._held, f"sequence {key} already holds blocks"
        if self.prefixes is not None:
            blocks -= self.prefixes.held_blocks(key)
            self.prefixes.bring(key, hashes, context_tokens)
        assert blocks <= self.blocks_free, "admission beyond the free blocks: a policy bug"
        self._held[key] = context_tokens
        self._take(blocks)

    def computed(self, key: int) -> None:
        """The prompt of ``key`` is computed: from now on others may share it."""
        if self.prefixes is not None:
            self.prefixes.computed(key)

    def _take(self, blocks: int) -> None:
        self.blocks_free -= blocks
        self.blocks_taken += blocks
        if self.prefixes is not None:
            self.prefixes.make_room(self.blocks_free)

    def _give_back(self, key: int, blocks: int) -> None:
        """``key`` lets go of all its ``blocks``; those that others share are not free yet."""
        if self.prefixes is not None:
            blocks -= self.prefixes.held_blocks(key)
            blocks += self.prefixes.let_go(key)
        self.blocks_free += blocks
        assert self.blocks_free <= self.blocks_total, "a block was returned twice"

    def start_growing(self, key: int, ordinal: int) -> None:
        """From decode step ``ordinal`` on, ``key`` gains one token a step."""
        phase = (self._held[key] - ordinal) % self.block_tokens
        self._offsets[phase] += 1
        self._growing += 1
        self._held[key] -= ordinal

    def release(self, key: int, ordinal: int, *, growing: bool) -> int:
        """Return all blocks of ``key`` and say what its context was, in tokens."""
        context = self._held.pop(key)
        if growing:
            self._offsets[context % self.block_tokens] -= 1
            self._growing -= 1
            context += ordinal
        self._give_back(key, self.blocks_for(context))
        return context

    def blocks_of_step(self, ordinal: int) -> int:
        """Return the blocks that decode step ``ordinal`` takes."""
        return self._offsets[-ordinal % self.block_tokens]

    def steps_that_fit(self, ordinal: int, steps_max: int) -> int:
        """Return how many decode steps, at most ``steps_max``, the free blocks allow."""
        if not self._growing:
            return steps_max
        cycles = self.blocks_free // self._growing
        if cycles * self.block_tokens >= steps_max:
            return steps_max
        steps = cycles * self.block_tokens
        free = self.blocks_free - cycles * self._growing
        while steps < steps_max:
            free -= self._offsets[-(ordinal + steps) % self.block_tokens]
            if free < 0:
                return steps
            steps += 1
        return steps

    def grow(self, ordinal: int, steps: int) -> None:
        """Take the blocks of ``steps`` decode steps from ``ordinal`` on."""
        cycles, rest = divmod(steps, self.block_tokens)
        blocks = cycles * self._growing
        for step in range(ordinal, ordinal + rest):
            blocks += self._offsets[-step % self.block_tokens]
        assert blocks <= self.blocks_free, "growth beyond the free blocks: a policy bug"
        self._take(blocks)

    def remember(self, key: int, context_tokens: int) -> None:
        """``key`` was just released but may come back: note what its blocks still hold.

        Free blocks are reused oldest first, and of one sequence's blocks the last ones first.
        """
        blocks = context_tokens // self.block_tokens
        freed_before = self.blocks_free - self.blocks_for(context_tokens)
        self._left[key] = (blocks, self.blocks_taken + freed_before)

    def recall(self, key: int) -> int:
        """Return how many tokens of ``key`` are still in blocks that nobody has reused since."""
        blocks, reused_from = self._left.pop(key, (0, 0))
        return max(0, blocks - max(0, self.blocks_taken - reused_from)) * self.block_tokens

    @property
    def holders(self) -> int:
        """How many sequences hold blocks; 0 with all blocks free means that none leaked."""
        return len(self._held)
