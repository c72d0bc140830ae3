"""The process in front of a host-resident engine: one event loop, one thing at a time.

It parses and tokenizes requests, detokenizes outputs and writes events to clients, on a core that
neighbours may want too. When it is late, the outputs of several steps wait for it; with ``merge``
it takes them all at once, and a stream's tokens leave as one chunk.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from blink.ring_protocol.states import Outcome
from blink.sim.batch import Sequence
from blink.sim.clock import Clock
from blink.sim.engine import StepOutput
from blink.sim.noise import ThreadNoise
from blink.sim.recorder import Recorder


@dataclass(frozen=True, slots=True)
class ApiCosts:
    """CPU time on a quiet core of the profile's host, ns; ``hop_ns`` to or from the engine."""

    request_ns: int
    tokenize_ns_per_token: float
    step_ns: int
    token_ns: int
    chunk_ns: int
    hop_ns: int
    client_request_ns: int
    client_chunk_ns: int
    client_one_way_ns: int
    merge: bool


class EngineInbox(Protocol):
    """The engine process, as the API process knows it."""

    def catch_up(self) -> None:
        """Report all outputs that are ready by now."""

    def enqueue(self, sequence: Sequence) -> None:
        """A request arrives at the engine now."""

    def abort(self, sequence: Sequence, outcome: Outcome) -> None:
        """An abort arrives at the engine now."""


class ApiServer:
    """The engine's output sink and the clients' server."""

    def __init__(self, env: Clock, costs: ApiCosts, noise: ThreadNoise, recorder: Recorder) -> None:
        self.env = env
        self.costs = costs
        self.noise = noise
        self.recorder = recorder
        self.engine: EngineInbox
        self._free_ns = 0
        self._pending: deque[StepOutput] = deque()
        self._wake_ns = -1

    def arrive(self, sequence: Sequence) -> None:
        """A request is sent to the server now."""
        if self.costs.client_request_ns:
            sent_ns = self.env.now + self.costs.client_request_ns
            self.env.at(sent_ns, lambda: self._accept(sequence))
        else:
            self._accept(sequence)

    def _accept(self, sequence: Sequence) -> None:
        """A request is at the door: after what waits already, parse and tokenize it."""
        self.engine.catch_up()
        while self._pending and self._pending[0][0] <= self.env.now:
            self._send(max(self._free_ns, self._pending[0][0]))
        work_ns = self.costs.request_ns + round(
            sequence.request.input_tokens * self.costs.tokenize_ns_per_token
        )
        done_ns = self._work(self.env.now, work_ns)
        self.recorder.submitted_ns[sequence.key] = done_ns
        self.env.at(done_ns + self.costs.hop_ns, lambda: self.engine.enqueue(sequence))

    def client_leaves(self, sequence: Sequence, outcome: Outcome) -> None:
        """The client goes away now: tell the engine."""
        arrives_ns = self.env.now + self.costs.hop_ns
        self.env.at(arrives_ns, lambda: self.engine.abort(sequence, outcome))

    def produced(self, outputs: list[StepOutput]) -> None:
        """Outputs leave the engine."""
        hop_ns = self.costs.hop_ns
        self._pending.extend(
            (when_ns + hop_ns, tokens, streams) for when_ns, tokens, streams in outputs
        )
        self._resolve()

    def published(self) -> None:
        """Nothing to do: outputs come by message."""

    def _work(self, earliest_ns: int, quiet_ns: int) -> int:
        """Do work as soon as possible; return when it is done."""
        self._free_ns = max(earliest_ns, self._free_ns) + self.noise.run(quiet_ns)
        return self._free_ns

    def _resolve(self) -> None:
        """Send everything whose sending has begun by now; wake up for what comes next."""
        while self._pending:
            begins_ns = max(self._free_ns, self._pending[0][0])
            if begins_ns > self.env.now:
                if self._wake_ns != begins_ns:
                    self._wake_ns = begins_ns
                    self.env.at(begins_ns, self._wake)
                return
            self._send(begins_ns)

    def _wake(self) -> None:
        self.engine.catch_up()
        self._resolve()

    def _send(self, begins_ns: int) -> None:
        """Process the oldest output, and with merging all others that wait at ``begins_ns``."""
        costs = self.costs
        _, tokens, chunks = self._pending.popleft()
        steps = 1
        while costs.merge and self._pending and self._pending[0][0] <= begins_ns:
            _, more, streams = self._pending.popleft()
            steps, tokens, chunks = steps + 1, tokens + more, max(chunks, streams)
        work_ns = steps * costs.step_ns + tokens * costs.token_ns + chunks * costs.chunk_ns
        done_ns = self._work(begins_ns, work_ns)
        arrives_ns = done_ns + costs.client_chunk_ns + costs.client_one_way_ns
        self.recorder.delivered([arrives_ns] * steps)
