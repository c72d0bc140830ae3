"""Machines that are wrong on purpose. A conformance check that passes one of them checks nothing.

Each breaks one promise of `ring_protocol.ports`, the way real machines have.
"""

from __future__ import annotations

from collections.abc import Sequence

from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import Capabilities, Completion, DeviceMemory, Op, Transport


class _WrappedMemory:
    """A DeviceMemory that passes everything on."""

    def __init__(self, inner: DeviceMemory, geometry: Geometry) -> None:
        self._inner = inner
        self._geometry = geometry

    def load_relaxed(self, offset: int) -> int:
        """See DeviceMemory."""
        return self._inner.load_relaxed(offset)

    def load_acquire(self, offset: int) -> int:
        """See DeviceMemory."""
        return self._inner.load_acquire(offset)

    def store_release(self, offset: int, value: int) -> None:
        """See DeviceMemory."""
        self._inner.store_release(offset, value)

    def cas(self, offset: int, expected: int, desired: int) -> int:
        """See DeviceMemory."""
        return self._inner.cas(offset, expected, desired)

    def read(self, offset: int, length: int) -> bytes:
        """See DeviceMemory."""
        return self._inner.read(offset, length)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """See DeviceMemory."""
        self._inner.write(offset, data)


class CasAlwaysWins(_WrappedMemory):
    """Compare-and-swap that does not compare: a stale claim wins, and two schedulers share."""

    def cas(self, offset: int, expected: int, desired: int) -> int:
        """Store whatever was there, and say that it was as expected."""
        self._inner.store_release(offset, desired)
        return expected


class LosesOutput(_WrappedMemory):
    """Payload that never lands: the count is published, the tokens are not there."""

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Drop what goes to the output region."""
        if offset < self._geometry.outputs_offset:
            self._inner.write(offset, data)


class FlagOvertakesPayload:
    """A transport whose ordered store is not ordered: the flag lands before what it announces."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._late: list[Op] = []

    @property
    def capabilities(self) -> Capabilities:
        """Those of the transport inside."""
        return self._inner.capabilities

    def post(self, ops: Sequence[Op]) -> None:
        """Post the last operation now, and those before it with the next batch."""
        late, self._late = self._late, list(ops[:-1])
        self._inner.post([*late, ops[-1]])

    def poll(self, limit: int) -> list[Completion]:
        """See Transport."""
        return self._inner.poll(limit)
