"""KV caches of preempted sequences in the host's memory: who lies there, in how many blocks.

A sequence goes there whole or not at all. If there is no room, it is computed anew instead.
"""

from __future__ import annotations


class OffloadPool:
    """``blocks_total`` KV blocks of host memory. ``refused`` counts sequences without room."""

    __slots__ = ("_held", "blocks_free", "blocks_total", "refused")

    def __init__(self, blocks_total: int) -> None:
        self.blocks_total = blocks_total
        self.blocks_free = blocks_total
        self.refused = 0
        self._held: dict[int, int] = {}

    def holds(self, key: int) -> bool:
        """Whether the cache of ``key`` lies here."""
        return key in self._held

    def put(self, key: int, blocks: int) -> bool:
        """Take in the cache of ``key``; False, and nothing taken, if there is no room."""
        assert key not in self._held, f"sequence {key} lies here already"
        if blocks > self.blocks_free:
            self.refused += 1
            return False
        self._held[key] = blocks
        self.blocks_free -= blocks
        return True

    def drop(self, key: int) -> int:
        """Give the room of ``key`` back, and say how many blocks it was; 0 if it is not here."""
        blocks = self._held.pop(key, 0)
        self.blocks_free += blocks
        return blocks
