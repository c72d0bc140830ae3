"""The same graphs and the same policy from a host thread: the paper's baseline (figure 3).

The scheduler is the C++ core on threads of the host, its ring and its tables lie in host memory
that the GPU reads, and a thread of this process launches each graph and waits for it. What differs
from the GPU-resident scheduler is where it runs, and nothing else.
"""

from __future__ import annotations

import ctypes as c
import threading
import time
from typing import Any

from blink.hw.cuda.clock import gpu_offset_ns
from blink.hw.cuda.graphs import CapturedGraphs, Grid, Progress
from blink.hw.cuda.runtime import PinnedBytes, Stream, call
from blink.hw.cuda.scheduler import GpuConfig
from blink.hw.cuda.structs import Launch, View
from blink.hw.engine.port import Engine
from blink.hw.host.memory import SharedMemory
from blink.hw.host.threads import HostThreads
from blink.hw.recording import RanStep
from blink.model.scheduler import PREFILL_GRAPH


class HostResident:
    """Serves a ring in host memory; see the module. Times are of ``time.perf_counter_ns``."""

    def __init__(
        self,
        config: GpuConfig,
        engine: Engine,
        progress: Progress = lambda what, done, of: None,
    ) -> None:
        self.config, self.engine = config, engine
        self.memory = SharedMemory.formatted(config.geometry)
        self.scheduler = HostThreads(
            self.memory,
            limits=config.limits,
            graphs=config.graph_cache,
            window=config.window,
            blocks_total=config.blocks_total,
            block_tokens=config.block_tokens,
        )
        self._registered = [(self.memory.address, config.geometry.total_bytes)]
        self._launch = PinnedBytes(c.sizeof(Launch))
        self._tokens = PinnedBytes(4 * config.geometry.slots)
        self._slots = PinnedBytes(4 * config.geometry.slots)
        self._grid = Grid.of(config.graph_cache, config.limits, config.context_tokens_max)
        self._stream = Stream()
        view = self._view()
        for address, size in self._registered:
            call("cudaHostRegister", address, size, 0)
        engine.prepare(config.blocks_total, config.block_tokens)
        shapes = self._grid.shapes(config.limits)
        self.graphs = CapturedGraphs(engine, view, shapes, self._stream, progress)
        self._execs = {
            shape: call("cudaGraphInstantiateWithFlags", raw, 0)
            for shape, raw in self.graphs.raw.items()
        }
        self._steps: list[RanStep] = []
        self._stopping = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="host-resident", daemon=True)

    def start(self) -> None:
        """Begin to launch what the scheduler asks for."""
        self._thread.start()

    def check(self) -> None:
        """Raises what has stopped it."""
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        """End both threads between two steps."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self.scheduler.stop()

    def close(self) -> None:
        """Stop, and give everything back."""
        self.stop()
        self.graphs.close()
        for each in self._execs.values():
            call("cudaGraphExecDestroy", each)
        self.engine.close()
        for address, _ in self._registered:
            call("cudaHostUnregister", address)

    def steps(self) -> list[RanStep]:
        """The graphs that ran, on the host's clock."""
        return self._steps

    # --- inside ------------------------------------------------------------------------------

    def _view(self) -> View:
        view, base, size = View(), c.c_uint64(), c.c_uint64()
        self.scheduler.value("engine_view", c.addressof(view), base, size)
        self._registered.append((base.value, size.value))
        view.ring = self.memory.address
        view.launch, view.tokens = self._launch.pointer, self._tokens.pointer
        return view

    def _serve(self) -> None:
        try:
            offset_ns = gpu_offset_ns()
            while not self._stopping.is_set():
                if (running := self.scheduler.launched()) is not None:
                    self._run(*running, offset_ns)
        except BaseException as error:  # noqa: BLE001 - check() raises it where it is seen
            self._failed = error

    def _run(self, graph: int, count: int, slots: Any, offset_ns: int) -> None:
        decided_ns = time.perf_counter_ns()
        launch = Launch.from_address(self._launch.pointer)
        launch.launched += 1
        c.memmove(self._slots.pointer, slots, 4 * count)
        launch.slots, launch.count, launch.graph = self._slots.pointer, count, graph
        requests, tokens = self._prompts(slots[:count]) if graph == PREFILL_GRAPH else ((), 1)
        shape = self._grid.shape_of(graph, count, tokens)
        call("cudaGraphLaunch", self._execs[shape], self._stream.handle)
        launched_ns = time.perf_counter_ns()
        self._stream.wait()
        seen_ns = time.perf_counter_ns()
        self.scheduler.finish_with(self._tokens.pointer)
        turn = launch.launched % 2
        start_ns, end_ns = launch.start_ns[turn] + offset_ns, launch.end_ns[turn] + offset_ns
        # The clocks are compared to a microsecond or two: keep what is known to come first.
        start_ns = max(decided_ns, start_ns)
        end_ns = max(start_ns + 1, min(end_ns, seen_ns))
        times = (decided_ns, launched_ns, start_ns, end_ns, seen_ns)
        self._steps.append(RanStep(*times, graph, count, tokens, requests))

    def _prompts(self, slots: list[int]) -> tuple[tuple[int, ...], int]:
        """The requests of a prefill, and its longest context."""
        found = [self.scheduler.sequence(slot) for slot in slots]
        longest = max(each.prompt_tokens + max(0, each.tokens - 1) for each in found)
        return tuple(each.request_id for each in found), longest
