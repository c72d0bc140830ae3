"""A ring in this process: one bytearray, seen through both doors, with no delay.

The simplest machine that keeps every promise of ports.py. It keeps more than it must (a Write is
visible at once, completions are immediate); FaultyTransport in middleware.py takes that away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from blink.ring_protocol.constants import WORD_BYTES
from blink.ring_protocol.errors import QueueFull
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import (
    Capabilities,
    Cas,
    Completion,
    DeviceMemory,
    Op,
    Publish,
    Read,
    Status,
    Write,
)

_MISALIGNED = WORD_BYTES - 1


class LoopbackMemory:
    """A DeviceMemory over `memory`: a writable buffer, or a number of bytes to be zeroed.

    Python runs one thread at a time through it, so acquire and release are free here. A full ring
    is hundreds of megabytes: a caller who minds brings a buffer whose untouched pages cost nothing.
    """

    __slots__ = ("_bytes", "_words")

    def __init__(self, memory: int | bytearray | memoryview) -> None:
        if isinstance(memory, int):
            memory = bytearray(-(-memory // WORD_BYTES) * WORD_BYTES)
        self._bytes = memoryview(memory).cast("B")
        self._words = self._bytes.cast("Q")

    @classmethod
    def formatted(cls, geometry: Geometry, *, payload: bool = True) -> LoopbackMemory:
        """An empty ring with its header; without `payload`, no token regions."""
        memory = cls(geometry.total_bytes if payload else geometry.control_bytes)
        memory.write(0, geometry.pack_header())
        return memory

    def __len__(self) -> int:
        return len(self._bytes)

    def load_relaxed(self, offset: int) -> int:
        if offset & _MISALIGNED or offset < 0:
            raise ValueError(f"no word begins at offset {offset}")
        return self._words[offset >> 3]

    load_acquire = load_relaxed

    def store_release(self, offset: int, value: int) -> None:
        if offset & _MISALIGNED or offset < 0:
            raise ValueError(f"no word begins at offset {offset}")
        self._words[offset >> 3] = value

    def cas(self, offset: int, expected: int, desired: int) -> int:
        found = self.load_relaxed(offset)
        if found == expected:
            self.store_release(offset, desired)
        return found

    def read(self, offset: int, length: int) -> bytes:
        return self.view(offset, length).tobytes()

    def write(self, offset: int, data: bytes | memoryview) -> None:
        self.view(offset, len(data))[:] = data

    def view(self, offset: int, length: int) -> memoryview:
        """The bytes themselves, not a copy: later stores show through it."""
        if offset < 0 or length < 0 or offset + length > len(self._bytes):
            raise IndexError(f"{length} bytes at {offset} are not within {len(self._bytes)}")
        return self._bytes[offset : offset + length]


class LoopbackTransport:
    """A Transport that acts on a memory in reach as soon as it is posted to."""

    def __init__(self, memory: DeviceMemory, depth: int = 128) -> None:
        self.capabilities = Capabilities(outstanding_max=depth)
        self._memory = memory
        self._done: deque[Completion] = deque()
        self._failed = False

    def post(self, ops: Sequence[Op]) -> None:
        free = self.capabilities.outstanding_max - len(self._done)
        if len(ops) > free:
            raise QueueFull(len(ops), free)
        for op in ops:
            completion = self._perform(op)
            self._failed |= completion.status is not Status.OK
            if op.tag is not None or self._failed:
                self._done.append(completion)

    def poll(self, limit: int) -> list[Completion]:
        return [self._done.popleft() for _ in range(min(limit, len(self._done)))]

    def _perform(self, op: Op) -> Completion:
        if self._failed:
            return Completion(op.tag, Status.FLUSHED)
        try:
            return self._apply(op)
        except (IndexError, ValueError):
            return Completion(op.tag, Status.REMOTE_ACCESS)

    def _apply(self, op: Op) -> Completion:
        match op:
            case Write(remote, data, tag):
                self._memory.write(remote, data)
                return Completion(tag, Status.OK)
            case Read(remote, length, tag):
                return Completion(tag, Status.OK, data=self._memory.read(remote, length))
            case Publish(remote, value, tag):
                self._memory.store_release(remote, value)
                return Completion(tag, Status.OK)
            case Cas(remote, expected, desired, tag):
                found = self._memory.cas(remote, expected, desired)
                return Completion(tag, Status.OK, old=found)
