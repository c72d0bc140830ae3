"""The same graphs and the same policy from a host thread: the paper's baseline (figure 3).

The scheduler is the C++ core on threads of the host, its ring and its tables lie in host memory
that the GPU reads, and a thread in C++ launches each graph and waits for it. What differs from the
GPU-resident scheduler is where it runs, and nothing else.
"""

from __future__ import annotations

import ctypes as c
from bisect import bisect_left

from blink.hw.cuda.clock import gpu_offset_ns
from blink.hw.cuda.graphs import CapturedGraphs, Grid, Progress
from blink.hw.cuda.runtime import CudaError, PinnedBytes, Stream, call
from blink.hw.cuda.scheduler import GpuConfig
from blink.hw.cuda.structs import Launch, View
from blink.hw.engine.port import Engine, GraphShape
from blink.hw.host.engine import HostEngine, HostStep, Tables
from blink.hw.host.memory import SharedMemory
from blink.hw.host.threads import HostThreads
from blink.hw.recording import RanStep


class HostResident:
    """Serves a ring in host memory; see the module.

    Times are of ``time.perf_counter_ns``: the monotonic clock that C++ reads too.
    """

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
        self._tokens, self._slots = (PinnedBytes(4 * config.geometry.slots) for _ in range(2))
        self._grid = Grid.of(config.graph_cache, config.limits, config.context_tokens_max)
        self._stream = Stream()
        view = self._view()
        for address, size in self._registered:
            call("cudaHostRegister", address, size, 0)
        engine.prepare(config.blocks_total, config.block_tokens)
        shapes = self._grid.shapes(config.limits)
        self.graphs = CapturedGraphs(engine, view, shapes, self._stream, progress)
        self._execs = {
            shape: int(call("cudaGraphInstantiateWithFlags", raw, 0))
            for shape, raw in self.graphs.raw.items()
        }
        self._thread: HostEngine | None = None
        self._steps: list[RanStep] = []

    def start(self) -> None:
        """Begin to launch what the scheduler asks for."""
        driver = c.CDLL("libcuda.so.1")
        launch, wait = (
            c.cast(function, c.c_void_p).value or 0
            for function in (driver.cuGraphLaunch, driver.cuStreamSynchronize)
        )
        self._thread = HostEngine(
            self.scheduler,
            self._tables(),
            launch=launch,
            wait=wait,
            stream=int(self._stream.handle),
            shared=self._launch.pointer,
            slots=self._slots.pointer,
            tokens=self._tokens.pointer,
        )

    def check(self) -> None:
        """Raises what has stopped it."""
        self.scheduler.check()
        if self._thread is not None and self._thread.error():
            raise CudaError(f"a launch from the host failed: CUresult {self._thread.error()}")

    def stop(self) -> None:
        """End both threads between two steps."""
        if self._thread is not None:
            self._thread.stop()
            self._steps = self._read_steps(*self._thread.steps(), gpu_offset_ns())
            self._thread = None
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
        """The graphs that ran, on the host's clock, once it has stopped."""
        return self._steps

    # --- inside ------------------------------------------------------------------------------

    def _view(self) -> View:
        view, base, size = View(), c.c_uint64(), c.c_uint64()
        self.scheduler.value("engine_view", c.addressof(view), base, size)
        self._registered.append((base.value, size.value))
        view.ring = self.memory.address
        view.launch, view.tokens = self._launch.pointer, self._tokens.pointer
        return view

    def _tables(self) -> Tables:
        grid, limits = self._grid, self.config.limits
        decode = [self._execs[GraphShape(False, batch, 1)] for batch in grid.decode_batches]
        prefill = [
            self._execs.get(GraphShape(True, batch, tokens), 0)
            for batch in grid.prefill_batches
            for tokens in grid.prompt_tokens
        ]

        def index(buckets: tuple[int, ...], largest: int) -> list[int]:
            return [bisect_left(buckets, size) for size in range(largest + 1)]

        return Tables(
            decode,
            prefill,
            index(grid.decode_batches, limits.batch_max),
            index(grid.prefill_batches, limits.prefill_batch_max),
            index(grid.prompt_tokens, self.config.context_tokens_max),
            len(grid.prompt_tokens),
        )

    def _read_steps(self, ran: list[HostStep], prompts: list[int], offset_ns: int) -> list[RanStep]:
        """On one clock. Two clocks are compared to a microsecond: what comes first stays first."""
        steps, taken = [], 0
        for each in ran:
            start_ns = max(each.decided_ns, each.gpu_start_ns + offset_ns)
            end_ns = max(start_ns + 1, min(each.gpu_end_ns + offset_ns, each.seen_ns))
            requests = tuple(prompts[taken : taken + each.prompts])
            taken += each.prompts
            steps.append(
                RanStep(
                    decided_ns=each.decided_ns,
                    launched_ns=each.launched_ns,
                    start_ns=start_ns,
                    end_ns=end_ns,
                    seen_ns=each.seen_ns,
                    graph=each.graph,
                    count=each.count,
                    tokens=each.tokens,
                    requests=requests,
                )
            )
        return steps
