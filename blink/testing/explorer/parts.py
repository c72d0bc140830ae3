"""What a small ring is made of: its configuration, its clients, and the book of what is true."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from blink.ring_protocol.front_end import FrontEnd
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.states import Outcome
from blink.testing.explorer.machine import Link

FAULTS: Final = ("cancel", "crash", "relaunch", "farewell", "repeat")
"""What may go wrong: a client leaves; a front end dies and another takes over; the scheduler is
relaunched between two graphs; a cancel of a slot's earlier request lands late; a read's old answer
comes again. That what is posted lands late is no fault: it always may."""
ATTACH_TAG: Final = 0  # the front end's own tags begin at 1

Action = tuple[str, int, int]
"""What happens, to which front end or thread, to which request; unused numbers are 0."""


@cache
def kept(kind: type, arguments: tuple[Any, ...]) -> Any:
    """``kind(*arguments)``, made once a process: for what never changes."""
    return kind(*arguments)


@dataclass(frozen=True, slots=True)
class Config:
    """A ring to explore.

    Requests are dealt to the front ends in turn; each has ``slots / front_ends`` slots. A request
    of an even number ends by a stop token, of an odd one by its limit. disturbances: how many
    crashes, early relaunches, farewells and repeats there are in all, each at any point; any client
    may leave at any point besides. reduced: leave
    out orders that lead to the same place; without it, all are gone through, and far fewer fit.
    endings: keep apart worlds that differ only in how a request ended, so that a report has all.

    Merged (reduced, and every front end has one slot): what is posted lands at once. To post is the
    front end's own affair, so posting just before it lands is as good; what its front end does
    in between would have to hang on the landing, and does not.
    """

    slots: int = 2
    front_ends: int = 2
    requests: int = 3
    window: int = 3
    threads: int = 2
    faults: frozenset[str] = frozenset(FAULTS)
    disturbances: int = 1
    output_tokens: int = 3
    blocks: int = 4
    batch: int = 2
    reduced: bool = True
    endings: bool = False

    @property
    def geometry(self) -> Geometry:
        """The ring's geometry. Token regions are of whole words, so that slots share none."""
        output_tokens = self.output_tokens + 1
        shape: Geometry = kept(Geometry, (self.slots, 2, output_tokens + output_tokens % 2))
        return shape

    def output_of(self, request: int) -> int:
        """How many tokens request ``request`` generates: every third only one."""
        return 1 if request % 3 == 2 else self.output_tokens


@dataclass(slots=True)
class Book:
    """What is true of one request, seen from outside."""

    submitted: bool = False
    asked: bool = False  # to be cancelled
    received: int = 0
    outcome: Outcome | None = None
    claims: int = 0
    written: Outcome | None = None


@dataclass(slots=True)
class Client:
    """One front end, its queue pair, and what its clients still want."""

    front_end: FrontEnd
    link: Link
    todo: list[int]
    last: bytes | None = None  # what its last bulk read returned, while that may come again
    attached: bool = True
