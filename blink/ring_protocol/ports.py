"""The doors to a machine. Everything the protocol needs of the world, and nothing more.

The ring has two sides, so there are two doors to its memory. They are not one, because the two
sides cannot do the same things: the scheduler lives where the memory is and reads a word in
nanoseconds; the front end lives across a link, hands over batches, and hears later.

`Transport` promises only what its weakest implementation, a network card, can keep:

* `post` rings one doorbell and never blocks. It takes all of the batch or, raising QueueFull,
  none.
* A Publish or a Cas takes effect after every operation posted before it. Nothing else is ordered:
  two Writes may land in either order, except on the same bytes.
* A Read returns memory as it was at some moment between its post and its completion, and never
  older than what an earlier Read of this transport returned.
* The bytes of a Write belong to the transport until the Write, or a later operation, completes.
* Completions come in the order of posting. An operation without a tag has none of its own; it is
  complete when a later one is.
* The first failure is the last success: whatever was outstanding then, and whatever is posted
  later, completes with FLUSHED, tagged or not.
* A Cas is atomic towards other Cas operations of the same transport, NOT towards the scheduler's.

Time appears nowhere: who calls, knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias


class Write(NamedTuple):
    """Store `data` at offset `remote`. Unordered until a Publish or a Cas follows."""

    remote: int
    data: bytes | memoryview
    tag: int | None = None


class Read(NamedTuple):
    """Fetch `length` bytes from offset `remote`; they come with the completion."""

    remote: int
    length: int
    tag: int | None = None


class Publish(NamedTuple):
    """Store one aligned word, after all that was posted before it. One writer only."""

    remote: int
    value: int
    tag: int | None = None


class Cas(NamedTuple):
    """Swap one aligned word if it is `expected`; the completion says what it was."""

    remote: int
    expected: int
    desired: int
    tag: int | None = None


Op: TypeAlias = Write | Read | Publish | Cas


class Status(Enum):
    """How an operation ended."""

    OK = "ok"
    REMOTE_ACCESS = "remote access: out of bounds, misaligned or not permitted"
    UNREACHABLE = "unreachable: retries exhausted"
    FLUSHED = "flushed: an earlier operation failed"


class Completion(NamedTuple):
    """An operation is over. `data` is a Read's; `old` is the word that a Cas found."""

    tag: int | None
    status: Status
    data: bytes | memoryview | None = None
    old: int | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a transport is like. outstanding_max: operations posted and not yet polled."""

    outstanding_max: int
    publish_needs_cas: bool = False  # multipath links order a Write before an atomic only
    inline_bytes_max: int = 0  # Writes up to this size travel in the doorbell


class Transport(Protocol):
    """The front end's door. See the promises at the top of this file."""

    @property
    def capabilities(self) -> Capabilities: ...

    def post(self, ops: Sequence[Op]) -> None:
        """Hand over a batch. Raises QueueFull, having taken none of it."""

    def poll(self, limit: int) -> list[Completion]:
        """Up to `limit` completions, oldest first; perhaps none. Never blocks."""


class DeviceMemory(Protocol):
    """The scheduler's door: ring memory as one of its own threads sees it.

    Offsets are bytes from the start of the ring; words are aligned and 64 bits.
    Implementations raise ValueError for a misaligned word and IndexError beyond the end.
    """

    def load_relaxed(self, offset: int) -> int:
        """A word, soon: good for scanning, not for reading what it announces."""

    def load_acquire(self, offset: int) -> int:
        """A word; everything written before it was published can be read after this."""

    def store_release(self, offset: int, value: int) -> None:
        """Publish a word; everything written before this can be read by who sees it."""

    def cas(self, offset: int, expected: int, desired: int) -> int:
        """Swap if equal, with acquire and release; returns what was found."""

    def read(self, offset: int, length: int) -> bytes:
        """Plain bytes. Only meaningful behind an acquire, or as a relaxed scan."""

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Plain bytes. Only visible to others behind a release."""


class GraphLauncher(Protocol):
    """The scheduler's other door: starting work on the device it runs on."""

    def launch(self, graph: int, exec_index: int) -> None:
        """Fire and forget; counted by the LaunchWindow before it is made."""

    def tail_launch(self) -> None:
        """Replace the running scheduler by a fresh instance when this one returns."""
