"""Change one thing, and the answer must move the way that physics says, or not at all."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from blink.model.interference import QUIET, Interference, Neighbour
from blink.model.metrics import Objectives, summarise
from blink.model.record import RunRecord
from tests.setups import NOISY, SYSTEMS, poisson, run, run_setup, varied

HOST_SYSTEMS = tuple(system for system in SYSTEMS if system != "blink")
NONE = Objectives()

# A change that moves every step a little also moves which step an arrival just misses. Over the
# requests here such shifts change a mean by up to this factor, whatever their direction.
SHIFT = 0.98


def figure(record: RunRecord, name: str, statistic: str) -> float:
    value = summarise(record, NONE)[name][statistic]
    assert isinstance(value, float)
    return value


@pytest.mark.parametrize("system", HOST_SYSTEMS)
def test_interference_never_helps(system: str) -> None:
    quiet = run(run_setup(system, workload=varied(80, 6.0)))
    noisy = run(run_setup(system, workload=varied(80, 6.0), noisy=True))
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        assert figure(noisy, name, "mean") >= figure(quiet, name, "mean") * SHIFT
    assert noisy.host_cpu_on_token_path_ns and quiet.host_cpu_on_token_path_ns
    assert noisy.host_cpu_on_token_path_ns > quiet.host_cpu_on_token_path_ns


def test_more_neighbours_never_help() -> None:
    means = []
    for threads in (0, 8, 24, 48, 90):
        neighbours = (Neighbour("pbzip2", threads),) if threads else ()
        setup = run_setup("vllm", interference=Interference(neighbours))
        means.append(figure(run(setup), "tpot_ms", "mean"))
    for fewer, more in pairwise(means):
        assert more >= fewer * SHIFT


def test_blink_does_not_notice_the_host() -> None:
    """HOST-SILENT: not one nanosecond of any request depends on the neighbours."""
    quiet, noisy = run(run_setup()), run(run_setup(noisy=True))
    assert np.array_equal(quiet.steps.delivered_ns, noisy.steps.delivered_ns)
    assert np.array_equal(quiet.requests.finish_ns, noisy.requests.finish_ns)
    assert quiet.host_cpu_on_token_path_ns == noisy.host_cpu_on_token_path_ns == 0


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_faster_gpu_never_slows_the_first_token(system: str) -> None:
    setup = run_setup(system, workload=varied(80, 8.0))
    gpu = setup.gpu
    faster = replace(
        gpu,
        memory_bandwidth_bytes_s=gpu.memory_bandwidth_bytes_s * 1.5,
        sustained_flops_16bit=gpu.sustained_flops_16bit * 1.5,
        dense_flops_16bit=gpu.dense_flops_16bit * 1.5,
    )
    slow, fast = run(setup), run(replace(setup, gpu=faster))
    assert figure(fast, "ttft_ms", "mean") <= figure(slow, "ttft_ms", "mean")
    assert figure(fast, "tpot_ms", "mean") <= figure(slow, "tpot_ms", "mean")


@pytest.mark.parametrize("system", ["blink", "vllm"])
def test_twice_the_load_never_raises_goodput_above_capacity(system: str) -> None:
    """Beyond saturation more load only queues: goodput under an objective falls, never rises."""
    objectives = Objectives(ttft_ms=1000.0)
    overload = run(run_setup(system, workload=poisson(400, 60.0, outputs=64)))
    doubled = run(run_setup(system, workload=poisson(400, 120.0, outputs=64)))
    capacity = summarise(overload, NONE)["throughput_req_s"]
    assert summarise(overload, objectives)["goodput_req_s"] <= capacity
    assert summarise(doubled, objectives)["goodput_req_s"] <= capacity * 1.02


def test_the_gpu_resident_scheduler_beats_the_same_engine_on_the_host() -> None:
    blink, host = run(run_setup()), run(run_setup("host_resident"))
    assert figure(blink, "tpot_ms", "mean") < figure(host, "tpot_ms", "mean")


def test_a_neighbour_on_other_cores_hurts_less_when_pinned_away_from() -> None:
    """Pinning removes the run queue; cache and memory are still shared."""
    shared = run(run_setup("vllm", interference=NOISY))
    pinned = run(run_setup("vllm", interference=replace(NOISY, pinned_cores=24)))
    quiet = run(run_setup("vllm", interference=QUIET))
    shared_ms, pinned_ms, quiet_ms = (
        figure(record, "tpot_ms", "mean") for record in (shared, pinned, quiet)
    )
    assert quiet_ms < pinned_ms <= shared_ms


@pytest.mark.parametrize("mode", ["fire_and_forget", "tail_chain", "auto"])
def test_a_smaller_window_only_adds_relaunches(mode: str) -> None:
    full = run(run_setup(launch_mode=mode))
    small = run(run_setup(launch_mode=mode, window_launches_max=10))
    assert figure(small, "tpot_ms", "mean") >= figure(full, "tpot_ms", "mean") * SHIFT
    if mode == "tail_chain":
        assert np.array_equal(small.steps.end_ns, full.steps.end_ns)
    else:
        assert small.counters["relaunches"] > full.counters["relaunches"]


def test_prefills_in_a_tail_chain_have_every_sm_and_a_fresh_window_after_them() -> None:
    resident = run(run_setup(workload=poisson(1, 1.0)))
    chained = run(run_setup(workload=poisson(1, 1.0), launch_mode="auto"))
    prefills = [int(each.steps.end_ns[0] - each.steps.start_ns[0]) for each in (resident, chained)]
    assert prefills[0] / prefills[1] == pytest.approx(1.055, rel=1e-3)
    assert (resident.counters["relaunches"], chained.counters["relaunches"]) == (0, 1)
    assert np.array_equal(np.diff(resident.steps.end_ns), np.diff(chained.steps.end_ns))
