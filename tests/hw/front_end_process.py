"""A front end in a process of its own: the real one, over memory that it was handed.

    python -m tests.hw.front_end_process FD SLOTS FIRST LAST REQUESTS SEED

Serves REQUESTS requests in the slots FIRST to LAST of the ring behind file descriptor FD, taking
over what an earlier one left there. Prints a line of JSON when it has, and one at the end: how they
ended. What does not hold is an assertion that names the invariant.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from dataclasses import dataclass

from blink.hw.host.memory import SharedMemory
from blink.ring_protocol.constants import HEADER_BYTES, TOKEN_BYTES
from blink.ring_protocol.descriptor import Sampling
from blink.ring_protocol.front_end import BackPressure, FrontEnd, TokenReader, Update
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.loopback import LoopbackTransport
from blink.ring_protocol.states import Outcome

PROMPT_TOKENS_MAX = 6
OUTPUT_TOKENS_MAX = 5


def geometry_of(slots: int) -> Geometry:
    return Geometry(slots, PROMPT_TOKENS_MAX, OUTPUT_TOKENS_MAX)


def token_of(request_id: int, index: int) -> int:
    """What the model answers; its prompts are the answers at negative indices."""
    return (request_id * 1_000_003 + (index + 50) * 7_919) % 0x7FFF_FFFF + 1


def prompt_of(request_id: int) -> list[int]:
    return [token_of(request_id, -1 - index) for index in range(1 + request_id % PROMPT_TOKENS_MAX)]


def packed(tokens: list[int]) -> bytes:
    return b"".join(token.to_bytes(TOKEN_BYTES, "little") for token in tokens)


@dataclass
class Client:
    """What one request's client has asked and been told."""

    output_tokens_max: int
    stop_after: int | None
    tokens: int = 0
    left: bool = False


class Process:
    def __init__(self, memory: SharedMemory, own: range, requests: int, seed: int) -> None:
        self.front_end = FrontEnd(
            memory.geometry, TokenReader(1, 1, memory.geometry.slots), slots=own
        )
        self.front_end.attach(memory.read(HEADER_BYTES, memory.geometry.metadata_bytes))
        self.orphans = self.front_end.orphans
        self.transport = LoopbackTransport(memory, depth=64)
        self.rng = random.Random(seed)
        self.todo = [seed << 32 | number for number in range(requests)]
        self.clients: dict[int, Client] = {}
        self.outcomes: Counter[Outcome] = Counter()

    def serve(self) -> None:
        turn = 0
        while self.todo or self.clients or self.front_end.orphans or self.front_end.ops_waiting:
            turn += 1
            while self.todo and self._submit(self.todo[-1], turn):
                self.todo.pop()
            self._leave()
            ops = self.front_end.take_ops(32)
            self.transport.post([*ops, self.front_end.read_metadata(turn)])
            for completion in self.transport.poll(64):
                for update in self.front_end.on_completion(completion):
                    self._receive(update)
            os.sched_yield()

    def _submit(self, request_id: int, turn: int) -> bool:
        limit = self.rng.randint(1, OUTPUT_TOKENS_MAX)
        stop_after = self.rng.choice([None, self.rng.randint(1, limit)])
        stop = token_of(request_id, stop_after - 1) if stop_after else 0
        prompt = prompt_of(request_id)
        answer = self.front_end.submit(
            request_id,
            len(prompt),
            limit,
            now_ns=turn,
            prompt=packed(prompt),
            sampling=Sampling(stop_token=stop),
        )
        if isinstance(answer, BackPressure):
            return False
        self.clients[request_id] = Client(limit, stop_after)
        return True

    def _leave(self) -> None:
        if self.clients and self.rng.random() < 0.05:
            request_id = self.rng.choice(list(self.clients))
            self.clients[request_id].left = True
            self.front_end.cancel(request_id)

    def _receive(self, update: Update) -> None:
        client = self.clients[update.request_id]
        assert update.first == client.tokens, f"ORDER: {update} after {client}"
        wanted = [token_of(update.request_id, update.first + each) for each in range(update.tokens)]
        assert bytes(update.ids or b"") == packed(wanted), f"ORDER: {update}: other tokens"
        client.tokens += update.tokens
        if update.outcome is None:
            return
        rightly = {
            Outcome.STOP: client.tokens == client.stop_after,
            Outcome.LENGTH: client.tokens == client.output_tokens_max,
            Outcome.CANCELLED: client.left,
        }
        assert rightly.get(update.outcome, False), f"CONSERVE: {update} of {client}"
        self.outcomes[update.outcome] += 1
        del self.clients[update.request_id]


def main() -> None:
    fd, slots, first, last, requests, seed = (int(argument) for argument in sys.argv[1:])
    memory = SharedMemory.attached(geometry_of(slots), fd)
    process = Process(memory, range(first, last + 1), requests, seed)
    say({"orphans": process.orphans})
    process.serve()
    ended = {outcome.name: count for outcome, count in process.outcomes.items()}
    say({"outcomes": ended})


def say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
