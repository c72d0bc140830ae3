"""Ports that wrap ports: they watch, or they spoil, and whoever uses them cannot tell.

`TraceMemory` and `TraceTransport` report what passes, and refuse a flag word that no event of the
table explains, whoever wrote it: they are the SLOT invariant as a port. `FaultyTransport` does to
a transport what its contract allows and a friendly implementation does not, and breaks it on
demand. It draws no random numbers: its plan is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from blink.ring_protocol.constants import WORD_BYTES
from blink.ring_protocol.errors import LocalViolation, QueueFull
from blink.ring_protocol.events import CasLost, Completed, Posted, Sink, SlotMoved
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import (
    Capabilities,
    Completion,
    DeviceMemory,
    Op,
    Publish,
    Read,
    Status,
    Transport,
    Write,
)
from blink.ring_protocol.slot import explain, unpack
from blink.ring_protocol.states import TRANSITIONS, WRITER_OF, Event, Writer

_FRONT_END_EVENT_TO = {
    target: event
    for (_, event), target in TRANSITIONS.items()
    if WRITER_OF[event] is Writer.FRONT_END
}
"""The front end's only event that leads to each state: it publishes without reading."""


# --- Watching --------------------------------------------------------------------------------


class TraceMemory:
    """A DeviceMemory that reports every flag word the scheduler publishes.

    Raises LocalViolation, before it reaches memory, for a store that is no transition of the
    scheduler's.
    """

    def __init__(self, inner: DeviceMemory, geometry: Geometry, sink: Sink) -> None:
        self._inner = inner
        self._geometry = geometry
        self._sink = sink

    def load_relaxed(self, offset: int) -> int:
        return self._inner.load_relaxed(offset)

    def load_acquire(self, offset: int) -> int:
        return self._inner.load_acquire(offset)

    def store_release(self, offset: int, value: int) -> None:
        slot = self._geometry.slot_of_flag(offset)
        if slot is None:
            self._inner.store_release(offset, value)
            return
        event = self._event_of(slot, self._inner.load_acquire(offset), value)
        self._inner.store_release(offset, value)
        self._sink(_moved(slot, value, event))

    def cas(self, offset: int, expected: int, desired: int) -> int:
        slot = self._geometry.slot_of_flag(offset)
        if slot is None:
            return self._inner.cas(offset, expected, desired)
        event = self._event_of(slot, expected, desired)
        found = self._inner.cas(offset, expected, desired)
        self._sink(
            _moved(slot, desired, event) if found == expected else CasLost(slot, expected, found)
        )
        return found

    def read(self, offset: int, length: int) -> bytes:
        return self._inner.read(offset, length)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        self._inner.write(offset, data)

    def _event_of(self, slot: int, before: int, after: int) -> Event:
        event = explain(before, after)
        if event is None or WRITER_OF[event] is not Writer.SCHEDULER:
            raise LocalViolation(
                f"no event of the scheduler's leads to {unpack(after)}",
                slot=slot,
                state=unpack(before).state,
                writer=Writer.SCHEDULER,
            )
        return event


class TraceTransport:
    """A Transport that reports doorbells, completions and the flag words it publishes."""

    def __init__(self, inner: Transport, geometry: Geometry, sink: Sink) -> None:
        self._inner = inner
        self._geometry = geometry
        self._sink = sink

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def post(self, ops: Sequence[Op]) -> None:
        moves = [move for op in ops if (move := self._move(op)) is not None]
        self._inner.post(ops)
        written = sum(len(op.data) for op in ops if isinstance(op, Write))
        words = sum(WORD_BYTES for op in ops if not isinstance(op, Write | Read))
        read = sum(op.length for op in ops if isinstance(op, Read))
        self._sink(Posted(len(ops), written + words, read))
        for move in moves:
            self._sink(move)

    def poll(self, limit: int) -> list[Completion]:
        completions = self._inner.poll(limit)
        for completion in completions:
            self._sink(Completed(completion.tag, completion.status))
        return completions

    def _move(self, op: Op) -> SlotMoved | None:
        slot = self._geometry.slot_of_flag(op.remote) if isinstance(op, Publish) else None
        if slot is None or not isinstance(op, Publish):
            return None
        state = unpack(op.value, slot=slot).state
        if state not in _FRONT_END_EVENT_TO:
            raise LocalViolation(
                f"the front end publishes {state.name}, which is not its to write",
                slot=slot,
                writer=Writer.FRONT_END,
            )
        return _moved(slot, op.value, _FRONT_END_EVENT_TO[state])


def _moved(slot: int, word: int, event: Event) -> SlotMoved:
    state, outcome, generation, tokens = unpack(word, slot=slot)
    return SlotMoved(slot, generation, event, WRITER_OF[event], state, tokens, outcome)


# --- Spoiling --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Delay:
    """This operation, and so every later one, takes effect `polls` polls late (>= 1)."""

    polls: int


@dataclass(frozen=True, slots=True)
class Overtake:
    """This Write lands after the next operation, if the contract lets it: see `may_swap`."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """This Read returns what the last Read of the same bytes did.

    Beyond the contract: a link that loses track. A reader must notice and go on.
    """


@dataclass(frozen=True, slots=True)
class Break:
    """This operation fails, and the connection with it. It does not reach memory."""

    status: Status = Status.UNREACHABLE


Fault: TypeAlias = Delay | Overtake | Repeat | Break


def may_swap(first: Op, second: Op) -> bool:
    """May `second`, posted after `first`, take effect before it?

    Writes may, if they are disjoint. A tagged one may not: its completion says that whatever was
    posted before it has landed.
    """
    if not (isinstance(first, Write) and isinstance(second, Write)):
        return False
    first_end, second_end = first.remote + len(first.data), second.remote + len(second.data)
    disjoint = first_end <= second.remote or second_end <= first.remote
    return disjoint and first.tag is None is second.tag


class FaultyTransport:
    """A Transport that spoils operations according to a plan.

    plan: asked once for each operation, in the order of posting; None lets it pass.
    Operations that wait are outstanding: they fill the queue as on a real link.
    """

    def __init__(self, inner: Transport, plan: Callable[[Op], Fault | None]) -> None:
        self._inner = inner
        self._plan = plan
        self._waiting: deque[tuple[Op, int, Fault | None]] = deque()  # op, polls to go, fault
        self._inside: dict[int, Read | None] = {}  # tags that the inner transport owes us
        self._answers: dict[int, bytes | memoryview] = {}  # tag -> what it shall return instead
        self._last_answer: dict[tuple[int, int], bytes | memoryview] = {}  # by range read
        self._flushed: deque[Completion] = deque()
        self._failed = False

    @property
    def capabilities(self) -> Capabilities:
        """Those of the transport inside."""
        return self._inner.capabilities

    def post(self, ops: Sequence[Op]) -> None:
        """Ask the plan about each operation; nothing happens before the next poll."""
        held = len(self._waiting) + len(self._inside) + len(self._flushed)
        free = self.capabilities.outstanding_max - held
        if len(ops) > free:
            raise QueueFull(len(ops), free)
        for op in ops:
            fault = self._plan(op)
            self._waiting.append((op, fault.polls if isinstance(fault, Delay) else 0, fault))

    def poll(self, limit: int) -> list[Completion]:
        """One poll passes for whatever is delayed; then as the transport inside."""
        self._let_pass()
        done = [self._answer(completion) for completion in self._inner.poll(limit)]
        while self._flushed and not self._inside and len(done) < limit:
            done.append(self._flushed.popleft())
        return done

    def _let_pass(self) -> None:
        """Hand on what is no longer held back, oldest first."""
        while self._waiting:
            op, polls, fault = self._waiting[0]
            if polls > 0:
                self._waiting[0] = (op, polls - 1, fault)
                return
            if isinstance(fault, Overtake) and self._let_one_overtake():
                continue
            if not self._hand_on(op, fault):
                return
            self._waiting.popleft()

    def _let_one_overtake(self) -> bool:
        """Change places with the next operation, if it is there and the contract allows it."""
        if len(self._waiting) < 2 or not may_swap(self._waiting[0][0], self._waiting[1][0]):
            return False
        op, _, _ = self._waiting.popleft()
        self._waiting.insert(1, (op, 0, None))
        return True

    def _hand_on(self, op: Op, fault: Fault | None) -> bool:
        """Post inside, or fail, one operation; False if there is no room inside."""
        if self._failed or isinstance(fault, Break):
            status = fault.status if isinstance(fault, Break) else Status.FLUSHED
            self._flushed.append(Completion(op.tag, Status.FLUSHED if self._failed else status))
            self._failed = True
            return True
        try:
            self._inner.post([op])
        except QueueFull:
            return False
        if op.tag is not None:
            self._inside[op.tag] = op if isinstance(op, Read) else None
            if isinstance(op, Read) and isinstance(fault, Repeat):
                stale = self._last_answer.get((op.remote, op.length))
                if stale is not None:
                    self._answers[op.tag] = stale
        return True

    def _answer(self, done: Completion) -> Completion:
        """Remember what a Read returned, or return what an earlier one did."""
        read = self._inside.pop(done.tag, None) if done.tag is not None else None
        if done.tag is None or read is None or done.data is None:
            return done
        if done.tag in self._answers:
            return done._replace(data=self._answers.pop(done.tag))
        self._last_answer[read.remote, read.length] = done.data
        return done
