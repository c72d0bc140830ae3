"""The clients and the front end of a run on metal: one loop, on the wall clock.

The front end is the real one, over a one-sided transport. No HTTP and no tokenizer stand before it;
the loop takes what a DPU's core would take for the ring alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from blink.hw.recording import ClientBook
from blink.model.record import ABSENT
from blink.model.request import Request, Truth
from blink.model.setup import RunSetup
from blink.ring_protocol.constants import NO_TOKEN, TOKEN_BYTES
from blink.ring_protocol.descriptor import Sampling
from blink.ring_protocol.errors import QueueFull
from blink.ring_protocol.front_end import BackPressure, FrontEnd, TokenReader, Update
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import Op, Transport
from blink.ring_protocol.states import Outcome

DOORBELL_OPS: Final = 48
StopToken = Callable[[int, int], int]
"""``stop_token(request, context)``: the token that ends a request at its true length, or NO_TOKEN
where the model cannot be asked: then the limit ends it."""


@dataclass(slots=True)
class _Open:
    """A request that its client waits for."""

    truth: Truth
    begun_ns: int
    left: bool = False


class ClientLoop:
    """Asks at the workload's times, and writes down what comes back.

    check: called now and then; raises if the server has stopped. now_ns: the clock of the run.
    """

    def __init__(
        self,
        setup: RunSetup,
        world: Sequence[tuple[Request, Truth]],
        geometry: Geometry,
        transport: Transport,
        *,
        stop_token: StopToken = lambda request, context: NO_TOKEN,
        check: Callable[[], object] = lambda: None,
        progress: Callable[[int], None] = lambda ended: None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        front = setup.front_end
        self.book = ClientBook(setup.workload)
        self.rejected = 0
        self._setup = setup
        self._world = world
        self._transport = transport
        self._reader = TokenReader(
            front.poll_interval_min_ns, front.poll_interval_max_ns, front.slots_per_poll_max
        )
        self.front_end = FrontEnd(geometry, self._reader)
        self._stop_token, self._check, self._progress = stop_token, check, progress
        self._clock = now_ns
        self._start_ns = 0
        self._coming = deque(range(len(world)))
        self._waiting: deque[int] = deque()  # for a slot
        self._thinking: deque[int] = deque()  # when, in a closed loop, the next client asks
        self._open: dict[int, _Open] = {}
        self._ops: list[Op] = []
        self._reading = False
        self._ended = 0

    def run(self, start_ns: int) -> None:
        """Until every request has ended; ``start_ns`` on the clock is time 0 of the run."""
        self._start_ns = start_ns
        concurrency = self._setup.workload.concurrency
        if concurrency is not None:
            self._thinking.extend([0] * min(concurrency, len(self._coming)))
        turns = 0
        while self._ended < len(self._world) or self._ops or self.front_end.ops_waiting:
            self._turn(self._now())
            turns += 1
            if turns % 256 == 0:
                self._check()

    def _now(self) -> int:
        return self._clock() - self._start_ns

    def _turn(self, now_ns: int) -> None:
        self._arrivals(now_ns)
        while self._waiting and self._submit(self._waiting[0], now_ns):
            self._waiting.popleft()
        self._patience(now_ns)
        self._exchange(now_ns)

    # --- asking ------------------------------------------------------------------------------

    def _arrivals(self, now_ns: int) -> None:
        if self._setup.workload.concurrency is not None:
            while self._thinking and self._thinking[0] <= now_ns and self._coming:
                self._arrive(self._coming.popleft(), self._thinking.popleft(), now_ns)
            return
        while self._coming and self._world[self._coming[0]][0].arrival_ns <= now_ns:
            request = self._coming.popleft()
            self._arrive(request, self._world[request][0].arrival_ns, now_ns)

    def _arrive(self, request: int, arrival_ns: int, now_ns: int) -> None:
        self.book.arrival_ns[request] = arrival_ns
        self._open[request] = _Open(self._world[request][1], arrival_ns)
        if len(self._waiting) >= self._setup.front_end.queue_max:
            self.rejected += 1
            self._end(request, Outcome.REJECTED, now_ns)
        else:
            self._waiting.append(request)

    def _submit(self, request: int, now_ns: int) -> bool:
        seen, truth = self._world[request]
        prompt_tokens = seen.input_tokens
        stop = self._stop_token(request, prompt_tokens + truth.output_tokens - 1)
        limit = truth.output_tokens if stop == NO_TOKEN else seen.output_tokens_max
        answer = self.front_end.submit(
            request,
            prompt_tokens,
            limit,
            now_ns=now_ns,
            prompt=_prompt(request, prompt_tokens),
            sampling=Sampling(stop_token=stop, seed=request, ignore_eos=stop == NO_TOKEN),
        )
        if isinstance(answer, BackPressure):
            return False
        self.book.submitted_ns[request] = now_ns
        self.book.slot[request] = answer.slot
        return True

    def _patience(self, now_ns: int) -> None:
        if not self._setup.faults.timeout_fraction:
            return
        for request, each in list(self._open.items()):
            patience = each.truth.cancel_after_ns
            if patience is not None and not each.left and now_ns >= each.begun_ns + patience:
                self._leave(request, Outcome.TIMED_OUT, now_ns)

    def _leave(self, request: int, outcome: Outcome, now_ns: int) -> None:
        self._open[request].left = True
        if self.book.submitted_ns[request] == ABSENT:
            self._waiting.remove(request)
            self._end(request, outcome, now_ns)
        else:
            self.front_end.cancel(request, outcome)

    # --- the ring ----------------------------------------------------------------------------

    def _exchange(self, now_ns: int) -> None:
        self._ops = self._ops or self.front_end.take_ops(DOORBELL_OPS)
        if self._ops and self._post(self._ops):
            self._ops = []
        due = now_ns >= self._reader.due_ns and self._reader.watched
        if due and not self._reading:
            self._reading = self._post([self.front_end.read_metadata(now_ns)])
        for completion in self._transport.poll(DOORBELL_OPS):
            data = completion.data
            if data is not None and len(data) == self.front_end.geometry.metadata_bytes:
                self._reading = False
            for update in self.front_end.on_completion(completion):
                self._receive(update, self._now())

    def _post(self, ops: list[Op]) -> bool:
        try:
            self._transport.post(ops)
        except QueueFull:
            return False
        return True

    def _receive(self, update: Update, now_ns: int) -> None:
        request, each = update.request_id, self._open[update.request_id]
        times = self.book.tokens_ns[request]
        assert update.first == len(times), f"ORDER: {update} after {len(times)} tokens"
        times.extend([now_ns] * update.tokens)
        if update.outcome is not None:
            self._end(request, update.outcome, now_ns)
            return
        enough = each.truth.cancel_after_tokens
        if enough is not None and len(times) >= enough and not each.left:
            self._leave(request, Outcome.CANCELLED, now_ns)

    def _end(self, request: int, outcome: Outcome, now_ns: int) -> None:
        self.book.finish_ns[request] = now_ns
        self.book.outcome[request] = int(outcome)
        del self._open[request]
        self._ended += 1
        if self._setup.workload.concurrency is not None:
            self._thinking.append(now_ns + self._setup.workload.think_ns)
        self._progress(self._ended)


def _prompt(request: int, tokens: int) -> bytes:
    """Any ids below every vocabulary's end; they follow from the request alone."""
    return b"".join(
        ((request * 7_919 + index * 31) % 30_000 + 1).to_bytes(TOKEN_BYTES, "little")
        for index in range(tokens)
    )
