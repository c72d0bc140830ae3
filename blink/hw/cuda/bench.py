"""What single things cost on this GPU: the figures behind the twin's constants."""

from __future__ import annotations

import ctypes as c
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from blink.hw.cuda.memory import CudaTransport, GpuMemory
from blink.hw.cuda.null_engine import NullEngine
from blink.hw.cuda.runtime import (
    GpuBytes,
    Stream,
    call,
    capture,
    download,
    instantiate,
    kernel,
)
from blink.hw.cuda.scheduler import FIRE_AND_FORGET, GpuConfig, GpuScheduler
from blink.hw.engine.port import GraphShape, Inputs
from blink.model.policy import GraphCache, Limits
from blink.model.scheduler import DECODE_GRAPH, PREFILL_GRAPH
from blink.ring_protocol.constants import (
    HEADER_BYTES,
    LAUNCH_WINDOW_MAX,
    NO_TOKEN,
    SCHEDULER_THREADS,
    SLOT_METADATA_BYTES,
)
from blink.ring_protocol.descriptor import Descriptor
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import Op, Publish, Read, Write
from blink.ring_protocol.slot import pack
from blink.ring_protocol.states import Outcome, State

RING: Final = Geometry(slots=4096, prompt_tokens_max=16, output_tokens_max=4096)
LIMITS: Final = Limits(batch_max=16, prefill_batch_max=16, prefill_tokens_max=1 << 15)
GRAPHS: Final = GraphCache(16, 16, (1, 16), (16,))
SCANS, ADMISSIONS, COPIES = 2_000, 2_000, 300
OUTPUT_TOKENS: Final = 4000


@dataclass(frozen=True, slots=True)
class Sample:
    """Measured durations, ns."""

    p50: float
    p99: float
    mean: float
    count: int

    @classmethod
    def of(cls, values: Any) -> Sample:
        """Of any list of whole ns; the first tenth is warm-up and left out."""
        kept = np.asarray(values, dtype=np.int64)[len(values) // 10 :]
        p50, p99 = (float(np.percentile(kept, part)) for part in (50, 99))
        return cls(p50, p99, float(kept.mean()), len(kept))

    def as_dict(self) -> dict[str, float | int]:
        """For a record."""
        return {"p50": self.p50, "p99": self.p99, "mean": self.mean, "count": self.count}


class BareEngine(NullEngine):
    """Graphs of one node, the completion word: what a launch costs by itself."""

    name = "bare"

    def capture(
        self,
        shape: GraphShape,
        inputs: Inputs,
        before: Callable[[int], None],
        after: Callable[[int], None],
    ) -> Any:
        """See Engine."""
        assert self._stream is not None, "prepare() comes first"
        stream = self._stream
        return capture(stream, lambda: after(int(stream.handle)))


def microbenchmarks(progress: Callable[[str], None] = lambda what: None) -> dict[str, Sample]:
    """All of them, some seconds in all. Raises BackendUnavailable without a GPU."""
    found: dict[str, Sample] = {}
    progress("scans and admissions")
    found |= _kernels()
    progress("launches")
    found |= _launches()
    progress("steps")
    found |= step_overheads()
    progress("the front end's copies")
    found |= _transport()
    return found


def _config(modes: tuple[int, int] = (FIRE_AND_FORGET, FIRE_AND_FORGET)) -> GpuConfig:
    both = {PREFILL_GRAPH: modes[PREFILL_GRAPH], DECODE_GRAPH: modes[DECODE_GRAPH]}
    blocks = 16 * (OUTPUT_TOKENS // 16 + 2)
    return GpuConfig(RING, LIMITS, blocks, 16, GRAPHS, modes=both, log_capacity=1 << 16)


def _kernels() -> dict[str, Sample]:
    """Scans of an empty ring, and admissions by a team that has nothing else to do."""
    with GpuScheduler(_config(), NullEngine()) as scheduler:
        stream, device = Stream(), c.c_void_p(scheduler.device_pointer)
        times, claims = GpuBytes(8 * SCANS), GpuBytes(8 * ADMISSIONS)
        pointers = c.c_void_p(times.pointer), c.c_void_p(claims.pointer)

        def read(part: GpuBytes) -> Sample:
            return Sample.of(list(memoryview(download(stream, part.pointer, part.size)).cast("Q")))

        one = (1, SCHEDULER_THREADS)
        stream.launch(kernel("blink_time_scans"), *one, device, pointers[0], c.c_uint32(SCANS))
        scans = read(times)
        stream.launch(
            kernel("blink_time_admissions"), *one, device, *pointers, c.c_uint32(ADMISSIONS)
        )
        return {"scan_ns": scans, "claim_ns": read(claims), "claim_to_launch_ns": read(times)}


def _submit(scheduler: GpuScheduler, count: int, output_tokens: int) -> None:
    """Requests as a front end would write them, all at once, with prompts of one token."""
    memory = GpuMemory(scheduler.ring.pointer, RING)
    for slot in range(count):
        wanted = Descriptor(slot, slot, 1, output_tokens, 0.0, 1.0, 0, NO_TOKEN, 0, 1)
        memory.write(RING.descriptor_offset(slot), wanted.pack())
    for slot in range(count):
        word = pack(State.PREFILL_PENDING, Outcome.NONE, 1, 0)
        memory.store_release(RING.metadata_offset(slot), word)


def _decode_log(engine: NullEngine, batch: int, output_tokens: int) -> tuple[Any, list[int]]:
    """Steps of one batch that decodes to its end, int64 [steps, 5]; and the relaunches' times."""
    with GpuScheduler(_config(), engine) as scheduler:
        scheduler.start()
        _submit(scheduler, batch, output_tokens)
        _wait_until_completed(scheduler, batch)
        steps = [step for step in scheduler.steps() if step.graph == DECODE_GRAPH]
        tails = scheduler.tails_ns()
        scheduler.stop()
    full = [step for step in steps if step.count == batch]
    names = ("decided_ns", "launched_ns", "start_ns", "end_ns", "seen_ns")
    return np.array([[getattr(step, name) for name in names] for step in full]), tails


def _wait_until_completed(scheduler: GpuScheduler, batch: int) -> None:
    memory = GpuMemory(scheduler.ring.pointer, RING)
    completed = False
    while not completed:
        scheduler.check()
        metadata = memory.read(HEADER_BYTES, batch * SLOT_METADATA_BYTES)
        states = set(metadata[::SLOT_METADATA_BYTES])
        completed = states == {State.DECODE_COMPLETED}


def _launches() -> dict[str, Sample]:
    """Fire-and-forget launches of a graph with one node, and tail relaunches."""
    log, tails = _decode_log(BareEngine(), 1, OUTPUT_TOKENS)
    return {
        **_device_launches(),
        "empty_step_ns": Sample.of(np.diff(log[:, 0])),
        "tail_ns": Sample.of(tails),
        "host_launch_ns": _host_launches(),
    }


def _device_launches() -> dict[str, Sample]:
    """By a thread that does nothing else: the scheduler scans before it asks whether it is over."""
    calls: list[int] = []
    seen: list[int] = []
    with GpuScheduler(_config(), BareEngine()) as scheduler:
        stream, count = Stream(), LAUNCH_WINDOW_MAX
        parts = GpuBytes(8 * count), GpuBytes(8 * count)
        arguments = (scheduler.device_pointer, *(part.pointer for part in parts))
        pointers = [c.c_void_p(each) for each in arguments]

        def launch() -> None:
            stream.launch(kernel("blink_time_launches"), 1, 1, *pointers, c.c_uint32(count))

        own = instantiate(capture(stream, launch), stream)
        for _ in range(20):
            call("cudaGraphLaunch", own, stream.handle)
            stream.wait()
            for part, found in zip(parts, (calls, seen), strict=True):
                found += memoryview(download(stream, part.pointer, part.size)).cast("Q")
    return {"launch_call_ns": Sample.of(calls), "launch_to_seen_ns": Sample.of(seen)}


def _host_launches() -> Sample:
    """A launch of a one-node graph by the host, until the host knows that it is over."""
    with GpuScheduler(_config(), BareEngine()) as scheduler:
        stream = Stream()
        graph = scheduler.graphs.raw[GraphShape(False, 1, 1)]
        executable = call("cudaGraphInstantiateWithFlags", graph, 0)
        times = []
        for _ in range(COPIES):
            began = time.perf_counter_ns()
            call("cudaGraphLaunch", executable, stream.handle)
            stream.wait()
            times.append(time.perf_counter_ns() - began)
        return Sample.of(times)


def step_overheads(step_ns: int = 200_000, batch: int = 16) -> dict[str, Sample]:
    """Decode steps of a graph that takes ``step_ns``, over the same graph replayed back to back.

    The zero line is the mean period of a thousand replays queued on one stream.
    """
    engine = NullEngine(lambda shape: (step_ns, 0.0, 0.0))
    bare = _replay_period_ns(engine, batch)
    log, _ = _decode_log(NullEngine(lambda shape: (step_ns, 0.0, 0.0)), batch, 1500)
    decided, _, start, end, seen = log.T
    return {
        "step_overhead_ns": Sample.of(np.diff(decided) - bare),
        "decided_to_start_ns": Sample.of(start - decided),
        "end_to_seen_ns": Sample.of(seen - end),
        "seen_to_decided_ns": Sample.of(decided[1:] - seen[:-1]),
    }


def _replay_period_ns(engine: NullEngine, batch: int, replays: int = 1_000) -> float:
    with GpuScheduler(_config(), engine) as scheduler:
        return replay_ns(scheduler.graphs.raw[GraphShape(False, batch, 1)], replays)


def replay_ns(graph: Any, replays: int) -> float:
    """The mean period of a graph that the host replays back to back, ns: the zero line."""
    stream = Stream()
    executable = call("cudaGraphInstantiateWithFlags", graph, 0)
    events = [call("cudaEventCreate") for _ in range(2)]
    warm_up = replays // 10
    for at in range(replays + warm_up):
        if at == warm_up:
            call("cudaEventRecord", events[0], stream.handle)
        call("cudaGraphLaunch", executable, stream.handle)
    call("cudaEventRecord", events[1], stream.handle)
    stream.wait()
    call("cudaGraphExecDestroy", executable)
    return float(call("cudaEventElapsedTime", *events)) * 1e6 / replays


def _transport() -> dict[str, Sample]:
    """Posted to completed, while the scheduler runs: a bulk read, and 64 bytes with their flag."""
    with GpuScheduler(_config(), NullEngine()) as scheduler:
        transport = CudaTransport(scheduler.ring.pointer, RING.total_bytes)
        scheduler.start()

        def timed(ops: list[Op]) -> Sample:
            times = []
            for _ in range(COPIES):
                began = time.perf_counter_ns()
                transport.post(ops)
                while not transport.poll(1):
                    pass
                times.append(time.perf_counter_ns() - began)
            return Sample.of(times)

        spare = RING.descriptor_offset(RING.slots - 1)
        return {
            "read_metadata_ns": timed([Read(HEADER_BYTES, RING.metadata_bytes, 1)]),
            "write_visible_ns": timed([Write(spare, bytes(56)), Publish(spare + 56, 0, 2)]),
        }
