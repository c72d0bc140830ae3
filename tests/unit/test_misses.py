"""Each request that missed is named, with the objective that binds and what took the time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blink import backends
from blink.model.metrics import Objectives, meets_objectives
from blink.plan import runner
from blink.plan.critical_path import (
    CONTROL,
    OTHERS_PROMPTS,
    PREEMPTED,
    QUEUE,
    STEP,
    critical_path,
)
from blink.plan.misses import COMPLETION, Miss, misses, reason, tally
from blink.plan.runner import Result

SPECS = Path(__file__).parents[2] / "specs"


def results(spec: str, *settings: str) -> list[Result]:
    scenario = runner.load(SPECS / spec, settings)
    return list(runner.execute(runner.plan_runs(scenario), backends.require("sim")))


def why(result: Result, miss: Miss) -> str:
    setup = result.planned.setup
    return reason(miss, critical_path(result.record, setup), setup)


def missed(result: Result, objectives: Objectives) -> list[Miss]:
    setup = result.planned.setup
    return misses(critical_path(result.record, setup), setup, objectives)


@pytest.mark.parametrize(
    "objectives",
    [
        Objectives(ttft_ms=60),
        Objectives(tpot_ms=9),
        Objectives(itl_ms=50),
        Objectives(e2e_ms=900),
        Objectives(ttft_ms=60, tpot_ms=9, itl_ms=50, e2e_ms=900),
    ],
)
def test_exactly_the_requests_that_are_not_goodput(objectives: Objectives) -> None:
    for result in results("demo.toml", "workload.requests=60", "systems=blink,vllm"):
        found = missed(result, objectives)
        wanted = np.flatnonzero(~meets_objectives(result.record, objectives)).tolist()
        assert sorted(miss.request for miss in found) == wanted
        assert sum(count for *_, count in tally(found)) == len(wanted)
        assert [m.factor for m in found] == sorted((m.factor for m in found), reverse=True)
        for miss in found:
            assert miss.value_ms is not None
            assert miss.limit_ms is not None
            assert miss.value_ms > miss.limit_ms
            assert 0 < miss.part_ms <= miss.value_ms * 1.0001


def test_without_objectives_nobody_misses() -> None:
    [result] = results("smoke/one_request.toml", "systems=blink")
    assert missed(result, Objectives()) == []


def test_the_binding_objective_is_exceeded_by_the_largest_factor() -> None:
    [result] = results("smoke/one_request.toml", "systems=blink")
    [ttft] = missed(result, Objectives(ttft_ms=1, tpot_ms=5))
    assert ttft.objective == "TTFT"
    [tpot] = missed(result, Objectives(ttft_ms=6, tpot_ms=0.5))
    assert tpot.objective == "TPOT"


def test_a_request_alone_can_only_blame_its_own_steps() -> None:
    [result] = results("smoke/one_request.toml", "systems=blink")
    [miss] = missed(result, Objectives(ttft_ms=3))
    assert miss.part == STEP
    assert "its own prompt" in why(result, miss)


def test_neighbours_are_seen_in_the_host() -> None:
    quiet, noisy = results("demo.toml", "systems=sglang", "workload.requests=120")
    assert missed(quiet, Objectives(tpot_ms=25)) == []
    found = missed(noisy, Objectives(tpot_ms=25))
    assert found
    parts = [miss.part for miss in found]
    assert max(set(parts), key=parts.count) == CONTROL
    assert any("the host kept the GPU waiting" in why(noisy, miss) for miss in found)


def test_a_queue_says_behind_what() -> None:
    load = ("sweep={}", "systems=blink", "workload.rate=60", "workload.requests=400")
    [result] = results("capacity/load.toml", *load)
    found = [miss for miss in missed(result, Objectives(ttft_ms=500)) if miss.part == QUEUE]
    assert found
    table = result.record.requests
    for miss in found:
        since, until = table.submitted_ns[miss.request], table.scheduled_ns[miss.request]
        ahead = (table.submitted_ns < since) & (table.scheduled_ns > since)
        assert f"behind {int(ahead.sum()):,} request" in why(result, miss)
        assert miss.part_ms <= (until - since) / 1e6 + 0.001
    assert "the batch was full" in why(result, found[0])


def test_prompts_of_others_and_lost_caches_are_named() -> None:
    blink, _ = results("faults/kv_pressure.toml", "workload.requests=40")
    gaps = missed(blink, Objectives(itl_ms=100))
    assert any(miss.part == PREEMPTED and "preempted" in why(blink, miss) for miss in gaps)
    [burst, _] = results("demo.toml", "systems=blink", "workload.requests=60")
    assert {miss.part for miss in missed(burst, Objectives(itl_ms=50))} == {OTHERS_PROMPTS}


def test_whoever_did_not_finish_is_told_of_first() -> None:
    for result in results("faults/cancel_storm.toml", "workload.requests=40"):
        found = missed(result, Objectives(ttft_ms=10_000))
        left = [miss for miss in found if miss.objective == COMPLETION]
        assert left
        assert found[: len(left)] == left
        assert all(
            "went away" in why(result, miss) or "gave up" in why(result, miss) for miss in left
        )
