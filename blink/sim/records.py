"""What the run of a server leaves: its record, with counters and energy."""

from __future__ import annotations

from typing import Final

from blink.model.calibrated_range import extrapolation
from blink.model.energy import wall_power_w
from blink.model.metrics import makespan_s
from blink.model.record import RunRecord
from blink.model.setup import RunSetup, graph_cache
from blink.model.step_table import MeasuredStepTime
from blink.ring_protocol.states import Outcome
from blink.sim.assembly import Replica

NAME: Final = "sim"


def record_of(
    setup: RunSetup, parts: Replica, commit: str, *, until_s: float | None = None
) -> RunRecord:
    """The record of one server whose run is over.

    ``until_s``: how long it draws power, by default until its own last request completed.
    """
    recorder = parts.recorder
    _count(setup, parts)
    record = RunRecord(
        label=setup.label,
        system=setup.system,
        condition=setup.condition,
        backend=NAME,
        seed=setup.seed,
        commit=commit,
        requests=recorder.request_table(),
        steps=recorder.step_table(),
        decode_ranges=recorder.decode_ranges(),
        counters=dict(sorted(recorder.counters.items())),
        energy_j=None,
        host_cpu_on_token_path_ns=_host_cpu_ns(parts),
        scenario=setup.scenario,
        marks=recorder.marks,
        step_tokens=recorder.step_tokens() if setup.speculation is not None else None,
    )
    seconds = makespan_s(record) if until_s is None else until_s
    record.energy_j = _energy_j(setup, parts, seconds)
    if setup.profile is not None:
        _flag_extrapolation(setup, parts, record)
    return record


def _flag_extrapolation(setup: RunSetup, parts: Replica, record: RunRecord) -> None:
    """Name the profile, count the steps that it does not vouch for, and say what they are."""
    timing, graphs = parts.engine.timing, graph_cache(setup)
    outside = len(record.steps)
    if setup.coverage is not None:
        prompts = record.requests.input_tokens
        outside, said = extrapolation(setup.coverage, record.steps, prompts)
    else:
        if isinstance(timing, MeasuredStepTime) and graphs is not None:
            outside = timing.extrapolated(record.steps, graphs.decode_batch)
        what = f"{outside} of {len(record.steps)} steps are of shapes that were not measured"
        said = [what] if outside else []
    record.assumptions["profile"] = setup.profile
    record.assumptions["extrapolated"] = said
    record.counters["steps_extrapolated"] = outside


def _host_cpu_ns(parts: Replica) -> int:
    """Host CPU time spent for tokens; on Blink no host process exists to spend any."""
    if parts.host is None or parts.api is None:
        return 0
    on_host = parts.host.plane.front_end == "api_server"
    return parts.host.noise.cpu_ns + (parts.api.noise.cpu_ns if on_host else 0)


def _count(setup: RunSetup, parts: Replica) -> None:
    """Counters at the end of a run, those that the invariants read among them."""
    count = parts.recorder.count
    kv = parts.engine.kv
    count("gpu_busy_ns", parts.engine.gpu_busy_ns)
    count("kv_blocks_total", kv.blocks_total)
    count("kv_blocks_leaked", kv.blocks_total - kv.blocks_free)
    count("preemptions", sum(parts.recorder.preemptions))
    if setup.kv_offload is not None:
        pool = parts.engine.pool
        count("kv_offload_blocks_left", pool.blocks_total - pool.blocks_free)
        count("kv_offload_refused", pool.refused)
    if kv.prefixes is not None:
        count("prefix_hit_tokens", kv.prefixes.hit_tokens)
        count("prefix_asked_tokens", kv.prefixes.asked_tokens)
        count("prefix_evicted_blocks", kv.prefixes.evicted * kv.prefixes.blocks_per_entry)
    if parts.gpu is not None and parts.dpu is not None:
        _count_ring(setup, parts)
    if parts.host is not None and parts.api is not None:
        count("host_engine_cpu_ns", parts.host.noise.cpu_ns)
        count("host_api_cpu_ns", parts.api.noise.cpu_ns)


def _count_ring(setup: RunSetup, parts: Replica) -> None:
    count = parts.recorder.count
    assert parts.gpu is not None and parts.dpu is not None
    window, reader = parts.gpu.window, parts.dpu.front_end.reader
    count("graph_fallbacks", parts.gpu.graphs.fallbacks)
    if setup.launch_mode != "tail_chain":
        count("window_launches_max", window.max_launches)
        count("launches", window.launches_total)
        count("relaunches", window.relaunches)
    count("dpu_busy_ns", parts.dpu.busy_ns)
    count("polls", reader.polls)
    count("polls_empty", reader.polls_empty)
    count("link_bytes", parts.dpu.transport.bytes_moved)
    count("link_ops", parts.dpu.transport.ops_posted)
    count("slots_not_empty", parts.dpu.slots_not_empty())
    recorder = parts.recorder
    completed = (int(Outcome.STOP), int(Outcome.LENGTH))
    missing = sum(
        abs(wanted - got)
        for wanted, got, outcome in zip(
            recorder.output_tokens, recorder.streamed_tokens, recorder.outcome, strict=True
        )
        if outcome in completed
    )
    count("tokens_not_streamed", missing)


def _energy_j(setup: RunSetup, parts: Replica, seconds: float) -> float | None:
    """Wall energy of the run: server, GPU and, for Blink, the DPU; neighbours' cores included."""
    if not seconds:
        return None
    own_cores = _host_cpu_ns(parts) / 1e9 / seconds
    neighbours = sum(each.threads for each in setup.interference.neighbours)
    power_w = wall_power_w(
        setup.gpu,
        setup.host,
        setup.dpu if parts.dpu is not None else None,
        gpu_busy=min(1.0, parts.engine.gpu_busy_ns / 1e9 / seconds),
        cores_busy=own_cores + neighbours,
        gpus=setup.parallel.gpus,
    )
    return power_w * seconds
