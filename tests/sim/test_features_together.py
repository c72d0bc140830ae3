"""All features at once, in every system, from a page; and what the GPU backend says of each."""

from __future__ import annotations

from typing import Any

import pytest

from blink import backends
from blink.hw.backend import _check
from blink.model.errors import BadInput
from blink.model.scenario import parse_scenario
from blink.model.setup import RunSetup
from blink.plan.explain import explanation
from blink.plan.runner import execute, plan_runs
from blink.testing.invariants import violations

SYSTEMS = ["blink", "host_resident", "trtllm", "vllm", "vllm-0.13", "sglang"]
ALL: dict[str, Any] = {
    "engine": {
        "tensor_parallel": 2,
        "prefill_chunk_tokens": 512,
        "prefix_caching": True,
        "kv_offload_gb": 1.0,
        "kv_blocks": 500,
    },
    "speculation": {"draft_tokens": 3, "acceptance": 0.7, "draft_model": "llama-3.2-1b"},
}


def page(**changes: Any) -> Any:
    return parse_scenario(
        {
            "schema": 1,
            "title": "t",
            "question": "q?",
            "systems": SYSTEMS,
            "conditions": ["isolated", "interfered"],
            "model": "llama3-8b",
            "workload": {
                "kind": "poisson",
                "rate": 20.0,
                "requests": 40,
                "lengths": {"kind": "constant", "input_tokens": 600, "output_tokens": 200},
                "shared_prefix": {"tokens": 512, "count": 2},
            },
            **changes,
        }
    )


def test_all_together_keep_every_invariant() -> None:
    preempted = 0
    for result in execute(plan_runs(page(**ALL)), backends.require("sim")):
        assert violations(result.record) == []
        assert result.summary["completed"] == 40
        counters = result.record.counters
        assert counters["prefix_hit_tokens"] > 0 < counters["draft_tokens_kept"]
        preempted += counters["kv_offload_blocks_in"]
        if result.record.system == "blink":
            assert result.record.host_cpu_on_token_path_ns == 0
    assert preempted > 0, "the test must preempt to mean anything"


def test_none_is_on_by_default() -> None:
    for planned in plan_runs(page()):
        setup = planned.setup
        assert setup.parallel.gpus == 1 and not setup.shares_prefixes
        assert (setup.limits.chunk_tokens, setup.speculation, setup.kv_offload) == (None,) * 3


def test_what_is_used_says_where_its_constants_come_from() -> None:
    without = explanation(page(), plan_runs(page()))["constants"]
    found = explanation(page(**ALL), plan_runs(page(**ALL)))["constants"]
    assert found.keys() - without.keys() == {"feature prefix_caching", "feature kv_offload"}
    for constants in found.values():
        assert all(len(each["source"]) > 6 for each in constants.values())


def blink(**changes: Any) -> RunSetup:
    return plan_runs(page(systems=["blink"], **changes))[0].setup


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": {"tensor_parallel": 2}}, "engine.tensor_parallel = 2"),
        ({"engine": {"prefix_caching": True}}, "engine.prefix_caching"),
        ({"engine": {"prefill_chunk_tokens": 512}}, "engine.prefill_chunk_tokens"),
        ({"engine": {"kv_offload_gb": 1.0}}, "engine.kv_offload_gb"),
        ({"speculation": {"draft_tokens": 2, "acceptance": 0.5}}, "speculation.draft_tokens"),
    ],
)
def test_the_gpu_backend_refuses_what_only_the_twin_has(
    changes: dict[str, Any], message: str
) -> None:
    _check(blink())
    with pytest.raises(BadInput, match=message):
        _check(blink(**changes))


def test_a_profile_of_one_gpu_is_not_stretched_over_two() -> None:
    machine = {"hardware": {"gpu": "h200", "profile": "h200_torch"}}
    with pytest.raises(BadInput, match="measured on one GPU"):
        blink(engine={"tensor_parallel": 2}, **machine)
