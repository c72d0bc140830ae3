"""A ring in GPU memory through both doors, and over CUDA IPC.

The front end's door is one-sided: copies and stream memory operations, no kernel of its own, and
no access to the scheduler but the ring. The scheduler's door, from Python, is for tests.
"""

from __future__ import annotations

import ctypes as c
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from blink.hw.cuda.runtime import PinnedBytes, Stream, call, kernel, libraries
from blink.hw.cuda.structs import Geometry as GpuGeometry
from blink.hw.cuda.structs import HeldSlots, RingCall
from blink.ring_protocol.constants import WORD_BYTES
from blink.ring_protocol.errors import QueueFull
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import (
    Capabilities,
    Cas,
    Completion,
    Op,
    Publish,
    Read,
    Status,
    Write,
)

_CAS: Final = 13  # of `enum Op` in ops.cu
IPC_HANDLE_BYTES: Final = 64


class _Posted(NamedTuple):
    """A batch under way: when its event has happened, its completions are due."""

    event: Any
    ops: Sequence[Op]
    places: tuple[int, ...]
    """of each operation's bytes in the staging memory"""
    end: int
    """where the next batch's bytes may begin once this one is over"""


class CudaTransport:
    """A ``Transport`` to a ring in GPU memory, by asynchronous copies on a stream of its own.

    pointer, size: the ring, in this process's address space (:func:`open_ring`, or where it was
    allocated). depth: operations posted and not yet polled. staging_bytes: pinned memory for what
    is under way; a batch that does not fit raises QueueFull. A Cas is not the GPU's: it is atomic
    towards this transport's own operations, which is all that the port promises, and it waits for
    them, so that it should be rare.
    """

    def __init__(
        self, pointer: int, size: int, depth: int = 128, staging_bytes: int = 4 << 20
    ) -> None:
        self.capabilities = Capabilities(outstanding_max=depth)
        self._pointer, self._size = pointer, size
        self._stream = Stream()
        self._staging = PinnedBytes(staging_bytes)
        self._used_from = self._used_to = 0  # staging bytes under way, counted without wrapping
        self._posted: deque[_Posted] = deque()
        self._done: deque[Completion] = deque()
        self._events: list[Any] = []  # that may be used again
        self._outstanding = 0
        self._failed = False  # while posting
        self._broken = False  # while completing, later

    def post(self, ops: Sequence[Op]) -> None:
        """See Transport."""
        free = self.capabilities.outstanding_max - self._outstanding - len(self._done)
        if len(ops) > free:
            raise QueueFull(len(ops), free)
        places, end = self._places(ops)
        if end - self._used_from > self._staging.size:
            raise QueueFull(len(ops), 0)
        begun = [self._begin(op, place) for op, place in zip(ops, places, strict=True)]
        self._used_to = end
        event = self._events.pop() if self._events else _new_event()
        call("cudaEventRecord", event, self._stream.handle)
        self._posted.append(_Posted(event, begun, places, end))
        self._outstanding += len(begun)

    def poll(self, limit: int) -> list[Completion]:
        """See Transport."""
        runtime = libraries()[2]
        while self._posted and len(self._done) < limit:
            [state] = runtime.cudaEventQuery(self._posted[0].event)
            if state == runtime.cudaError_t.cudaErrorNotReady:
                break
            self._complete(self._posted.popleft(), int(state) == 0)
        return [self._done.popleft() for _ in range(min(limit, len(self._done)))]

    def close(self) -> None:
        """Wait for what is under way, and give the staging memory back."""
        self._stream.wait()
        for event in self._events:
            call("cudaEventDestroy", event)
        self._stream.close()
        self._staging.free()

    # --- posting -----------------------------------------------------------------------------

    def _places(self, ops: Sequence[Op]) -> tuple[tuple[int, ...], int]:
        """Where each operation's bytes lie in staging memory; none is cut by its end."""
        at, places = self._used_to, []
        for op in ops:
            length = _staged_bytes(op)
            if at % self._staging.size + length > self._staging.size:
                at += self._staging.size - at % self._staging.size
            places.append(at % self._staging.size)
            at += -(-length // WORD_BYTES) * WORD_BYTES
        return tuple(places), at

    def _begin(self, op: Op, place: int) -> Op:
        if self._failed or not self._is_within(op):
            self._failed = True
            return op
        to, staged = self._pointer + op.remote, self._staging.pointer + place
        match op:
            case Write(_, data, _):
                self._staging.view[place : place + len(data)] = bytes(data)
                self._stream.copy(to, staged, len(data), "to the GPU")
            case Publish(_, value, _):
                # Ordered behind the copies before it, and one store of 8 bytes.
                call("cuStreamWriteValue64", int(self._stream.handle), to, value, 0)
            case Read(_, length, _):
                self._stream.copy(staged, to, length, "to the host")
            case Cas(_, expected, desired, _):
                self._stream.copy(staged, to, WORD_BYTES)
                self._stream.wait()
                found = int.from_bytes(self._staging.view[place : place + WORD_BYTES], "little")
                if found == expected:
                    call("cuStreamWriteValue64", int(self._stream.handle), to, desired, 0)
        return op

    def _is_within(self, op: Op) -> bool:
        is_word = isinstance(op, Publish | Cas)
        length = WORD_BYTES if is_word else _staged_bytes(op)
        inside = op.remote >= 0 and op.remote + length <= self._size
        return inside and not (is_word and op.remote % WORD_BYTES)

    # --- completing --------------------------------------------------------------------------

    def _complete(self, posted: _Posted, succeeded: bool) -> None:
        self._events.append(posted.event)
        for op, place in zip(posted.ops, posted.places, strict=True):
            self._outstanding -= 1
            if self._broken or not succeeded:
                status = Status.FLUSHED if self._broken else Status.UNREACHABLE
                self._done.append(Completion(op.tag, status))
                self._broken = True
            elif not self._is_within(op):
                self._broken = True
                self._done.append(Completion(op.tag, Status.REMOTE_ACCESS))
            elif op.tag is not None:
                self._done.append(self._completion(op, place))
        self._used_from = posted.end

    def _completion(self, op: Op, place: int) -> Completion:
        if isinstance(op, Read):
            return Completion(
                op.tag, Status.OK, data=bytes(self._staging.view[place : place + op.length])
            )
        if isinstance(op, Cas):
            found = int.from_bytes(self._staging.view[place : place + WORD_BYTES], "little")
            return Completion(op.tag, Status.OK, old=found)
        return Completion(op.tag, Status.OK)


def _new_event() -> Any:
    return call("cudaEventCreateWithFlags", libraries()[2].cudaEventDisableTiming)


def _staged_bytes(op: Op) -> int:
    if isinstance(op, Write):
        return len(op.data)
    if isinstance(op, Read):
        return op.length
    return WORD_BYTES if isinstance(op, Cas) else 0


# --- another process -------------------------------------------------------------------------


def export_ring(pointer: int) -> bytes:
    """A handle of a ring's memory, for another process on this machine."""
    return bytes(call("cudaIpcGetMemHandle", pointer).reserved)


def open_ring(handle: bytes) -> int:
    """Map another process's ring; returns where. Raises CudaError if that process is gone."""
    runtime = libraries()[2]
    given = runtime.cudaIpcMemHandle_t()
    given.reserved = handle
    return int(call("cudaIpcOpenMemHandle", given, runtime.cudaIpcMemLazyEnablePeerAccess))


def close_ring(pointer: int) -> None:
    """Unmap another process's ring."""
    call("cudaIpcCloseMemHandle", pointer)


# --- the scheduler's door --------------------------------------------------------------------


class GpuMemory:
    """A ``DeviceMemory`` over GPU memory: every access is a copy, or a kernel of one thread.

    pointer: the ring. Slow, and exact: what it reads is what the GPU's memory holds.
    """

    def __init__(self, pointer: int, geometry: Geometry) -> None:
        self.pointer, self.geometry = pointer, geometry
        self.stream = Stream()
        self._staging = PinnedBytes(max(geometry.metadata_bytes, 1 << 16))
        self._call = PinnedBytes(c.sizeof(RingCall))

    def close(self) -> None:
        """Give the staging memory back."""
        self._staging.free()
        self._call.free()
        self.stream.close()

    def load_relaxed(self, offset: int) -> int:
        """See DeviceMemory."""
        self._check_word(offset)
        return int.from_bytes(self.read(offset, WORD_BYTES), "little")

    load_acquire = load_relaxed

    def store_release(self, offset: int, value: int) -> None:
        """See DeviceMemory."""
        self._check_word(offset)
        call("cuStreamWriteValue64", int(self.stream.handle), self.pointer + offset, value, 0)
        self.stream.wait()

    def cas(self, offset: int, expected: int, desired: int) -> int:
        """See DeviceMemory."""
        self._check_word(offset)
        done = self.do(RingCall(op=_CAS, first=offset, word=expected, desired=desired))
        return int(done.word)

    def read(self, offset: int, length: int) -> bytes:
        """See DeviceMemory."""
        self._check(offset, length)
        self.stream.copy(self._staging.pointer, self.pointer + offset, length)
        self.stream.wait()
        return bytes(self._staging.view[:length])

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """See DeviceMemory."""
        self._check(offset, len(data))
        self._staging.view[: len(data)] = bytes(data)
        self.stream.copy(self.pointer + offset, self._staging.pointer, len(data))
        self.stream.wait()

    def do(self, wanted: RingCall, held: HeldSlots | None = None) -> RingCall:
        """Let one thread of the GPU do one operation on the ring."""
        ring = self.geometry
        geometry = GpuGeometry(
            *(ring.slots, ring.prompt_tokens_max, ring.output_tokens_max),
            *(ring.descriptor_offset(0), ring.prompt_offset(0)),
            *(ring.output_offset(0), ring.total_bytes),
        )
        c.memmove(self._call.pointer, c.addressof(wanted), c.sizeof(RingCall))
        pointers = (c.c_void_p(self.pointer), c.c_void_p(self._call.pointer))
        arguments = (pointers[0], geometry, held or HeldSlots(), pointers[1])
        self.stream.launch(kernel("blink_ring_call"), 1, 1, *arguments)
        self.stream.wait()
        return RingCall.from_buffer_copy(self._call.view)

    def _check_word(self, offset: int) -> None:
        if offset % WORD_BYTES:
            raise ValueError(f"no word begins at offset {offset}")

    def _check(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.geometry.total_bytes:
            raise IndexError(f"{length} bytes at {offset} are not within the ring")
