"""The C++ core's side of the ring, on the GPU: one thread of it does what Python asks.

It has the functions of the host build that ``HostRing`` calls, so that the conformance suite drives
the GPU's own loads, stores and compare-and-swaps.
"""

from __future__ import annotations

import ctypes as c
from typing import Any, Final

from blink.hw.cuda.memory import GpuMemory
from blink.hw.cuda.runtime import GpuBytes
from blink.hw.cuda.structs import HeldSlots, RingCall
from blink.hw.host.core import HostRing
from blink.hw.host.library import Claimed
from blink.hw.kernel.status import Status
from blink.ring_protocol.constants import HEADER_BYTES
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import DeviceMemory

_NAMES: Final = (
    *("check_header", "ring_scan", "ring_claim", "ring_begin_execution", "ring_adopt"),
    *("ring_first_token", "ring_advance", "ring_pause", "ring_resume", "ring_complete"),
    *("ring_cancelled", "ring_write_tokens", "ring_beat"),
)
_OPS: Final = {name: number for number, name in enumerate(_NAMES)}
"""In the order of ``enum Op`` in ops.cu."""


class GpuCore:
    """What ``HostRing`` asks of a core, on the GPU."""

    def __init__(self, memory: GpuMemory, geometry: Geometry) -> None:
        self.geometry = geometry
        self._memory = memory
        sizes = (8, 8, 4)
        self._arrays = [GpuBytes(size * geometry.slots) for size in sizes]
        self._held = HeldSlots(*(array.pointer for array in self._arrays))
        if self.call("check_header") is not Status.OK:
            geometry.check_header(memory.read(0, HEADER_BYTES))  # raises, and says what differs

    def call(self, name: str, *arguments: Any) -> Status:
        """Call a function that returns a Status."""
        return Status(self._do(name, *arguments).status)

    def value(self, name: str, *arguments: Any) -> int:
        """Call a function for what it returns."""
        return int(self._do(name, *arguments).word)

    def _do(self, name: str, *arguments: Any) -> RingCall:
        call = RingCall(op=_OPS[name])
        if arguments:
            call.slot = arguments[0]
        rest = arguments[1:]
        out: Any = None
        match name:
            case "ring_claim":
                call.word, out = rest
            case "ring_adopt":
                [out] = rest
            case "ring_advance":
                [call.count] = rest
            case "ring_complete":
                call.outcome = int(rest[0])
            case "ring_cancelled":
                [out] = rest
            case "ring_write_tokens":
                call.first, data, call.count = rest
                c.memmove(c.addressof(call) + RingCall.tokens.offset, data, len(data))
        done = self._memory.do(call, self._held)
        if isinstance(out, Claimed):
            c.memmove(c.addressof(out), c.addressof(done.claimed), c.sizeof(Claimed))
        elif out is not None:
            out.value = done.outcome
        return done


def gpu_ring(memory: DeviceMemory, geometry: Geometry) -> HostRing:
    """A scheduler's side of the ring that acts on the GPU, over a :class:`GpuMemory`.

    Over memory that is wrapped by somebody who wants to see or spoil every access it is the host
    build instead: the GPU's own accesses pass through nobody.
    """
    if not isinstance(memory, GpuMemory):
        return HostRing(memory, geometry)
    return HostRing(memory, geometry, GpuCore(memory, geometry))
