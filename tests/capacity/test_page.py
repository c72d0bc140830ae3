"""Bad plans: each is one clear line that names the key and what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from blink.model.errors import BadInput, ScenarioError
from blink.model.scenario.dump import resolved_toml
from blink.model.scenario.loader import load_page
from blink.plan import runner
from blink.plan.capacity.candidates import Builder, candidates_of
from blink.plan.capacity.page import Plan
from blink.plan.pages import is_plan
from tests.capacity.plans import answer_of, plan_of

SPECS = Path(__file__).resolve().parents[2] / "specs" / "capacity"
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"

CLOSED_LOOP = (
    "workload={ kind = 'closed_loop', clients = 2, requests = 9, "
    "lengths = { kind = 'constant', input_tokens = 1, output_tokens = 1 } }"
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["slo.ttft_ms={ p50 = 300, p99 = 200 }"], "p99 <= 200 contradicts p50 <= 300"),
        (["slo.e2e_ms=100"], "e2e_ms p99 <= 100 contradicts ttft_ms p99 <= 400"),
        (["slo.goodput_fraction=0.9", "slo.ttft_ms={ p50 = 3 }"], "plain numbers"),
        (["slo={ }"], "states no objective"),
        (["slo.ttft_ms=-1"], "slo.ttft_ms"),
        (["slo.ttft=200"], 'did you mean "ttft_ms"'),
        (["candidates.system=blink"], 'did you mean "systems"'),
        (['candidates.neighbours=["batch"]'], 'names "batch", which is not one of [neighbours]'),
        (['candidates.systems=["vlm"]'], 'did you mean "vllm"'),
        (["baseline=sglang"], "not one of candidates.systems"),
        (["demand.recorded=true"], "kind trace"),
        (["demand={ }"], "needs a rate"),
        (["search.seeds=0"], "at least 1"),
        ([CLOSED_LOOP], "no rate to search"),
    ],
)
def test_a_bad_page_is_refused_in_a_line(tmp_path: Path, settings: list[str], message: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        plan_of(tmp_path, *settings)
    assert message in str(raised.value)
    assert all(len(line) < 400 for line in str(raised.value).splitlines())


def test_a_trace_of_one_request_cannot_be_searched(tmp_path: Path) -> None:
    trace = tmp_path / "one.csv"
    trace.write_text(TRACE)
    with pytest.raises(BadInput, match="1 request after the slice: a load needs at least 20"):
        answer_of(tmp_path, f"workload.trace={trace}")


def test_a_page_survives_being_written_and_read(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "demand.rate=4.0", "placements.pinned={ pinned_cores = 6 }")
    again = tmp_path / "again.toml"
    again.write_text(resolved_toml(plan))
    assert load_page(again, [], Plan) == plan


def test_every_combination_is_a_candidate_once(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        'candidates.gpus=["H100", "H200"]',
        "candidates.replicas=[1, 2]",
        'candidates.fleets=[["H100", "H200"]]',
        'candidates.placements=["shared", "pinned"]',
        "placements.pinned={ pinned_cores = 6 }",
    )
    labels = [each.label for each in candidates_of(plan)]
    assert len(labels) == len(set(labels)) == 5 + 10  # Blink keeps nothing of a host
    assert "blink llama3-8b H100+H200" in labels
    assert "vllm llama3-8b 2xH200 pinned" in labels


@pytest.mark.parametrize("path", [path for path in SPECS.glob("*.toml") if is_plan(path)])
def test_every_shipped_plan_can_run(path: Path) -> None:
    builder = Builder(load_page(path, [], Plan))
    for each in candidates_of(builder.plan):
        builder.check(each)


def test_a_plan_is_no_scenario_and_says_so() -> None:
    path = SPECS / "quickstart.toml"
    with pytest.raises(BadInput, match=f"blink plan {path}"):
        runner.load(path, [])
