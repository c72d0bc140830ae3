"""The launch window: how often one execution of the scheduler may launch another graph.

A kernel that launches graphs from the device may do so 120 times in all (constants.py says how
that was found out). Then it tail-launches itself: the instance ends, everything it launched
retires, and a fresh instance starts with a full window. Nothing is lost, because nothing that
matters lives in the instance: slots, cache tables and counters stay in GPU memory.

Count, never probe: a refused launch is an error that cannot be told from others.
"""

from __future__ import annotations

from collections.abc import Hashable

from blink.ring_protocol.constants import GRAPH_EXECS, LAUNCH_WINDOW_MAX
from blink.ring_protocol.errors import WindowExhausted


class LaunchWindow:
    """Counts the launches of the current execution, and of all executions.

    max_launches: fire-and-forget launches in one execution, 1 to LAUNCH_WINDOW_MAX.
    """

    __slots__ = ("_turn_of", "launches", "launches_total", "max_launches", "relaunches")

    def __init__(self, max_launches: int = LAUNCH_WINDOW_MAX) -> None:
        if not 1 <= max_launches <= LAUNCH_WINDOW_MAX:
            raise ValueError(f"max_launches is {max_launches}, allowed is 1 to {LAUNCH_WINDOW_MAX}")
        self.max_launches = max_launches
        self.launches = 0
        self.launches_total = 0
        self.relaunches = 0
        self._turn_of: dict[Hashable, int] = {}

    @property
    def headroom(self) -> int:
        """Launches that this execution still has."""
        return self.max_launches - self.launches

    def launch(self, count: int = 1) -> None:
        """Count `count` launches (>= 1). Raises WindowExhausted, counting none, if too many."""
        if count < 1:
            raise ValueError(f"cannot launch {count} graphs")
        launches = self.launches + count
        if launches > self.max_launches:
            raise WindowExhausted(
                f"{count} launches wanted, {self.headroom} of {self.max_launches} left: "
                "tail-launch a fresh scheduler first"
            )
        self.launches = launches
        self.launches_total += count

    def relaunch(self) -> None:
        """A fresh instance has taken over, with a full window."""
        self.launches = 0
        self.relaunches += 1

    def alternate(self, graph: Hashable) -> int:
        """Which of the graph's execs to launch now: never the one that it launched last.

        An exec that has just set its completion flag may not have retired yet. Turns survive a
        relaunch, as the execs do.
        """
        turn = self._turn_of.get(graph, 0)
        self._turn_of[graph] = (turn + 1) % GRAPH_EXECS
        return turn
