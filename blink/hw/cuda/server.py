"""What serves a run on metal: a scheduler with its engine, its ring and a way to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from blink.hw.cuda.clock import gpu_offset_ns
from blink.hw.cuda.graphs import Progress
from blink.hw.cuda.host_resident import HostResident
from blink.hw.cuda.memory import CudaTransport, GpuMemory
from blink.hw.cuda.null_engine import NullEngine, token_of
from blink.hw.cuda.runtime import CudaDevice, call, libraries
from blink.hw.cuda.scheduler import FIRE_AND_FORGET, TAIL_CHAIN, GpuConfig, GpuScheduler
from blink.hw.engine.llama import open_engine
from blink.hw.engine.llama.shapes import SHAPES
from blink.hw.engine.port import Engine, GraphShape
from blink.hw.engine.tensorrt import TensorRtEngine
from blink.hw.recording import RanStep
from blink.model.errors import BadInput, UnknownName
from blink.model.llm import lookup
from blink.model.policy import GraphCache
from blink.model.scheduler import DECODE_GRAPH, PREFILL_GRAPH
from blink.model.setup import RunSetup, engine_efficiency
from blink.model.timing import StepTime
from blink.ring_protocol.constants import HEADER_BYTES, NO_TOKEN, SLOT_METADATA_BYTES
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.loopback import LoopbackTransport
from blink.ring_protocol.ports import Transport
from blink.ring_protocol.states import State

GATHER_SCATTER_NS: Final = 4_000
"""What our own nodes add to a graph: a null engine's step is shorter by it."""

MODES: Final = {
    "fire_and_forget": {DECODE_GRAPH: FIRE_AND_FORGET, PREFILL_GRAPH: FIRE_AND_FORGET},
    "tail_chain": {DECODE_GRAPH: TAIL_CHAIN, PREFILL_GRAPH: TAIL_CHAIN},
    "auto": {DECODE_GRAPH: FIRE_AND_FORGET, PREFILL_GRAPH: TAIL_CHAIN},
}


class Server(Protocol):
    """See the module. Times are of ``time.perf_counter_ns``."""

    geometry: Geometry
    transport: Transport

    def start(self) -> None: ...

    def check(self) -> object: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def steps(self) -> list[RanStep]: ...

    def counters(self) -> dict[str, int]: ...

    def stop_token(self, request: int, context: int) -> int: ...

    def describe(self) -> dict[str, Any]: ...


def server_of(setup: RunSetup, progress: Progress) -> Server:
    """The server that ``setup`` asks for; ``progress`` hears of its graphs.

    Raises BackendUnavailable, BadInput, ModelDoesNotFit.
    """
    ring = setup.ring
    geometry = Geometry(ring.slots, ring.prompt_tokens_max, ring.output_tokens_max)
    config = GpuConfig(
        geometry,
        setup.limits,
        setup.kv_blocks_total,
        setup.kv_block_tokens,
        GraphCache(setup.limits.batch_max, ring.prompt_tokens_max),
        setup.window_launches_max,
        MODES[setup.launch_mode],
    )
    engine = _engine_of(setup)
    if setup.system == "host_resident":
        return _HostServer(config, engine, progress)
    return _GpuServer(config, engine, progress)


def _engine_of(setup: RunSetup) -> Engine:
    if setup.provider == "null":
        return NullEngine(null_times(setup))
    if setup.provider == "torch":
        weights = None if setup.weights == "random" else setup.weights
        engine = open_engine(_shape_of(setup.llm.name), weights=weights)
        context = setup.ring.prompt_tokens_max + setup.ring.output_tokens_max
        longest = engine.config.context_max
        if context > longest:
            raise BadInput(
                f"a slot of the ring holds {context} tokens of context, {setup.llm.name} "
                f"computes {longest}: lower ring.prompt_tokens_max or ring.output_tokens_max"
            )
        return engine
    if setup.weights == "random":
        raise BadInput("engine 'tensorrt' runs a plan: engine.weights names its folder")
    return TensorRtEngine(Path(setup.weights), CudaDevice())


def _shape_of(model: str) -> str:
    """The torch engine's name of a model of the catalogue."""
    for shape in SHAPES:
        with suppress(UnknownName):
            if lookup(shape).name == model:
                return shape
    raise BadInput(
        f"the torch engine has no shape of the model {model!r}; it has {', '.join(sorted(SHAPES))}"
    )


def null_times(setup: RunSetup) -> Callable[[GraphShape], tuple[int, float, float]]:
    """The twin's step time of each shape: ns, ns a token of context, ns a pair of a prompt."""
    timing = StepTime(setup.llm, setup.gpu, engine_efficiency(setup))
    far = 1_000_000

    def of(shape: GraphShape) -> tuple[int, float, float]:
        if shape.prefill:
            fixed = timing.prefill_ns(shape.batch * shape.tokens, 0)
            pair = (timing.prefill_ns(shape.batch * shape.tokens, far) - fixed) / far
            return max(0, fixed - GATHER_SCATTER_NS), 0.0, pair
        fixed = int(timing.decode_ns(shape.batch, 0, 1)[0])
        slope = (int(timing.decode_ns(shape.batch, far, 1)[0]) - fixed) / far
        return max(0, fixed - GATHER_SCATTER_NS), slope, 0.0

    return of


class _GpuServer:
    """The scheduler on the GPU."""

    def __init__(self, config: GpuConfig, engine: Engine, progress: Progress) -> None:
        self.geometry = config.geometry
        self._engine = engine
        self._scheduler = GpuScheduler(config, engine, progress)
        self._pointer = self._scheduler.ring.pointer
        self._copies = CudaTransport(self._pointer, self.geometry.total_bytes)
        self.transport: Transport = self._copies
        self.start, self.check = self._scheduler.start, self._scheduler.check
        self._steps: list[RanStep] = []

    def stop(self) -> None:
        self._scheduler.stop()
        self._scheduler.check()
        self._steps = self._read_steps(gpu_offset_ns())

    def close(self) -> None:
        self._copies.close()
        self._scheduler.close()

    def steps(self) -> list[RanStep]:
        return self._steps

    def counters(self) -> dict[str, int]:
        report = self._scheduler.report()
        memory = GpuMemory(self._pointer, self.geometry)
        metadata = memory.read(HEADER_BYTES, self.geometry.metadata_bytes)
        memory.close()
        states = metadata[::SLOT_METADATA_BYTES]
        config = self._scheduler.config
        return {
            "window_launches_max": config.window,
            "launches": report.launches_total,
            "relaunches": report.relaunches,
            "executions": report.executions,
            "kv_blocks_total": config.blocks_total,
            "kv_blocks_leaked": config.blocks_total - report.blocks_free,
            "slots_not_empty": len(states) - states.count(State.EMPTY),
            "graph_memory_bytes": self._scheduler.graphs.bytes_taken,
        }

    def stop_token(self, request: int, context: int) -> int:
        return token_of(request, context) if self._engine.name == "null" else NO_TOKEN

    def describe(self) -> dict[str, Any]:
        return self._engine.describe()

    def _read_steps(self, offset_ns: int) -> list[RanStep]:
        ran = self._scheduler.steps()
        forgotten = self._scheduler.report().steps - len(ran)  # a log has an end
        requests: dict[int, list[int]] = {}
        for prefill in self._scheduler.prefills():
            requests.setdefault(prefill.step, []).append(prefill.request_id)
        return [
            RanStep(
                decided_ns=step.decided_ns + offset_ns,
                launched_ns=step.launched_ns + offset_ns,
                start_ns=step.start_ns + offset_ns,
                end_ns=step.end_ns + offset_ns,
                seen_ns=step.seen_ns + offset_ns,
                graph=step.graph,
                count=step.count,
                tokens=step.tokens,
                requests=tuple(requests.get(row, ())),
            )
            for row, step in enumerate(ran, forgotten)
        ]


class _HostServer:
    """The same scheduler on the host."""

    def __init__(self, config: GpuConfig, engine: Engine, progress: Progress) -> None:
        self.geometry = config.geometry
        self._engine = engine
        self._resident = HostResident(config, engine, progress)
        self.transport: Transport = LoopbackTransport(self._resident.memory)
        self.start, self.check = self._resident.start, self._resident.check
        self.stop, self.close = self._resident.stop, self._resident.close
        self.steps = self._resident.steps

    def counters(self) -> dict[str, int]:
        config = self._resident.config
        free = self._resident.scheduler.blocks_free()
        return {
            "kv_blocks_total": config.blocks_total,
            "kv_blocks_leaked": config.blocks_total - free,
        }

    def stop_token(self, request: int, context: int) -> int:
        return token_of(request, context) if self._engine.name == "null" else NO_TOKEN

    def describe(self) -> dict[str, Any]:
        return self._engine.describe()


def metal() -> dict[str, Any]:
    """Date, GPU, driver and CUDA version, and the clocks now, MHz."""
    runtime = libraries()[2]
    properties = call("cudaGetDeviceProperties", 0)
    driver = call("cudaDriverGetVersion")
    attributes = runtime.cudaDeviceAttr
    clock_khz = call("cudaDeviceGetAttribute", attributes.cudaDevAttrClockRate, 0)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": properties.name.decode().rstrip("\0"),
        "driver": _driver_version(),
        "cuda": f"{driver // 1000}.{driver % 1000 // 10}",
        "sm_clock_max_mhz": clock_khz // 1000,
        "sms": int(properties.multiProcessorCount),
        "memory_bytes": int(properties.totalGlobalMem),
    }


def _driver_version() -> str:
    """As the kernel module says, such as 580.159.04; "unknown" where it does not."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    words = text.splitlines()[0].split()
    versions = [word for word in words if "." in word and word[0].isdigit()]
    return versions[0] if versions else "unknown"
