"""Processes for tests/hw/cuda/test_survival.py.

python -m tests.hw.cuda.process front-end HANDLE REQUESTS SEED      a front end over CUDA IPC
python -m tests.hw.cuda.process hang                                a graph that does not end
"""

from __future__ import annotations

import os
import sys

from blink.hw.cuda.memory import CudaTransport, close_ring, open_ring
from blink.hw.cuda.null_engine import NullEngine
from blink.hw.cuda.scheduler import GpuScheduler, SchedulerHung
from blink.ring_protocol.constants import HEADER_BYTES
from blink.ring_protocol.ports import Completion, Read
from tests.hw.cuda.serving import RING, Client, config_of


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def front_end(handle: str, requests: str, seed: str) -> None:
    """Take over the ring behind an IPC handle, serve, and say how it went."""
    pointer = open_ring(bytes.fromhex(handle))
    transport = CudaTransport(pointer, RING.total_bytes)
    client = Client(RING, transport, int(requests), seed=int(seed), cancel_one_in=3)
    transport.post([Read(HEADER_BYTES, RING.metadata_bytes, 0)])
    found: list[Completion] = []
    while not found:
        found = transport.poll(1)
    assert found[0].data is not None
    client.front_end.attach(found[0].data)
    say(f"orphans {client.front_end.orphans}")
    while not client.is_done or client.front_end.orphans:
        client.turn()
    say(f"ended {sum(client.outcomes.values())}")
    transport.close()
    close_ring(pointer)


def hang() -> None:
    """A step that takes a minute: found out in a second, and this process ends."""
    config = config_of(window=120, blocks=80, hang_s=0.5)
    scheduler = GpuScheduler(config, NullEngine(lambda shape: (60_000_000_000, 0.0, 0.0)))
    client = Client(RING, CudaTransport(scheduler.ring.pointer, RING.total_bytes), 1)
    scheduler.start()
    try:
        while True:
            client.turn()
            scheduler.check()
    except SchedulerHung as hung:
        say(f"hung: {hung}")
        os._exit(1)


if __name__ == "__main__":
    if sys.argv[1] == "hang":
        hang()
    else:
        front_end(*sys.argv[2:])
