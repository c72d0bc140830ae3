"""Whole answers of small plans: what they say follows from the runs, and repeats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blink.cli import main
from blink.plan.capacity.answer import answer
from blink.plan.capacity.candidates import Builder, Candidate
from blink.plan.capacity.measure import failure, measure
from blink.plan.executor import execute_jobs
from blink.sim.fleet import run_fleet
from blink.testing.invariants import violations
from tests.capacity.plans import TEXT, answer_of, plan_of
from tests.pages import PageReader

FLEET = [
    "demand.rate=40.0",
    "prices={ gpu_hour = { H100 = 2.0 }, host_core_hour = 0.0, dpu_hour = 0.5 }",
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return answer_of(tmp_path_factory.mktemp("plan"), *FLEET)


def test_each_largest_load_holds_and_the_next_does_not(
    tmp_path: Path, found: dict[str, Any]
) -> None:
    builder = Builder(plan_of(tmp_path))
    for row in found["candidates"]:
        candidate = Candidate(row["system"], "llama3-8b", ("H100",), "none", "shared", "plain")
        for seed, load in enumerate(row["capacity_by_seed"]):
            jobs = [builder.job(candidate, each, seed) for each in (load, load * 1.5)]
            results = execute_jobs(jobs, measure=measure, workers=1)
            assert failure(results[0], builder.plan.slo) is None
            assert failure(results[1], builder.plan.slo) is not None


def test_the_binding_objective_is_named_with_the_request_that_broke_it(
    found: dict[str, Any],
) -> None:
    for row in found["candidates"]:
        binding = row["binding"]
        assert binding["value"] > binding["limit"]
        who = binding["request"]
        parts = sum(who[f"{name}_ms"] for name in ("front_end", "waiting", "prefill", "decode"))
        assert parts > 0 and f"request {who['request']}," in row["binding_request"]


def test_a_fleet_is_sized_by_whole_runs_and_billed(found: dict[str, Any]) -> None:
    for row in found["candidates"]:
        fleet = row["fleet"]
        replicas = fleet["replicas"]
        assert fleet["tried"][str(replicas)] is True
        assert replicas == 1 or fleet["tried"].get(str(replicas - 1)) is False
        dpus = replicas if row["system"] == "blink" else 0
        assert (fleet["gpus"], fleet["dpus"]) == (replicas, dpus)
        assert fleet["cost_per_hour"] == pytest.approx(2.0 * replicas + 0.5 * dpus)
        expected = fleet["cost_per_hour"] / (fleet["output_tok_s"] * 3600) * 1e6
        assert fleet["cost_per_mtok"] == pytest.approx(expected)


def test_the_pair_is_compared_replication_by_replication(found: dict[str, Any]) -> None:
    [pair] = found["comparisons"]
    blink, vllm = found["candidates"]
    ratios = [
        a / b for a, b in zip(blink["capacity_by_seed"], vllm["capacity_by_seed"], strict=True)
    ]
    assert pair["capacity_ratio"]["mean"] == pytest.approx(sum(ratios) / len(ratios))
    assert pair["saved"]["gpus"] == vllm["fleet"]["gpus"] - blink["fleet"]["gpus"]


def test_the_same_plan_has_the_same_answer_on_two_cores_and_from_the_cache(
    tmp_path: Path, found: dict[str, Any]
) -> None:
    plan = plan_of(tmp_path, *FLEET)
    again = [answer(plan, workers=2, cache=tmp_path / "cache") for _ in range(2)]
    assert json.dumps(again[0]) == json.dumps(again[1]) == json.dumps(found)


def test_every_candidate_has_the_same_requests_at_the_same_load(tmp_path: Path) -> None:
    builder = Builder(plan_of(tmp_path))
    jobs = [
        builder.job(Candidate(system, "llama3-8b", ("H100",), "none", "shared", "plain"), 5.0, 1)
        for system in ("blink", "vllm")
    ]
    one, other = (job.setup.replicas[0].workload for job in jobs)  # type: ignore[union-attr]
    assert (one.arrival_ns == other.arrival_ns).all()


def test_probes_break_no_invariant(tmp_path: Path) -> None:
    builder = Builder(plan_of(tmp_path))
    candidate = Candidate("blink", "llama3-8b", ("H100", "H200"), "none", "shared", "plain")
    job = builder.job(candidate, 60.0, 0)
    record = run_fleet(job.setup, "", lambda ended: None)  # type: ignore[arg-type]
    assert [violations(each) for each in record.records] == [[], []]
    assert len(record.members[1]) > len(record.members[0])  # it is the faster one


def test_what_no_load_meets_is_infeasible_with_its_reason(tmp_path: Path) -> None:
    document = answer_of(tmp_path, "slo.ttft_ms=5.0")
    for row in document["candidates"]:
        assert row["capacity_req_s"] is None
        assert "TTFT p99" in row["infeasible"] and "> 5 ms (request" in row["infeasible"]
    assert document["comparisons"][0]["capacity_ratio"] is None


def test_the_host_load_at_which_an_slo_is_lost(tmp_path: Path) -> None:
    document = answer_of(
        tmp_path,
        "sensitivity={ key = 'interference.neighbours.0.threads', values = [1, 200], rate = 6.0, "
        "neighbours = [{ kind = 'pbzip2', threads = 1 }] }",
        "slo.tpot_ms=16",
        "placements.pinned={ pinned_cores = 6 }",
        'candidates.placements=["pinned"]',
    )
    blink, vllm = document["sensitivity"]
    assert blink["lost"] is None
    assert (vllm["lost"]["after"], vllm["lost"]["at"]) == (1, 200)
    assert "TPOT p99" in vllm["lost"]["because"]


def test_the_papers_rule_and_goodput_are_slos_too(tmp_path: Path) -> None:
    rule = answer_of(tmp_path, "slo={ served_fraction = 0.95 }")
    good = answer_of(tmp_path, "slo.goodput_fraction=0.9")
    strict = answer_of(tmp_path, "slo.goodput_fraction=1.0")
    for loose, tight in zip(good["candidates"], strict["candidates"], strict=True):
        assert loose["capacity_req_s"]["mean"] >= tight["capacity_req_s"]["mean"]
    for row in rule["candidates"]:
        assert row["binding"]["metric"] in ("served_fraction", "trend")


# --- the command -----------------------------------------------------------------------------


def command(tmp_path: Path, *words: str, text: str = TEXT) -> int:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return main(["plan", str(path), "--workers", "1", "--no-cache", *words])


def test_it_writes_the_answer_and_prints_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for _ in range(2):  # an earlier answer may be replaced
        assert command(tmp_path, "--out", str(out), "--set", "demand.rate=20.0") == 0
    printed = capsys.readouterr().out
    assert "How many?" in printed and "TTFT p99 ≤ 400 ms" in printed and "for 20 req/s" in printed
    document = json.loads((out / "plan.json").read_text())
    assert [row["system"] for row in document["candidates"]] == ["blink", "vllm"]
    page = PageReader((out / "report.html").read_text())
    assert page.problems == []
    assert "How many?" in page.text and "What is saved" in page.text
    lines = (out / "candidates.csv").read_text().splitlines()
    assert len(lines) == 3 and lines[0].startswith("candidate,capacity_req_s")
    assert (out / "plan.toml").read_text().startswith("schema = 1")


def test_a_model_that_fits_no_gpu_is_one_clear_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "huge.json"
    model.write_text(
        json.dumps(
            {
                "hidden_size": 16384,
                "num_attention_heads": 128,
                "num_key_value_heads": 8,
                "num_hidden_layers": 126,
                "intermediate_size": 53248,
                "vocab_size": 128256,
            }
        )
    )
    assert command(tmp_path, "--set", f'candidates.models=["{model}"]') == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("blink: no candidate can run: ")
    assert "take a larger GPU or a smaller model" in said.err


def test_an_slo_that_nobody_meets_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(tmp_path, "--set", "slo.ttft_ms=5.0", "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert all(row["infeasible"] for row in document["candidates"])
