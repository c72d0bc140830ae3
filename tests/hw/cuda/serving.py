"""A front end in this process, over any transport, that looks at every token."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from blink.hw.cuda.null_engine import token_of
from blink.hw.cuda.scheduler import GpuConfig
from blink.model.policy import GraphCache, Limits
from blink.ring_protocol.constants import TOKEN_BYTES
from blink.ring_protocol.descriptor import Sampling
from blink.ring_protocol.errors import QueueFull
from blink.ring_protocol.front_end import BackPressure, FrontEnd, TokenReader, Update
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import Op, Transport
from blink.ring_protocol.states import Outcome

RING = Geometry(slots=64, prompt_tokens_max=24, output_tokens_max=12)
LIMITS = Limits(batch_max=16, prefill_batch_max=4, prefill_tokens_max=64)
GRAPHS = GraphCache(16, 24, (1, 2, 4, 8, 16), (8, 16, 24))


def config_of(
    modes: dict[int, int] | None = None,
    *,
    window: int = 120,
    blocks: int = 80,
    hang_s: float = 5.0,
) -> GpuConfig:
    asked = {"modes": modes} if modes else {}
    return GpuConfig(
        RING, LIMITS, blocks, 4, GRAPHS, window, log_capacity=1 << 16, hang_s=hang_s, **asked
    )


@dataclass
class Asked:
    """One request, and what has come back."""

    prompt_tokens: int
    output_tokens_max: int
    stop_after: int | None
    tokens: int = 0
    left: bool = False


@dataclass
class Client:
    """Serves ``requests`` requests with random lengths, stops and cancels; keeps count.

    The n-th output token must be what the null engine makes of the seed and the context.
    """

    geometry: Geometry
    transport: Transport
    requests: int
    seed: int = 1
    cancel_one_in: int = 10
    now_ns: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    open: dict[int, Asked] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.front_end = FrontEnd(self.geometry, TokenReader(1, 1, self.geometry.slots))
        self.rng = random.Random(self.seed)
        self.begun = 0
        self.ops: list[Op] = []
        self.reading = False

    @property
    def is_done(self) -> bool:
        ended = self.begun == self.requests and not self.open
        return ended and not self.ops and not self.front_end.ops_waiting

    def turn(self) -> None:
        """Once round the loop: submit, cancel, exchange."""
        self.now_ns += 1
        while self.begun < self.requests and self._submit():
            pass
        if self.open and self.rng.random() < 1 / self.cancel_one_in:
            request_id = self.rng.choice(list(self.open))
            self.open[request_id].left |= self.front_end.cancel(request_id)
        self.ops = self.ops or self.front_end.take_ops(48)
        if self.ops and self._post(self.ops):
            self.ops = []
        if not self.reading:
            self.reading = self._post([self.front_end.read_metadata(self.now_ns)])
        for completion in self.transport.poll(64):
            is_bulk = len(completion.data or b"") == self.geometry.metadata_bytes
            self.reading &= not is_bulk
            for update in self.front_end.on_completion(completion):
                self._receive(update)

    def _post(self, ops: list[Op]) -> bool:
        try:
            self.transport.post(ops)
        except QueueFull:
            return False
        return True

    def _submit(self) -> bool:
        request_id = self.seed << 32 | self.begun
        prompt = self.rng.randint(1, self.geometry.prompt_tokens_max)
        limit = self.rng.randint(1, self.geometry.output_tokens_max)
        stop_after = self.rng.choice([None, self.rng.randint(1, limit)])
        stop = token_of(request_id, prompt + stop_after - 1) if stop_after else 0
        answer = self.front_end.submit(
            request_id,
            prompt,
            limit,
            now_ns=self.now_ns,
            prompt=bytes(prompt * TOKEN_BYTES),
            sampling=Sampling(stop_token=stop, seed=request_id),
        )
        if isinstance(answer, BackPressure):
            return False
        self.begun += 1
        self.open[request_id] = Asked(prompt, limit, stop_after)
        return True

    def _receive(self, update: Update) -> None:
        asked = self.open[update.request_id]
        assert update.first == asked.tokens, f"ORDER: {update} after {asked}"
        first = asked.prompt_tokens + update.first
        wanted = b"".join(
            token_of(update.request_id, first + each).to_bytes(TOKEN_BYTES, "little")
            for each in range(update.tokens)
        )
        assert bytes(update.ids or b"") == wanted, f"ORDER: {update} of {asked}: other tokens"
        asked.tokens += update.tokens
        if update.outcome is not None:
            rightly = {
                Outcome.STOP: asked.tokens == asked.stop_after,
                Outcome.LENGTH: asked.tokens == asked.output_tokens_max,
                Outcome.CANCELLED: asked.left,
            }
            assert rightly.get(update.outcome, False), f"CONSERVE: {update} of {asked}"
            self.outcomes[update.outcome] += 1
            del self.open[update.request_id]
