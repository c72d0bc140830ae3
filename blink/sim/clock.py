"""Virtual time: integer nanoseconds, a seeded order of true ties, and two ways to wait."""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heappush
from typing import Any, Final

import numpy as np
from simpy import Environment, Event
from simpy.core import SimTime
from simpy.events import NORMAL, EventPriority

Process = Generator[Event, Any, None]
"""What a SimPy process function returns."""

TIE_MAX: Final = (1 << 22) - 1

_BLOCK: Final = 4096
_SERIAL_BITS: Final = 40


class Clock(Environment):
    """SimPy's environment with whole nanoseconds, and true ties in a random but seeded order.

    SimPy lets whichever event was scheduled first go first, so that two lines swapped in a file
    could change a result. Here events of the same time and priority are shuffled: what must come
    first must say so by its time or its priority.
    """

    def __init__(self, ties: np.random.Generator) -> None:
        super().__init__(initial_time=0)
        self._ties = ties
        self._tie_keys: list[int] = []
        self._serial = 0

    @property
    def now(self) -> int:
        """Nanoseconds since the start of the run."""
        return self._now  # type: ignore[return-value]

    def schedule(self, event: Event, priority: EventPriority = NORMAL, delay: SimTime = 0) -> None:
        """Queue ``event`` at ``now + delay``."""
        if not self._tie_keys:
            self._tie_keys = self._ties.integers(0, TIE_MAX, _BLOCK, endpoint=True).tolist()
        self._serial += 1
        key = (self._tie_keys.pop() << _SERIAL_BITS) + self._serial
        heappush(self._queue, (self._now + delay, priority, key, event))

    def at(self, when_ns: int, action: Callable[[], None], tie: int | None = None) -> None:
        """Call ``action()`` at ``when_ns`` (not before now).

        ``tie`` of 0 to :data:`TIE_MAX` is its place among events of the same time. Left to chance
        that place depends on how many events there were before, and fast-forward leaves some out.
        """
        if tie is not None:
            self._tie_keys.append(tie)  # the next to be taken, by the timeout
        timeout = self.timeout(when_ns - self.now)
        assert timeout.callbacks is not None
        timeout.callbacks.append(lambda _: action())


class Alarm:
    """One waiter at a time. A signal without a waiter is lost: the waiter looks before it waits.

    SimPy cannot withdraw a timeout. A deadline that a signal beat stays in the queue and finds,
    by its serial number, that nobody waits for it any more.
    """

    __slots__ = ("_env", "_serial", "_waiter")

    def __init__(self, env: Clock) -> None:
        self._env = env
        self._serial = 0
        self._waiter: Event | None = None

    def wait(self, deadline_ns: int | None = None) -> Event:
        """Return an event that succeeds at ``deadline_ns`` (never, if None) or at a signal."""
        assert self._waiter is None, "one waiter at a time"
        self._serial += 1
        waiter = self._waiter = self._env.event()
        if deadline_ns is not None:
            serial = self._serial
            timeout = self._env.timeout(deadline_ns - self._env.now)
            assert timeout.callbacks is not None
            timeout.callbacks.append(lambda _: self._expire(serial))
        return waiter

    def signal(self) -> None:
        """Wake the waiter, if there is one."""
        if self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            waiter.succeed()

    def _expire(self, serial: int) -> None:
        if serial == self._serial:
            self.signal()
