"""What can be seen happening at a ring, for traces and checks. Values only; times are the sink's.

Middleware (middleware.py) makes these out of what passes through a port. Whoever collects them
adds the time: the protocol has no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from blink.ring_protocol.ports import Status
from blink.ring_protocol.states import Event, Outcome, State, Writer


@dataclass(frozen=True, slots=True)
class SlotMoved:
    """A flag word was published: `event`, by `writer`, brought the slot to this."""

    slot: int
    generation: int
    event: Event
    writer: Writer
    state: State
    tokens: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class CasLost:
    """A compare-and-swap on a flag word found another word: somebody else was first."""

    slot: int
    expected: int
    found: int


@dataclass(frozen=True, slots=True)
class Posted:
    """The front end rang a doorbell."""

    ops: int
    write_bytes: int
    read_bytes: int


@dataclass(frozen=True, slots=True)
class Completed:
    """An operation of the front end is over."""

    tag: int | None
    status: Status


TraceEvent: TypeAlias = SlotMoved | CasLost | Posted | Completed
Sink: TypeAlias = Callable[[TraceEvent], None]
