"""The host's engine thread, with functions in the place of CUDA's: it launches what was decided."""

from __future__ import annotations

import ctypes as c
import os

import pytest

from blink.hw.cuda.structs import Launch
from blink.hw.host.engine import HostEngine, LaunchFunction, Tables, WaitFunction
from blink.hw.host.memory import SharedMemory
from blink.hw.host.threads import HostThreads
from blink.model.policy import GraphCache, Limits
from blink.model.scheduler import PREFILL_GRAPH
from blink.ring_protocol.constants import HEADER_BYTES, NO_TOKEN, SLOT_METADATA_BYTES
from blink.ring_protocol.descriptor import Descriptor
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.slot import pack
from blink.ring_protocol.states import Outcome, State

pytestmark = pytest.mark.usefixtures("host_build")

RING = Geometry(slots=4, prompt_tokens_max=4, output_tokens_max=8)
DECODE, PREFILL = [101, 102], [201, 202, 203, 204]  # handles: what launch() is given
TABLES = Tables(DECODE, PREFILL, [0, 0, 1], [0, 0, 1], [0, 0, 0, 1, 1] + [1] * 8, 2)


class Device:
    """Stands in for the GPU: a launched graph leaves its handle as every slot's token."""

    def __init__(self, refuses: bool = False) -> None:
        self.shared = Launch()
        self.slots = (c.c_uint32 * RING.slots)()
        self.tokens = (c.c_uint32 * RING.slots)()
        self.launched: list[tuple[int, list[int]]] = []
        self.refuses = refuses
        self.functions = (LaunchFunction(self.launch), WaitFunction(lambda stream: 0))

    def launch(self, handle: int, stream: int) -> int:
        if self.refuses:
            return 700
        batch = list(self.slots[: self.shared.count])
        self.launched.append((handle, batch))
        for slot in batch:
            self.tokens[slot] = handle
        return 0

    def start(self, scheduler: HostThreads) -> HostEngine:
        launch, wait = (c.cast(each, c.c_void_p).value or 0 for each in self.functions)
        return HostEngine(
            scheduler,
            TABLES,
            launch=launch,
            wait=wait,
            stream=7,
            shared=c.addressof(self.shared),
            slots=c.addressof(self.slots),
            tokens=c.addressof(self.tokens),
        )


def scheduler_of(memory: SharedMemory) -> HostThreads:
    graphs = GraphCache(2, 4, (1, 2), (2, 4))
    return HostThreads(
        memory, limits=Limits(2, 2, 8), graphs=graphs, blocks_total=20, block_tokens=2
    )


def submit(memory: SharedMemory, slot: int, prompt_tokens: int, output_tokens: int) -> None:
    wanted = Descriptor(slot, 0, prompt_tokens, output_tokens, 0.0, 1.0, 0, NO_TOKEN, 0, 1)
    memory.write(RING.descriptor_offset(slot), wanted.pack())
    memory.store_release(RING.request_id_offset(slot), 40 + slot)
    word = pack(State.PREFILL_PENDING, Outcome.NONE, 1, 0)
    memory.store_release(RING.metadata_offset(slot), word)


def test_it_launches_what_was_decided_and_logs_it() -> None:
    memory = SharedMemory.formatted(RING)
    device = Device()
    with scheduler_of(memory) as scheduler:
        engine = device.start(scheduler)
        submit(memory, 1, 4, 3)
        completed = {State.DECODE_COMPLETED}
        flag = HEADER_BYTES + SLOT_METADATA_BYTES
        while set(memory.read(flag, 16)[:1]) != completed:
            scheduler.check()
            os.sched_yield()
        engine.stop()
        steps, prompts = engine.steps()
    assert device.launched == [(202, [1]), (101, [1]), (101, [1])]
    found = memory.read(RING.output_offset(1), 12)
    assert list(memoryview(found).cast("I")) == [202, 101, 101]
    assert [(step.graph == PREFILL_GRAPH, step.count, step.tokens) for step in steps] == [
        (True, 1, 4),
        (False, 1, 1),
        (False, 1, 1),
    ]
    assert prompts == [41]
    assert [step.prompts for step in steps] == [1, 0, 0]
    for step in steps:
        assert step.decided_ns <= step.launched_ns <= step.seen_ns


def test_a_refused_launch_is_told() -> None:
    memory = SharedMemory.formatted(RING)
    device = Device(refuses=True)
    with scheduler_of(memory) as scheduler:
        engine = device.start(scheduler)
        submit(memory, 0, 1, 1)
        while not engine.error():
            os.sched_yield()
        assert engine.error() == 700
        engine.stop()
        assert engine.steps()[0] == []
