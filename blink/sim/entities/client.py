"""The clients: they ask at the times of the workload, or when an earlier answer is complete."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Protocol

from blink.ring_protocol.states import Outcome
from blink.sim.batch import Sequence
from blink.sim.clock import Clock, Process


class Server(Protocol):
    """What a client can do: ask, and go away."""

    def arrive(self, sequence: Sequence) -> None: ...

    def client_leaves(self, sequence: Sequence, outcome: Outcome) -> None: ...


class Book(Protocol):
    """Where clients write when they asked, and read how it ended; one entry a request."""

    arrival_ns: array[int]
    outcome: array[int]
    on_finish: Callable[[int, int], None]


class Clients:
    """All clients of a run. In a closed loop, ``concurrency`` of them ask one after the other.

    ``ties`` has a number a request that orders what its client does among events of the same time.
    """

    def __init__(
        self,
        env: Clock,
        server: Server,
        book: Book,
        world: Callable[[int], Sequence],
        *,
        ties: list[int],
        one_way_ns: int,
        concurrency: int | None,
        think_ns: int,
        progress: Callable[[int], None] = lambda ended: None,
    ) -> None:
        self.env = env
        self.server = server
        self.book = book
        self.ended = 0
        self.requests = len(book.arrival_ns)
        self._world = world
        self._ties = ties
        self._one_way_ns = one_way_ns
        self._concurrency = concurrency
        self._think_ns = think_ns
        self._asked = 0
        self._progress = progress
        book.on_finish = self._on_finish

    def run(self) -> Process:
        """Ask at the times of the workload; a closed loop begins with ``concurrency`` at once."""
        if self._concurrency is not None:
            yield self.env.timeout(0)
            for _ in range(min(self._concurrency, self.requests)):
                self._ask_next()
            return
        for arrival_ns in self.book.arrival_ns:
            if arrival_ns > self.env.now:
                yield self.env.timeout(arrival_ns - self.env.now)
            self._ask_next()

    def _ask_next(self) -> None:
        """Send the next request; it reaches the server one network latency later."""
        index = self._asked
        if index == self.requests:
            return  # the last request has been asked while this client was thinking
        self._asked += 1
        self.book.arrival_ns[index] = self.env.now
        sequence, tie = self._world(index), self._ties[index]
        self.env.at(self.env.now + self._one_way_ns, lambda: self.server.arrive(sequence), tie)
        patience_ns = sequence.truth.cancel_after_ns
        if patience_ns is not None:
            self.env.at(
                self.env.now + patience_ns,
                lambda: self._leave(sequence, Outcome.TIMED_OUT),
                tie,
            )

    def tokens_suffice(self, sequence: Sequence, when_ns: int) -> None:
        """The client of ``sequence`` has read enough and goes away at ``when_ns``."""
        leaves_ns = max(when_ns, self.env.now)
        self.env.at(
            leaves_ns, lambda: self._leave(sequence, Outcome.CANCELLED), self._ties[sequence.key]
        )

    def _leave(self, sequence: Sequence, outcome: Outcome) -> None:
        if self.book.outcome[sequence.key] == Outcome.NONE:
            self.server.client_leaves(sequence, outcome)

    def _on_finish(self, request: int, when_ns: int) -> None:
        """A request is over at ``when_ns``; in a closed loop its client asks again then."""
        self.ended += 1
        self._progress(self.ended)
        if self._concurrency is not None and self._asked < self.requests:
            self.env.at(max(when_ns, self.env.now) + self._think_ns, self._ask_next)
