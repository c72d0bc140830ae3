"""What can go wrong, by whose fault it is.

A *violation* is a bug: we broke the protocol (LocalViolation) or the other side did
(PeerViolation). It names the slot, its state, the event and who tried it, and it is raised before
anything changes. A *refusal* is a request that no ring of this geometry can carry; its sender
must change it. The rest is the world: memory laid out by another version, a queue that is full, a
connection that broke.
"""

from __future__ import annotations

from blink.ring_protocol.states import OWNER_OF, Event, State, Writer


class RingError(Exception):
    """Base of everything this package raises on purpose."""


class ProtocolViolation(RingError):
    """The protocol was broken. Never raised itself: it is always somebody's violation.

    slot, state, event and writer are None where they have no meaning.
    """

    def __init__(
        self,
        reason: str,
        *,
        slot: int | None = None,
        state: State | None = None,
        event: Event | None = None,
        writer: Writer | None = None,
    ) -> None:
        if type(self) is ProtocolViolation:
            raise TypeError("raise LocalViolation or PeerViolation: somebody is at fault")
        self.reason = reason
        self.slot = slot
        self.state = state
        self.event = event
        self.writer = writer
        super().__init__(self._message())

    def _message(self) -> str:
        parts = [
            f"slot {self.slot}" if self.slot is not None else None,
            f"in {self.state.name} (owned by {OWNER_OF[self.state].name})"
            if self.state is not None
            else None,
            f"on {self.event.name}" if self.event is not None else None,
            f"by {self.writer.name}" if self.writer is not None else None,
        ]
        where = " ".join(part for part in parts if part)
        return f"{where}: {self.reason}" if where else self.reason


class LocalViolation(ProtocolViolation):
    """This side tried something that the protocol forbids. Nothing has changed."""


class PeerViolation(ProtocolViolation):
    """Memory holds something that no correct peer can have written.

    Stop using the ring: tear down the connection and begin with a fresh one.
    """


class WindowExhausted(LocalViolation):
    """More launches than this execution of the scheduler has left. Relaunch first."""


class InvalidGeometry(RingError, ValueError):
    """A ring size is out of range. `name`, `value` and `maximum` say which and why."""

    def __init__(self, name: str, value: int, maximum: int) -> None:
        self.name = name
        self.value = value
        self.maximum = maximum
        super().__init__(f"ring geometry: {name} is {value}, allowed is 1 to {maximum}")


class LayoutMismatch(RingError):
    """The memory is not a ring of this layout and geometry."""

    def __init__(self, field: str, expected: object, found: object) -> None:
        self.field = field
        self.expected = expected
        self.found = found
        super().__init__(
            f"ring header: {field} is {found!r}, expected {expected!r}; "
            "start both sides with the same version and the same ring settings"
        )


class RequestRefused(RingError, ValueError):
    """A request that this ring cannot carry, whatever its load. `field` must change."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        super().__init__(f"request refused: {field} is {value!r}, allowed is {allowed}")


class PromptTooLong(RequestRefused):
    """The prompt does not fit into a slot's prompt region."""


class OutputTooLong(RequestRefused):
    """The output limit does not fit into a slot's output region."""


class InvalidSampling(RequestRefused):
    """A sampling parameter is not a number, or is out of range."""


class QueueFull(RingError):
    """The transport has no room for this batch, and took none of it. Poll, then post again."""

    def __init__(self, wanted: int, free: int) -> None:
        self.wanted = wanted
        self.free = free
        super().__init__(f"cannot post {wanted} operations, {free} places are free: poll first")


class TransportFailed(RingError):
    """An operation failed, and with it the connection: everything after it was flushed."""

    def __init__(self, tag: int | None, status: object) -> None:
        self.tag = tag
        self.status = status
        super().__init__(
            f"operation {tag} completed with {status}: abandon the requests in flight, reconnect"
        )
