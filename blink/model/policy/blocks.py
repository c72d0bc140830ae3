"""KV blocks by number: who holds which, as block tables that a graph reads on the device.

The twin counts blocks (``kv.KvLedger``); a scheduler on a GPU must say which. Free blocks are a
stack: the block freed last is the one given out next, which is what finds a stale table soonest.
"""

from __future__ import annotations


class BlockPool:
    """``blocks_total`` blocks of ``block_tokens`` tokens; tables by slot, oldest token first."""

    __slots__ = ("block_tokens", "blocks_total", "free", "tables")

    def __init__(self, blocks_total: int, block_tokens: int) -> None:
        assert blocks_total >= 1 and block_tokens >= 1
        self.blocks_total = blocks_total
        self.block_tokens = block_tokens
        self.free = list(range(blocks_total - 1, -1, -1))
        self.tables: dict[int, list[int]] = {}

    @property
    def blocks_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self.free)

    def blocks_for(self, tokens: int) -> int:
        """The blocks that ``tokens`` tokens occupy."""
        return -(-tokens // self.block_tokens)

    def blocks_short(self, slot: int, tokens: int) -> int:
        """The blocks that ``slot`` lacks to hold ``tokens`` tokens."""
        return max(0, self.blocks_for(tokens) - len(self.tables.get(slot, ())))

    def extend(self, slot: int, tokens: int) -> None:
        """Give ``slot`` the blocks it lacks for ``tokens`` tokens. There must be enough."""
        short = self.blocks_short(slot, tokens)
        assert short <= len(self.free), "blocks beyond the free ones: a policy bug"
        table = self.tables.setdefault(slot, [])
        for _ in range(short):
            table.append(self.free.pop())

    def release(self, slot: int) -> None:
        """Take all blocks of ``slot`` back, the last one first; none, if it holds none."""
        table = self.tables.pop(slot, [])
        while table:
            self.free.append(table.pop())
