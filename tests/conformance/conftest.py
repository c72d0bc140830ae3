"""The machines that every conformance test runs on.

A machine that is missing here is not tested; a machine that cannot keep the protocol's promises
does not belong here.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

from blink.hw.cuda.memory import CudaTransport, GpuMemory
from blink.hw.cuda.ring import gpu_ring
from blink.hw.cuda.runtime import GpuBytes
from blink.hw.host.core import HostRing
from blink.hw.host.memory import SharedMemory
from blink.ring_protocol.events import TraceEvent
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.loopback import LoopbackMemory, LoopbackTransport
from blink.ring_protocol.middleware import (
    Delay,
    Fault,
    FaultyTransport,
    Overtake,
    Repeat,
    TraceMemory,
    TraceTransport,
)
from blink.ring_protocol.ports import Op, Read
from blink.sim.clock import Clock
from blink.sim.memory import LinkCosts, SimTransport
from blink.testing.conformance import MemoryMaker, RingMemory


def loopback(geometry: Geometry) -> RingMemory:
    """Everything at once, nothing ever late."""
    memory = LoopbackMemory.formatted(geometry)
    return RingMemory(memory, LoopbackTransport(memory, depth=16))


def loopback_with_faults(geometry: Geometry) -> RingMemory:
    """Late, out of order where that is allowed, and now and then an answer twice."""
    world = loopback(geometry)
    # Seven decisions, no divisor of any batch: every operation meets every one of them in time.
    decisions = cycle([None, Overtake(), Delay(1), None, Overtake(), Delay(3), None])
    repeats = cycle([None, None, Repeat()])

    def plan(op: Op) -> Fault | None:
        is_bulk_read = isinstance(op, Read) and op.length == geometry.metadata_bytes
        return next(decisions) or (next(repeats) if is_bulk_read else None)

    return RingMemory(world.memory, FaultyTransport(world.transport, plan))


def loopback_with_trace(geometry: Geometry) -> RingMemory:
    """Watched on both sides: a flag word that no event explains raises where it is written."""
    world = loopback(geometry)
    seen: list[TraceEvent] = []
    return RingMemory(
        TraceMemory(world.memory, geometry, seen.append),
        TraceTransport(world.transport, geometry, seen.append),
    )


def simulated(geometry: Geometry) -> RingMemory:
    """The twin's queue pair: everything takes its time, and lands in order of its arrival."""
    memory = LoopbackMemory.formatted(geometry)
    clock = Clock(np.random.default_rng(1))
    costs = LinkCosts(
        post_ns=400, per_op_ns=60, one_way_ns=2200, bandwidth_bytes_s=25e9, outstanding_max=16
    )
    delays = cycle([0, 900, 0, 3000, 100])
    transport = SimTransport(clock, memory, costs, extra_delay_ns=lambda: next(delays))
    return RingMemory(memory, transport, elapse=lambda: clock.run(until=clock.now + 5000))


def host(geometry: Geometry) -> RingMemory:
    """The C++ core on memory that processes share, with real atomics."""
    memory = SharedMemory.formatted(geometry)
    return RingMemory(memory, LoopbackTransport(memory, depth=16), scheduler=HostRing)


def cuda(geometry: Geometry) -> RingMemory:
    """The C++ core on a GPU, the front end one-sided."""
    memory = GpuMemory(GpuBytes(geometry.total_bytes).pointer, geometry)
    memory.write(0, geometry.pack_header())
    transport = CudaTransport(memory.pointer, geometry.total_bytes, depth=16)
    return RingMemory(memory, transport, scheduler=gpu_ring)


def host_over_loopback(geometry: Geometry) -> RingMemory:
    """The C++ core on the reference's memory: every access is a call into Python, and watched."""
    return replace(loopback_with_trace(geometry), scheduler=HostRing)


@pytest.fixture(
    params=[
        pytest.param(loopback, id="loopback"),
        pytest.param(loopback_with_faults, id="loopback+faults"),
        pytest.param(loopback_with_trace, id="loopback+trace"),
        pytest.param(simulated, id="sim"),
        pytest.param(host, id="host"),
        pytest.param(host_over_loopback, id="host over loopback"),
        pytest.param(cuda, id="cuda", marks=pytest.mark.hw),
    ]
)
def ring_memory_maker(request: pytest.FixtureRequest) -> MemoryMaker:
    """A maker of rings on one of the machines."""
    maker: MemoryMaker = request.param
    if maker in (host, host_over_loopback):
        request.getfixturevalue("host_build")
    if maker is cuda:
        request.getfixturevalue("gpu")
    return maker
