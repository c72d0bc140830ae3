"""Replicas in one virtual time, and the router before them.

Each replica is the server of a run of its own, with its own ring or host; nothing is shared but the
clock and the router, which sees how many of its requests each replica has still open.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import numpy as np

from blink.model.fleet import FleetRecord, only
from blink.model.metrics import NS_PER_S
from blink.model.random import RandomStreams, stream_of
from blink.model.setup import FleetSetup
from blink.ring_protocol.states import Outcome
from blink.sim.assembly import Assembly, Replica, clients_of, replica_of
from blink.sim.batch import Sequence
from blink.sim.clock import Clock
from blink.sim.records import record_of
from blink.sim.world import sequences


class Router:
    """Sends each request to one replica. It is the clients' server, and their book."""

    def __init__(self, env: Clock, setup: FleetSetup, replicas: list[Replica], rng: Any) -> None:
        workload = setup.replicas[0].workload
        count = len(workload.arrival_ns)
        self.arrival_ns: array[int] = array("q", workload.arrival_ns.tolist())
        self.outcome = array("q", [int(Outcome.NONE)]) * count
        self.on_finish: Callable[[int, int], None] = lambda request, when_ns: None
        self.sent_to = [-1] * count
        self._env = env
        self._setup = setup
        self._replicas = replicas
        self._weights = setup.weights or (1.0,) * len(replicas)
        self._open = [0] * len(replicas)
        self._closing: list[tuple[int, int]] = []  # (when, replica) of ends that are known already
        self._next = 0
        self._session_of = self._sessions(rng, count)
        for number, replica in enumerate(replicas):
            replica.recorder.on_finish = self._finished(number)

    def arrive(self, sequence: Sequence) -> None:
        """A request reaches the router now, and the replica of its choice at once."""
        number = self._choose(sequence.key)
        self.sent_to[sequence.key] = number
        self._open[number] += 1
        replica = self._replicas[number]
        replica.recorder.arrival_ns[sequence.key] = self.arrival_ns[sequence.key]
        replica.server.arrive(sequence)

    def client_leaves(self, sequence: Sequence, outcome: Outcome) -> None:
        """The client of a request goes away now: its replica is told."""
        self._replicas[self.sent_to[sequence.key]].server.client_leaves(sequence, outcome)

    def _choose(self, request: int) -> int:
        if self._setup.router == "round_robin":
            number, self._next = self._next, (self._next + 1) % len(self._replicas)
            return number
        if self._setup.router == "session_affine":
            return self._session_of[request]
        self._look()
        loads = [(self._open[n] + 1) / weight for n, weight in enumerate(self._weights)]
        return loads.index(min(loads))

    def _look(self) -> None:
        """Learn which requests have ended by now."""
        for replica in self._replicas:
            _catch_up(replica)
        while self._closing and self._closing[0][0] <= self._env.now:
            self._open[heappop(self._closing)[1]] -= 1

    def _finished(self, number: int) -> Callable[[int, int], None]:
        recorder = self._replicas[number].recorder

        def finished(request: int, when_ns: int) -> None:
            self.outcome[request] = recorder.outcome[request]
            heappush(self._closing, (when_ns, number))
            self.on_finish(request, when_ns)

        return finished

    def _sessions(self, rng: np.random.Generator, requests: int) -> list[int]:
        """The replica of each request's session. A session goes where its weighted hash is most."""
        if self._setup.router != "session_affine":
            return []
        homes = [_home(session, self._weights) for session in range(self._setup.sessions)]
        drawn = rng.integers(0, self._setup.sessions, requests)
        return [homes[session] for session in drawn.tolist()]


def _home(session: int, weights: tuple[float, ...]) -> int:
    """Rendezvous hashing: adding a replica moves only the sessions that it takes."""
    scores = []
    for number, weight in enumerate(weights):
        digest = hashlib.sha256(f"{session} {number}".encode()).digest()
        uniform = (int.from_bytes(digest[:7], "big") + 0.5) / (1 << 56)
        scores.append(-weight / np.log(uniform))
    return int(np.argmax(scores))


def _catch_up(replica: Replica) -> None:
    """Let what a replica has put out by now be known, as an arrival at it does."""
    if replica.dpu is not None:
        replica.dpu.look()
    if replica.host is not None:
        replica.host.catch_up()


def assemble_fleet(setup: FleetSetup, progress: Callable[[int], None]) -> tuple[Assembly, Router]:
    """Build every replica and the router before them; nothing has happened yet."""
    first = setup.replicas[0]
    streams = stream_of(first.seed)
    env = Clock(streams("ties"))
    world = sequences(first, streams)
    replicas = [
        replica_of(each, _streams_of(streams, number), env, world)
        for number, each in enumerate(setup.replicas)
    ]
    router = Router(env, setup, replicas, streams("router"))
    clients = clients_of(first, env, router, router, world, streams, progress)
    for replica in replicas:
        replica.engine.on_leave = clients.tokens_suffice
    return Assembly(env, replicas, clients), router


def run_fleet(setup: FleetSetup, commit: str, progress: Callable[[int], None]) -> FleetRecord:
    """Run the fleet until every request has ended; every replica draws power until then."""
    assembly, router = assemble_fleet(setup, progress)
    assembly.run()
    end_s = max(max(each.recorder.finish_ns) for each in assembly.replicas) / NS_PER_S
    sent_to = np.array(router.sent_to, dtype=np.int64)
    members = tuple(np.flatnonzero(sent_to == n) for n in range(len(setup.replicas)))
    records = tuple(
        only(record_of(each, replica, commit, until_s=end_s), mine)
        for each, replica, mine in zip(setup.replicas, assembly.replicas, members, strict=True)
    )
    return FleetRecord(records, members)


def _streams_of(streams: RandomStreams, number: int) -> RandomStreams:
    """A replica's own random streams; the first one's are those of a run of its own."""
    if number == 0:
        return streams
    return lambda name: streams(f"replica.{number}.{name}")
