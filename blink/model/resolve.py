"""From a scenario to runs: names become SKUs, ``None`` becomes a default, files become arrays."""

from __future__ import annotations

from typing import Any

from blink.model import control_plane, fitted, hardware, llm, profile, timing
from blink.model.calibration import calibrate
from blink.model.control_plane import ControlPlane
from blink.model.errors import BadInput
from blink.model.features import check_features, offload_of, speculation_of
from blink.model.hardware import DpuSku, GpuSku
from blink.model.interference import QUIET, Interference, Neighbour
from blink.model.llm import LlmSku
from blink.model.parallel import TensorParallel
from blink.model.policy import GraphCache, Limits
from blink.model.scenario import Cancel, ClientTimeout, DelayedVisibility, Scenario
from blink.model.setup import FaultSetup, FrontEndSetup, RingSetup, RunSetup
from blink.model.speculation import Speculation
from blink.model.workload import Workload

NS_PER_MS = 1_000_000
DPU_CORES_FIXED = 2
"""One core submits and one polls (`sim.entities.dpu`); the others tokenize and stream."""
GRAPH_BYTES = 2_500_000
"""One captured graph takes 2-3 MB (paper sec 4.2, graph.size)."""


def resolve(
    scenario: Scenario,
    workload: Workload,
    *,
    system: str,
    condition: str,
    label: str,
) -> RunSetup:
    """Return the run of one ``system`` in one ``condition`` of ``scenario``.

    Raises UnknownName for a name that no catalogue has, ModelDoesNotFit for a model that leaves no
    room for a KV cache, BadInput for more cores or cache ways than the hardware has.
    """
    engine = scenario.engine
    model = llm.lookup(scenario.model)
    gpu = hardware.gpu(scenario.hardware.gpu)
    plane = control_plane.profile(system)
    plane = plane.with_overrides(dict(scenario.control_plane.get(system, {})))  # type: ignore[call-overload]
    if plane.processes == 0 and plane.scheduling != "inline_prefill":
        raise BadInput(f"control_plane.{system}: a scheduler on the GPU prefills inline only")
    limits = _limits(scenario, plane)
    dpu = hardware.dpu(scenario.hardware.dpu)
    _check_cores(scenario, dpu)
    inline = plane.scheduling == "inline_prefill"
    parallel = TensorParallel(engine.tensor_parallel)
    parallel.check(model)
    check_features(scenario, plane, workload)
    speculation = speculation_of(scenario, model, parallel)
    setup = RunSetup(
        label=label,
        system=system,
        condition=condition,
        seed=scenario.seed,
        workload=workload,
        llm=model,
        gpu=gpu,
        host=hardware.host(scenario.hardware.host),
        dpu=dpu,
        link=hardware.link(scenario.hardware.link),
        plane=plane,
        interference=_interference(scenario) if condition == "interfered" else QUIET,
        limits=limits,
        kv_blocks_total=_kv_blocks(scenario, gpu, model, plane, limits, parallel, speculation),
        kv_block_tokens=engine.kv_block_tokens,
        context_tokens_max=engine.context_tokens_max,
        graph_cache=inline,
        graph_table=engine.graph_cache,
        prefix_caching=engine.prefix_caching,
        parallel=parallel,
        speculation=speculation,
        kv_offload=offload_of(scenario, gpu, model, parallel, speculation),
        launch_mode=engine.launch_mode,
        window_launches_max=engine.window_launches_max,
        provider=engine.provider,
        weights=engine.weights,
        fast_forward=engine.fast_forward,
        ring=RingSetup(**scenario.ring.model_dump()),
        front_end=FrontEndSetup(**scenario.front_end.model_dump()),
        faults=_faults(scenario),
        scenario=scenario.model_dump(mode="json", by_alias=True),
    )
    name = scenario.hardware.profile
    if name and parallel.gpus > 1:
        raise BadInput(
            f"engine.tensor_parallel = {parallel.gpus}: hardware.profile was measured on one GPU: "
            "leave one of them out"
        )
    return _with_profile(setup, name) if name else setup


def _with_profile(setup: RunSetup, name: str) -> RunSetup:
    """The run under a profile, whichever kind it is: one of a machine, or one that was fitted."""
    found = fitted.find(name)
    return fitted.apply(setup, found) if found else calibrate(setup, profile.lookup(name))


def _kv_blocks(
    scenario: Scenario,
    gpu: GpuSku,
    model: LlmSku,
    plane: ControlPlane,
    limits: Limits,
    parallel: TensorParallel,
    speculation: Speculation | None,
) -> int:
    """The scenario's blocks, or those that memory allows."""
    engine = scenario.engine
    if engine.kv_blocks is not None:
        return engine.kv_blocks
    inline = plane.scheduling == "inline_prefill"
    return timing.kv_blocks_total(
        gpu,
        model,
        engine.kv_block_tokens,
        engine.memory_utilization,
        graph_cache_bytes=_graph_cache_bytes(limits) if inline else 0,
        prefill_tokens_max=limits.prefill_tokens_max,
        reserved_bytes=timing.engine(plane.engine).reserved_bytes,
        parallel=parallel,
        draft=speculation.draft if speculation else None,
    )


def _check_cores(scenario: Scenario, dpu: DpuSku) -> None:
    front_end = scenario.front_end
    wanted = front_end.tokenizer_cores + front_end.streaming_cores + DPU_CORES_FIXED
    if wanted > dpu.cores:
        raise BadInput(
            f"front_end.tokenizer_cores and streaming_cores: with {DPU_CORES_FIXED} to submit and "
            f"to poll they need {wanted} cores, {dpu.name} has {dpu.cores}"
        )
    host, section = hardware.host(scenario.hardware.host), scenario.interference
    if section.pinned_cores is not None and section.pinned_cores > host.threads:
        raise BadInput(
            f"interference.pinned_cores = {section.pinned_cores}: {host.name} has "
            f"{host.threads} hardware threads"
        )
    if section.llc_ways is not None and section.llc_ways > host.llc_ways:
        raise BadInput(
            f"interference.llc_ways = {section.llc_ways}: {host.name} has {host.llc_ways} ways"
        )


def _limits(scenario: Scenario, plane: ControlPlane) -> Limits:
    engine = scenario.engine
    batch_max = engine.batch_max or plane.batch_max
    tokens_max = engine.prefill_tokens_max or plane.prefill_tokens_max
    chunk = engine.prefill_chunk_tokens
    if chunk is not None and plane.scheduling == "inline_prefill":
        tokens_max = min(tokens_max, chunk)  # of short prompts together, too
    return Limits(
        batch_max=batch_max,
        prefill_batch_max=min(engine.prefill_batch_max, batch_max),
        prefill_tokens_max=tokens_max,
        chunk_tokens=chunk,
    )


def _graph_cache_bytes(limits: Limits) -> int:
    return GraphCache(limits.batch_max, limits.prefill_tokens_max).graphs * GRAPH_BYTES


def _interference(scenario: Scenario) -> Interference:
    section = scenario.interference
    return Interference(
        neighbours=tuple(Neighbour(each.kind, each.threads) for each in section.neighbours),
        pinned_cores=section.pinned_cores,
        llc_ways=section.llc_ways,
        huge_pages=section.huge_pages,
    )


def _faults(scenario: Scenario) -> FaultSetup:
    """Fold the list of faults into what a run needs; the last of a kind counts."""
    values: dict[str, Any] = {}
    for fault in scenario.faults:
        if isinstance(fault, DelayedVisibility):
            values["extra_visibility_ns_max"] = fault.extra_ns_max
        elif isinstance(fault, Cancel):
            values["cancel_fraction"] = fault.fraction
            values["cancel_after_tokens_max"] = fault.after_tokens_max
        elif isinstance(fault, ClientTimeout):
            values["timeout_fraction"] = fault.fraction
            values["timeout_after_ns"] = round(fault.after_ms * NS_PER_MS)
    return FaultSetup(**values)
