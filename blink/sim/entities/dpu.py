"""The SmartNIC: the real front end of the ring, on cores that take their time.

Tokenizer cores take requests in; one core submits, coalescing what is ready into one doorbell; the
token reader polls the ring's metadata; streaming cores detokenize and write events. Everything the
protocol decides is decided by ``blink.ring_protocol.front_end``; this file says when.

Idle polls cost nothing: the reader's schedule of empty polls is a formula. Within a segment of like
decode steps the poll that finds each step's tokens follows from the same formula; the poll after
the last step is made for real, on the ring's bytes, and must find exactly those tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heapreplace

from blink.model.record import Mark
from blink.ring_protocol.constants import TOKEN_BYTES
from blink.ring_protocol.front_end import BackPressure, FrontEnd
from blink.ring_protocol.front_end.submission import OPS_PER_GROUP_MAX
from blink.ring_protocol.loopback import LoopbackMemory
from blink.ring_protocol.slot import STATE_MASK
from blink.ring_protocol.states import Outcome, State
from blink.sim.batch import Sequence
from blink.sim.clock import Clock
from blink.sim.engine import StepOutput
from blink.sim.memory import SimTransport
from blink.sim.recorder import Recorder


@dataclass(frozen=True, slots=True)
class DpuCosts:
    """The front end's work on the DPU's cores, ns; ``read_ns`` is one bulk read, there and back."""

    tokenizer_cores: int
    streaming_cores: int
    http_request_ns: int
    tokenize_ns_per_token: float
    stream_ns_per_token: float
    doorbell_ns: int
    read_ns: int
    client_one_way_ns: int
    queue_max: int


class Dpu:
    """One front end. It is the engine's output sink."""

    def __init__(
        self,
        env: Clock,
        front_end: FrontEnd,
        transport: SimTransport,
        memory: LoopbackMemory,
        costs: DpuCosts,
        recorder: Recorder,
    ) -> None:
        self.env = env
        self.front_end = front_end
        self.transport = transport
        self.costs = costs
        self.recorder = recorder
        self.busy_ns = 0
        self.catch_up: Callable[[], None] = lambda: None
        self._metadata = memory.view(
            front_end.geometry.metadata_offset(0), front_end.geometry.metadata_bytes
        ).cast("Q")
        self._tokenizers = [0] * costs.tokenizer_cores
        heapify(self._tokenizers)
        self._streaming_free_ns = 0
        self._stream_costs: dict[int, tuple[int, int]] = {}
        self._queue: deque[Sequence] = deque()
        self._ready: deque[tuple[int, int]] = deque()
        self._committed_ns: int | None = None
        self._poll_due_ns: int | None = None
        self._doorbell_due = False
        self._submitter_free_ns = 0

    # --- requests in -------------------------------------------------------------------------

    def arrive(self, sequence: Sequence) -> None:
        """A request reaches the DPU now: parse and tokenize it on the first free core."""
        work_ns = self.costs.http_request_ns + round(
            sequence.request.input_tokens * self.costs.tokenize_ns_per_token
        )
        done_ns = max(self.env.now, self._tokenizers[0]) + work_ns
        heapreplace(self._tokenizers, done_ns)
        self.busy_ns += work_ns
        self.env.at(done_ns, lambda: self._submit(sequence))

    def _submit(self, sequence: Sequence) -> None:
        if self._queue or not self._try_submit(sequence):
            if len(self._queue) >= self.costs.queue_max:
                self.recorder.finish(sequence.key, Outcome.REJECTED, 0, self.env.now)
            else:
                self._queue.append(sequence)

    def look(self) -> None:
        """Account for what has been put out, and found by polls, before now."""
        self.catch_up()
        self._resolve(self.env.now)

    def _try_submit(self, sequence: Sequence) -> bool:
        """Put a request into a free slot, if there is one."""
        self.look()  # watching a new slot counts the polls before now as empty
        request = sequence.request
        result = self.front_end.submit(
            request.request_id,
            request.input_tokens,
            request.output_tokens_max,
            now_ns=self.env.now,
        )
        if isinstance(result, BackPressure):
            self.recorder.count("submissions_held_back")
            return False
        self.recorder.submitted_ns[sequence.key] = self.env.now
        self.transport.carry(request.input_tokens * TOKEN_BYTES)
        self._ring_doorbell()
        self._arm_poll()
        return True

    def _ring_doorbell(self) -> None:
        """Post what waits in the outbox, with one doorbell.

        One core submits. What becomes ready while it is busy with a doorbell shares the next one;
        what the queue pair does not take goes when that has drained.
        """
        now = self.env.now
        if now < self._submitter_free_ns:
            self._ring_at(self._submitter_free_ns)
            return
        free = self.transport.free_ops
        if free >= OPS_PER_GROUP_MAX:
            self.transport.post(self.front_end.take_ops(free))
            self._submitter_free_ns = now + self.costs.doorbell_ns
            self.busy_ns += self.costs.doorbell_ns
            self.recorder.count("doorbells")
        if self.front_end.ops_waiting:
            self._ring_at(max(self.transport.drained_ns, now) + 1)

    def _ring_at(self, when_ns: int) -> None:
        """Ring once more at ``when_ns``, if that is not due already."""
        if not self._doorbell_due:
            self._doorbell_due = True
            self.env.at(when_ns, self._ring_again)

    def _ring_again(self) -> None:
        self._doorbell_due = False
        if self.front_end.ops_waiting:
            self._ring_doorbell()

    def client_leaves(self, sequence: Sequence, outcome: Outcome) -> None:
        """The client of ``sequence`` goes away now: ask the scheduler to abort the request."""
        if sequence in self._queue:
            self._queue.remove(sequence)
            self.recorder.finish(sequence.key, outcome, 0, self.env.now)
        elif self.front_end.cancel(sequence.key, outcome):
            self._ring_doorbell()

    # --- tokens out --------------------------------------------------------------------------

    def produced(self, outputs: list[StepOutput]) -> None:
        """Steps ended. Not all of their tokens may stand in the ring yet."""
        self._ready.extend((when_ns, tokens) for when_ns, tokens, _ in outputs)
        self._resolve(self.env.now)

    def published(self) -> None:
        """Everything produced so far stands in the ring now: the next poll that matters is due."""
        self._committed_ns = self.env.now
        self._arm_poll()

    def _resolve(self, before_ns: int) -> None:
        """Account for the polls before ``before_ns`` that found steps of a segment in flight."""
        reader = self.front_end.reader
        while self._ready:
            reader.skip_empty_polls(self._ready[0][0])
            found_ns = reader.due_ns
            if found_ns >= before_ns:
                return
            reader.skip_found_poll()
            self._flush(found_ns)

    def _flush(self, found_ns: int) -> None:
        """The poll at ``found_ns`` found every step that was ready by then: stream the tokens."""
        arrived_ns = found_ns + self.costs.read_ns
        delivered: list[int] = []
        while self._ready and self._ready[0][0] <= found_ns:
            tokens = self._ready.popleft()[1]
            flush_ns, busy_ns = self._stream_ns(tokens)
            self._streaming_free_ns = max(arrived_ns, self._streaming_free_ns) + flush_ns
            self.busy_ns += busy_ns
            delivered.append(self._streaming_free_ns + self.costs.client_one_way_ns)
        self.recorder.delivered(delivered)

    def _stream_ns(self, tokens: int) -> tuple[int, int]:
        """How long the streaming cores take for a flush of ``tokens``, and their work in all."""
        known = self._stream_costs.get(tokens)
        if known is None:
            each_ns = self.costs.stream_ns_per_token
            rounds = -(-tokens // self.costs.streaming_cores)
            known = self._stream_costs[tokens] = (round(rounds * each_ns), round(tokens * each_ns))
        return known

    def _arm_poll(self) -> None:
        """See to it that the poll that will find the published tokens takes place."""
        if self._committed_ns is None:
            return
        due_ns = self.front_end.reader.next_poll_at_or_after(self._committed_ns)
        if self._poll_due_ns is None or due_ns < self._poll_due_ns:
            self._poll_due_ns = due_ns
            self.env.at(due_ns, lambda: self._poll(due_ns))

    def _poll(self, due_ns: int) -> None:
        """Make one poll for real: read the ring's metadata and act on the news."""
        if due_ns != self._poll_due_ns:
            return  # an earlier poll took its place
        self._poll_due_ns = self._committed_ns = None
        self.catch_up()
        self._resolve(due_ns)
        reader = self.front_end.reader
        reader.skip_empty_polls(due_ns)
        assert reader.due_ns == due_ns, "a real poll off the reader's schedule"
        self.recorder.mark(Mark("token reader", "poll", due_ns, self.costs.read_ns))
        updates = self.front_end.on_metadata(self._metadata, due_ns)
        self._flush(due_ns)
        for ended in updates:
            self.recorder.streamed(ended.request_id, ended.first + ended.tokens)
        if self.front_end.ops_waiting:
            self.env.at(due_ns + self.costs.read_ns, self._after_release)
        if reader.last_poll_full:
            self.published()  # the news that it left are found by the next one

    def _after_release(self) -> None:
        """Slots were given back: tell the ring, and submit what waited for one."""
        if self.front_end.ops_waiting:
            self._ring_doorbell()
        while self._queue and self._try_submit(self._queue[0]):
            self._queue.popleft()

    def slots_not_empty(self) -> int:
        """How many slots of the ring are in use now, by the ring's own bytes."""
        return sum(word & STATE_MASK != State.EMPTY for word in self._metadata[::2])
