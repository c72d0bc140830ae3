"""A scheduler that lives on the GPU: set up, started, watched and stopped by the host.

with GpuScheduler(GpuConfig(geometry, limits, ...), engine) as scheduler:
scheduler.start()
...                     # front ends write the ring; no host thread takes part
scheduler.check()       # raises what has stopped it; call it now and then
"""

from __future__ import annotations

import ctypes as c
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, TypeVar

from blink.hw.cuda.graphs import CapturedGraphs, Grid, Progress
from blink.hw.cuda.runtime import (
    CudaError,
    GpuBytes,
    Stream,
    call,
    capture,
    download,
    free_memory_bytes,
    instantiate,
    kernel,
    upload,
)
from blink.hw.cuda.structs import GRAPHS, PrefillLog, Report, Setup, StepLog, View
from blink.hw.engine.port import Engine, GraphShape
from blink.hw.host.core import fault_of
from blink.hw.host.library import Config
from blink.hw.kernel.status import Status
from blink.model.errors import BackendFailed, ModelDoesNotFit
from blink.model.policy import GraphCache, Limits
from blink.model.scheduler import DECODE_GRAPH, PREFILL_GRAPH
from blink.ring_protocol.constants import GRAPH_EXECS, LAUNCH_WINDOW_MAX, SCHEDULER_THREADS
from blink.ring_protocol.layout import Geometry

DEVICE_BYTES: Final = 4096
FIRE_AND_FORGET: Final = 0
TAIL_CHAIN: Final = 1


_Log = TypeVar("_Log", StepLog, PrefillLog)


class SchedulerHung(BackendFailed):
    """The scheduler's heart stands still: what the host knows of it."""


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """What a scheduler is made of.

    modes: how each kind of graph is launched. By default decode steps are fire-and-forget, so that
    the scheduler scans meanwhile, and prefills are tail-chained, so that they have the whole GPU
    (docs/hardware.md has both measured). log_capacity: steps that are remembered. hang_s: how long
    its heart may stand still; longer than the longest prefill.
    """

    geometry: Geometry
    limits: Limits
    blocks_total: int
    block_tokens: int = 16
    graphs: GraphCache | None = None
    window: int = LAUNCH_WINDOW_MAX
    modes: dict[int, int] = field(
        default_factory=lambda: {DECODE_GRAPH: FIRE_AND_FORGET, PREFILL_GRAPH: TAIL_CHAIN}
    )
    log_capacity: int = 1 << 20
    hang_s: float = 5.0

    @property
    def context_tokens_max(self) -> int:
        """What a slot may hold, prompt and output."""
        return self.geometry.prompt_tokens_max + self.geometry.output_tokens_max

    @property
    def graph_cache(self) -> GraphCache:
        """The policy's view of the grid."""
        return self.graphs or GraphCache(self.limits.batch_max, self.geometry.prompt_tokens_max)


class GpuScheduler:
    """See the module. ``ring`` is its memory; ``progress`` hears of start-up.

    Raises BackendUnavailable without a GPU, ModelDoesNotFit if memory does not suffice.
    """

    def __init__(
        self,
        config: GpuConfig,
        engine: Engine,
        progress: Progress = lambda what, done, of: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.engine = engine
        self._now_s = now_s
        self._heartbeat, self._beat_s = 0, now_s()
        self._parts: list[GpuBytes] = []
        try:
            self._build(engine, progress)
        except BaseException:
            self._free()
            raise

    def _build(self, engine: Engine, progress: Progress) -> None:
        config = self.config
        self.ring = self._take(config.geometry.total_bytes)
        self._stream, self._side = Stream(), Stream()
        upload(self._side, self.ring.pointer, list(config.geometry.pack_header()), 1)
        self._grid = Grid.of(config.graph_cache, config.limits, config.context_tokens_max)
        self._check_memory(engine)
        self._device = self._take(DEVICE_BYTES)
        self._report = self._take(c.sizeof(Report))
        self._steps = self._take(config.log_capacity * c.sizeof(StepLog))
        self._prefills = self._take(config.log_capacity * c.sizeof(PrefillLog))
        self._tails = self._take(config.log_capacity * 8)
        self._decode_execs = self._take(8 * GRAPH_EXECS * len(self._grid.decode_batches))
        columns = len(self._grid.prompt_tokens)
        self._prefill_execs = self._take(
            8 * GRAPH_EXECS * len(self._grid.prefill_batches) * columns
        )
        self.view = self._set_up()
        engine.prepare(config.blocks_total, config.block_tokens)
        shapes = self._grid.shapes(config.limits)
        self.graphs = CapturedGraphs(engine, self.view, shapes, self._side, progress)
        self._write_tables()
        self._own = instantiate(self._own_graph(), self._stream)
        self._stream.wait()

    @property
    def device_pointer(self) -> int:
        """Where ``struct Device`` lies: for kernels that measure."""
        return self._device.pointer

    # --- running -----------------------------------------------------------------------------

    def start(self) -> None:
        """Launch it. From now on it serves the ring by itself."""
        self._beat_s = self._now_s()
        call("cudaGraphLaunch", self._own, self._stream.handle)

    def report(self) -> Report:
        """What it says of itself now."""
        found = Report()
        data = download(self._side, self._report.pointer, c.sizeof(Report))
        c.memmove(c.addressof(found), data, len(data))
        return found

    def check(self) -> Report:
        """Its report. Raises what has stopped it: a ProtocolViolation, CudaError, SchedulerHung."""
        report = self.report()
        fault = Status(report.fault)
        if fault is Status.LAUNCH_REFUSED:
            raise CudaError(
                f"the GPU refused to launch a graph: cudaError {report.launch_error}, after "
                f"{report.launches_total} launches and {report.relaunches} relaunches"
            )
        if fault is not Status.OK:
            raise fault_of(fault, report.fault_slot)
        self._watch(report)
        return report

    def _watch(self, report: Report) -> None:
        """A scheduler that lives looks up every few microseconds, or its graph ends."""
        now_s = self._now_s()
        if report.heartbeat != self._heartbeat or not report.running:
            self._heartbeat, self._beat_s = report.heartbeat, now_s
        elif now_s - self._beat_s > self.config.hang_s:
            raise SchedulerHung(f"no heartbeat for {self.config.hang_s:g} s: {_said(report)}")

    def stop(self, timeout_s: float = 5.0) -> None:
        """Let it end between two steps. Raises SchedulerHung if it does not."""
        upload(self._side, self._report.pointer + Report.stop.offset, [1], 4)
        deadline = self._now_s() + timeout_s
        while not self._stream.is_done():
            if self._now_s() > deadline:
                raise SchedulerHung(f"it does not stop: {_said(self.report())}")
        upload(self._side, self._report.pointer + Report.stop.offset, [0], 4)

    def close(self) -> None:
        """Stop, if it runs, and give everything back."""
        if not self._stream.is_done():
            self.stop()
        call("cudaGraphExecDestroy", self._own)
        self.graphs.close()
        self.engine.close()
        self._free()

    def _free(self) -> None:
        for part in self._parts:
            part.free()

    def __enter__(self) -> GpuScheduler:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or not self._has_died():
            self.close()

    def _has_died(self) -> bool:
        """Whether CUDA itself is lost: then nothing can be given back, and the error goes on."""
        try:
            self._side.wait()
        except CudaError:
            return True
        return False

    # --- what it did -------------------------------------------------------------------------

    def steps(self) -> list[StepLog]:
        """The graphs that ran, oldest first; at most ``log_capacity``."""
        return self._log(self._steps, StepLog, self.report().steps)

    def prefills(self) -> list[PrefillLog]:
        """Which prompts they computed; ``step`` counts from the first that ever ran."""
        return self._log(self._prefills, PrefillLog, self.report().prefills)

    def tails_ns(self) -> list[int]:
        """How long each relaunch took, from the end of one instance to the start of the next."""
        total = min(self.report().tails, self.config.log_capacity)
        data = download(self._side, self._tails.pointer, 8 * total)
        return list(memoryview(data).cast("Q"))

    def _log(self, where: GpuBytes, kind: type[_Log], total: int) -> list[_Log]:
        capacity = self.config.log_capacity
        data = download(self._side, where.pointer, min(total, capacity) * c.sizeof(kind))
        found = list((kind * (len(data) // c.sizeof(kind))).from_buffer_copy(data))
        begin = total % capacity if total > capacity else 0
        return found[begin:] + found[:begin]

    # --- setting up --------------------------------------------------------------------------

    def _take(self, size: int) -> GpuBytes:
        self._parts.append(GpuBytes(size))
        return self._parts[-1]

    def _words(self, values: tuple[int, ...]) -> int:
        part = self._take(4 * len(values))
        upload(self._side, part.pointer, values, 4)
        return part.pointer

    def _check_memory(self, engine: Engine) -> None:
        needed = engine.bytes_needed(self.config.blocks_total, self.config.block_tokens)
        free = free_memory_bytes()
        if needed > free:
            raise ModelDoesNotFit(
                f"{engine.describe()} with {self.config.blocks_total} KV blocks needs "
                f"{needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free: take fewer blocks or "
                "a smaller model"
            )

    def _set_up(self) -> View:
        config, grid = self.config, self._grid
        ring, limits, graphs = config.geometry, config.limits, config.graph_cache
        decode_batches = self._words(grid.decode_batches)
        prompt_tokens = self._words(tuple(graphs.prompt_tokens) or (graphs.prompt_tokens_max,))
        setup = Setup(
            Config(
                *(ring.slots, ring.prompt_tokens_max, ring.output_tokens_max),
                *(config.blocks_total, config.block_tokens),
                *(limits.batch_max, limits.prefill_batch_max, limits.prefill_tokens_max),
                *(config.window, graphs.prompt_tokens_max),
                *(len(grid.decode_batches), len(graphs.prompt_tokens) or 1),
                *(_as_pointer(decode_batches), _as_pointer(prompt_tokens)),
            ),
            *(part.pointer for part in (self.ring, self._report)),
            *(part.pointer for part in (self._steps, self._prefills, self._tails)),
            config.log_capacity,
            *(part.pointer for part in (self._decode_execs, self._prefill_execs)),
            *(self._words(grid.prompt_tokens), self._words(grid.prefill_batches)),
            *(len(grid.prompt_tokens), len(grid.prefill_batches)),
            (c.c_uint32 * GRAPHS)(*(config.modes[graph] for graph in range(GRAPHS))),
        )
        scratch = self._take(8)
        self._side.launch(kernel("blink_measure"), 1, 1, setup, c.c_void_p(scratch.pointer))
        size = int.from_bytes(download(self._side, scratch.pointer, 8), "little")
        blob = self._take(size)
        pointers = (c.c_void_p(self._device.pointer), c.c_void_p(blob.pointer))
        self._side.launch(kernel("blink_setup"), 1, 1, setup, *pointers)
        return View.from_buffer_copy(download(self._side, self._device.pointer, c.sizeof(View)))

    def _write_tables(self) -> None:
        grid, execs = self._grid, self.graphs.execs
        decode = [
            each for batch in grid.decode_batches for each in execs[GraphShape(False, batch, 1)]
        ]
        none = [0] * GRAPH_EXECS
        prefill = [
            each
            for batch in grid.prefill_batches
            for tokens in grid.prompt_tokens
            for each in execs.get(GraphShape(True, batch, tokens), none)
        ]
        upload(self._side, self._decode_execs.pointer, decode, 8)
        upload(self._side, self._prefill_execs.pointer, prefill, 8)

    def _own_graph(self) -> object:
        pointer = c.c_void_p(self._device.pointer)
        resident = kernel("blink_scheduler")
        return capture(
            self._side,
            lambda: self._side.launch(resident, 1, SCHEDULER_THREADS, pointer),
        )


def _said(report: Report) -> str:
    return (
        f"the scheduler has launched {report.launches_total} graphs in {report.executions} "
        f"executions, and seen {report.steps} end; only the end of this process frees the GPU"
    )


def _as_pointer(address: int) -> object:
    return c.cast(address, c.POINTER(c.c_uint32))
