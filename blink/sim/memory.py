"""The ring's memory as the scheduler's scan meets it, and the wire to it, in simulated time.

``SimTransport`` implements the front end's ``Transport`` over one queue pair: a cost to post, a
wire that one transfer occupies at a time, a one-way latency. A group of writes and the flag that
follows take effect together, when the flag becomes visible: nobody may look at payload before its
flag, so an earlier landing could not be told apart, and one event serves all of them.

``RingInbox`` is what the scheduler's next scan will see: the words that the front end published,
with the time at which each became visible. Scanning only those equals scanning all slots (tested).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blink.ring_protocol.constants import DESCRIPTOR_BYTES, SLOT_METADATA_BYTES, WORD_BYTES
from blink.ring_protocol.errors import QueueFull
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.loopback import LoopbackMemory, LoopbackTransport
from blink.ring_protocol.ports import Capabilities, Completion, Op, Publish, Read, Write
from blink.ring_protocol.slot import STATE_MASK
from blink.ring_protocol.states import State
from blink.sim.clock import Clock


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """The link between front end and GPU. Bandwidth in bytes a second, the rest in ns."""

    post_ns: int
    per_op_ns: int
    one_way_ns: int
    bandwidth_bytes_s: float
    outstanding_max: int

    def wire_ns(self, size_bytes: int) -> int:
        """How long ``size_bytes`` occupy the wire."""
        return round(size_bytes * 1e9 / self.bandwidth_bytes_s)


class RingInbox:
    """Flag and cancel words in the order in which they became visible to the GPU."""

    def __init__(self, geometry: Geometry) -> None:
        self._metadata = range(
            geometry.metadata_offset(0),
            geometry.metadata_offset(geometry.slots - 1) + SLOT_METADATA_BYTES,
        )
        self._descriptors = geometry.cancel_offset(0)
        self._arrivals: deque[tuple[int, int]] = deque()
        self.cancels: deque[tuple[int, int]] = deque()
        self.on_arrival: Callable[[], None] = lambda: None

    def published(self, remote: int, value: int, now_ns: int) -> None:
        """The word at offset ``remote`` has just become visible; a scan ignores released slots."""
        if remote in self._metadata:
            if value & STATE_MASK != State.PREFILL_PENDING:
                return
            slot = (remote - self._metadata.start) // SLOT_METADATA_BYTES
            self._arrivals.append((now_ns, slot))
        else:
            self.cancels.append((now_ns, (remote - self._descriptors) // DESCRIPTOR_BYTES))
        self.on_arrival()

    def take(self, visible_by_ns: int) -> tuple[list[int], list[int]]:
        """The slots with a new flag, and with a new cancel word, visible by then; each once."""
        return _take(self._arrivals, visible_by_ns), _take(self.cancels, visible_by_ns)

    def next_seen_ns(self, scan_ns: int, *, arrivals: bool = True) -> int | None:
        """When a scan that begins as soon as the oldest word is visible has seen it.

        Of cancels only, without ``arrivals``.
        """
        queues = (self._arrivals, self.cancels) if arrivals else (self.cancels,)
        oldest = [queue[0][0] for queue in queues if queue]
        return min(oldest) + scan_ns if oldest else None


def _take(queue: deque[tuple[int, int]], visible_by_ns: int) -> list[int]:
    slots: list[int] = []
    while queue and queue[0][0] <= visible_by_ns:
        slots.append(queue.popleft()[1])
    return slots


class SimTransport:
    """A queue pair in simulated time. Bytes move only when they would have arrived."""

    def __init__(
        self,
        env: Clock,
        memory: LoopbackMemory,
        costs: LinkCosts,
        *,
        published: Callable[[int, int, int], None] = lambda remote, value, now_ns: None,
        extra_delay_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        self.capabilities = Capabilities(outstanding_max=costs.outstanding_max)
        self.bytes_moved = 0
        self.ops_posted = 0
        self._env = env
        self._far_side = LoopbackTransport(memory, depth=1 << 30)
        self._costs = costs
        self._published = published
        self._extra_delay_ns = extra_delay_ns
        self._wire_free_ns = 0
        self._visible_ns = 0
        self._completed_ns = 0
        self._carried_bytes = 0
        self._outstanding = 0
        self._done: deque[Completion] = deque()

    @property
    def free_ops(self) -> int:
        """How many operations the queue takes now."""
        return self.capabilities.outstanding_max - self._outstanding - len(self._done)

    @property
    def drained_ns(self) -> int:
        """When everything posted so far will have arrived."""
        return self._visible_ns

    def carry(self, size_bytes: int) -> None:
        """Let the next batch take the time of ``size_bytes`` more: payload the twin leaves out."""
        self._carried_bytes += size_bytes

    def post(self, ops: Sequence[Op]) -> None:
        """One doorbell. Raises QueueFull, having taken nothing."""
        if len(ops) > self.free_ops:
            raise QueueFull(len(ops), self.free_ops)
        costs = self._costs
        self._wire_free_ns = max(self._wire_free_ns, self._env.now) + costs.post_ns
        self._wire_free_ns += costs.wire_ns(self._carried_bytes)
        self.bytes_moved += self._carried_bytes
        self._carried_bytes = 0
        self.ops_posted += len(ops)
        self._outstanding += len(ops)
        group: list[Op] = []
        for index, op in enumerate(ops):
            size = _wire_bytes(op)
            self.bytes_moved += size
            self._wire_free_ns += costs.per_op_ns + costs.wire_ns(size)
            group.append(op)
            if not isinstance(op, Write) or index == len(ops) - 1:
                self._send(group)
                group = []

    def _send(self, group: list[Op]) -> None:
        arrives = self._wire_free_ns + self._costs.one_way_ns + self._extra_delay_ns()
        # One queue pair never reorders flags: strictly later, for the clock shuffles true ties.
        self._visible_ns = max(self._visible_ns + 1, arrives)
        self._env.at(self._visible_ns, lambda: self._arrive(group))

    def _arrive(self, group: list[Op]) -> None:
        """The group takes effect at the far side; its completions travel back."""
        now = self._env.now
        self._far_side.post(group)
        for op in group:
            if isinstance(op, Publish):
                self._published(op.remote, op.value, now)
        completions = self._far_side.poll(len(group))
        self._outstanding -= len(group) - len(completions)
        if completions:
            back_ns = self._costs.one_way_ns + self._costs.wire_ns(
                sum(len(c.data) for c in completions if c.data is not None)
            )
            self._completed_ns = max(self._completed_ns + 1, now + back_ns)
            self._env.at(self._completed_ns, lambda: self._complete(completions))

    def _complete(self, completions: list[Completion]) -> None:
        self._outstanding -= len(completions)
        self._done.extend(completions)

    def poll(self, limit: int) -> list[Completion]:
        """Up to ``limit`` completions that have arrived by now, oldest first."""
        return [self._done.popleft() for _ in range(min(limit, len(self._done)))]


def _wire_bytes(op: Op) -> int:
    """Bytes that an operation sends towards the GPU (a read's answer travels the other way)."""
    if isinstance(op, Write):
        return len(op.data)
    return WORD_BYTES if not isinstance(op, Read) else 0
