"""One run, resolved: names have become SKUs, defaults have become numbers.

A scenario may ask for several systems and conditions; each combination is one :class:`RunSetup`. It
is all that a backend needs, and where ``blink explain`` reads the origin of every constant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from blink.model.calibrated_range import Coverage
from blink.model.control_plane import ControlPlane
from blink.model.hardware import DpuSku, GpuSku, HostSku, LinkSku
from blink.model.interference import Interference
from blink.model.llm import LlmSku
from blink.model.offload import KvOffload
from blink.model.parallel import ONE_GPU, TensorParallel
from blink.model.policy import GraphCache, Limits
from blink.model.profile import Steps
from blink.model.speculation import Speculation
from blink.model.timing import EngineEfficiency, engine
from blink.model.workload import Workload

LaunchMode = Literal["fire_and_forget", "tail_chain", "auto"]
"""How the GPU-resident scheduler launches a graph; auto: decode steps fire-and-forget, so that it
scans meanwhile, prefills in a tail chain, so that they have every SM."""

Provider = Literal["null", "torch", "tensorrt"]
"""Which engine computes on a real GPU; null takes the twin's step time and computes nothing."""


@dataclass(frozen=True, slots=True)
class RingSetup:
    """Geometry of the ring: slots, and the longest prompt and output a slot holds, tokens."""

    slots: int = 4096
    prompt_tokens_max: int = 8192
    output_tokens_max: int = 8192


@dataclass(frozen=True, slots=True)
class FrontEndSetup:
    """The DPU's front end: intervals in ns, cores by role, requests that may wait for a slot."""

    poll_interval_min_ns: int = 5_000
    poll_interval_max_ns: int = 100_000
    slots_per_poll_max: int = 1024
    tokenizer_cores: int = 6
    streaming_cores: int = 7
    queue_max: int = 4096


@dataclass(frozen=True, slots=True)
class FaultSetup:
    """Faults of a run. ``extra_visibility_ns_max`` delays flags, uniformly, at random."""

    extra_visibility_ns_max: int = 0
    cancel_fraction: float = 0.0
    cancel_after_tokens_max: int = 0
    timeout_fraction: float = 0.0
    timeout_after_ns: int = 0


@dataclass(frozen=True, slots=True)
class RunSetup:
    """Everything that determines a run, but the seed's random streams.

    ``graph_cache``: the engine runs captured prefill graphs; without ``graph_table`` it has
    captured none but the maximal shape. ``provider`` and ``weights`` ("random", or a folder of
    safetensors) concern backends that compute; the twin knows step times only. ``profile`` names
    the hardware profile whose constants these are, ``steps`` its step times, if it has this run's.
    ``prefix_caching`` lets requests share the beginning of their prompts where the workload has
    hashes of them; without, a preempted sequence may find again what is left of its own blocks.
    ``efficiency`` replaces the catalogue's entry for the plane's engine; ``coverage`` is what a
    fitted profile says of this run.
    """

    label: str
    system: str
    condition: str
    seed: int
    workload: Workload
    llm: LlmSku
    gpu: GpuSku
    host: HostSku
    dpu: DpuSku
    link: LinkSku
    plane: ControlPlane
    interference: Interference
    limits: Limits
    kv_blocks_total: int
    kv_block_tokens: int = 16
    context_tokens_max: int = 1 << 24
    graph_cache: bool = True
    graph_table: bool = True
    prefix_caching: bool = False
    parallel: TensorParallel = ONE_GPU
    speculation: Speculation | None = None
    kv_offload: KvOffload | None = None
    launch_mode: LaunchMode = "fire_and_forget"
    window_launches_max: int = 120
    provider: Provider = "null"
    weights: str = "random"
    fast_forward: bool = True
    profile: str | None = None
    steps: Steps | None = None
    efficiency: EngineEfficiency | None = None
    coverage: Coverage | None = None
    ring: RingSetup = RingSetup()
    front_end: FrontEndSetup = FrontEndSetup()
    faults: FaultSetup = FaultSetup()
    scenario: dict[str, Any] = field(default_factory=dict)

    @property
    def shares_prefixes(self) -> bool:
        """Whether requests share KV blocks: caching is on, and the workload says who could."""
        return self.prefix_caching and self.workload.prefix_hashes is not None


RouterPolicy = Literal["round_robin", "least_loaded", "session_affine"]


@dataclass(frozen=True, slots=True)
class FleetSetup:
    """Replicas that share one workload behind a router.

    ``replicas`` may differ in everything but their workload and seed. round_robin: each in turn.
    least_loaded: the one with the fewest open requests for its ``weights`` (by default all 1), the
    first of several. session_affine: each request is one of ``sessions`` sessions at random, each
    session one replica's, by a hash, in proportion to ``weights``.
    """

    replicas: tuple[RunSetup, ...]
    router: RouterPolicy = "least_loaded"
    sessions: int = 1000
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        assert self.replicas and self.sessions >= 1
        assert len(self.weights) in (0, len(self.replicas)) and all(w > 0 for w in self.weights)
        first = self.replicas[0]
        assert all(each.workload is first.workload for each in self.replicas)
        assert all(each.seed == first.seed for each in self.replicas)


def graph_cache(setup: RunSetup) -> GraphCache | None:
    """The policy's view of the captured graphs; None for an engine that captures no prefill."""
    if not setup.graph_cache:
        return None
    limits = setup.limits
    if not setup.graph_table:
        return GraphCache(limits.batch_max, limits.prefill_tokens_max, (), ())
    return GraphCache(limits.batch_max, limits.prefill_tokens_max)


def engine_efficiency(setup: RunSetup) -> EngineEfficiency:
    """What the run's engine gets out of its GPU: as fitted, or as the catalogue has it."""
    return setup.efficiency or engine(setup.plane.engine)
