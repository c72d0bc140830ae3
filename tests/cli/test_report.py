"""`blink run --out` writes a report that stands alone and tells what the run was."""

from __future__ import annotations

from pathlib import Path

import pytest

from blink import backends
from blink.cli import main
from blink.plan import runner
from blink.plan.account import Account
from blink.plan.run_report import run_report
from blink.plan.run_sweep import knee
from tests.pages import PageReader

SPECS = Path(__file__).parents[2] / "specs"
SWEEP = ("slo.tpot_ms=12", "workload.requests=120", 'sweep."workload.rate"=[4,40,80]')


def report(spec: str, *settings: str) -> str:
    scenario = runner.load(SPECS / spec, settings)
    backend = backends.require("sim")
    results = list(runner.execute(runner.plan_runs(scenario), backend))
    return run_report(scenario, results, runner.verdicts(scenario, results, backend))


@pytest.fixture(scope="module")
def demo() -> str:
    return report("demo.toml", "workload.requests=120")


def test_out_holds_a_report_that_stands_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    smoke = str(SPECS / "smoke" / "one_request.toml")
    for _ in range(2):  # the second time over the first: the report is one of its own files
        assert main(["run", smoke, "--out", str(out)]) == 0
    assert "report.html" in capsys.readouterr().err
    assert PageReader((out / "report.html").read_text("utf-8")).problems == []


def test_it_answers_the_question(demo: str) -> None:
    page = PageReader(demo)
    assert page.problems == []
    for text in (
        "Does a server whose host CPU has nothing to do",
        "ttft_ms.p99, interfered: blink over vllm at least 1: holds",
        "TTFT p99 ms",
        "Time to first token",
        "Inter-token latency",
        "mean TTFT",
        "mean time a token",
        "RDMA write",
        "TTFT ≤ 500 ms, TPOT ≤ 25 ms",
        "in which the host kept the GPU waiting",
        "workload.lengths",
        "gpu h100-sxm-96gb",
        "control plane sglang",
    ):
        assert text in page.text, text


def test_the_same_run_is_the_same_bytes(demo: str) -> None:
    assert report("demo.toml", "workload.requests=120") == demo


def test_a_record_of_a_real_machine_is_divided_by_its_own_times() -> None:
    scenario = runner.load(SPECS / "smoke/one_request.toml", ())
    results = list(runner.execute(runner.plan_runs(scenario), backends.require("sim")))
    part = '<th scope="row">tokenizer</th>'
    assert part in run_report(scenario, results)
    for result in results:
        result.record.backend = "hw"
    made = run_report(scenario, results)
    assert PageReader(made).problems == []
    assert "divided by its own times alone" in made
    assert part not in made


def test_a_sweep_has_curves_and_a_knee() -> None:
    made = report("capacity/load.toml", "systems=blink,vllm", *SWEEP)
    page = PageReader(made)
    assert page.problems == []
    for text in ("Over offered load, requests/s", "p99 TTFT", "Within objectives", "knee"):
        assert text in page.text, text
    assert made.count('class="ring') == 8  # two systems, four charts
    assert made.count("<polygon") >= 2
    assert "objective: TPOT ≤ 12 ms" in page.text


def test_points_with_names_stand_under_their_names() -> None:
    page = PageReader(report("capacity/neighbours.toml", "workload.requests=60"))
    assert page.problems == []
    assert "Over the points" in page.text
    assert "96 threads" in page.text


def test_the_knee_is_the_last_point_before_objectives_are_lost() -> None:
    scenario = runner.load(SPECS / "capacity/load.toml", ("systems=blink", *SWEEP))
    runs = runner.execute(runner.plan_runs(scenario), backends.require("sim"))
    line = [(float(x), Account.of(run)) for x, run in zip((4, 40, 80), runs, strict=True)]
    shares = [each.share_within for _, each in line]
    assert shares[0] == 1
    assert shares[1] < 0.99
    assert knee(line) == line[0]
    assert knee(line[:1]) is None  # never lost
    assert knee(line[1:]) is None  # lost from the start


def test_without_objectives_the_knee_is_the_bend() -> None:
    slo = "slo={}"
    sweep = ("systems=blink", "workload.requests=120", 'sweep."workload.rate"=[4,12,20,28,60,90]')
    page = PageReader(report("capacity/load.toml", slo, *sweep))
    assert page.problems == []
    assert "The scenario states no objective" in page.text
    assert "where p99 TTFT bends most" in page.text


@pytest.mark.parametrize(
    "settings",
    [
        ("systems=host_resident",),
        ("workload.lengths.output_tokens=1",),
        ("systems=blink,vllm", "engine.launch_mode=tail_chain"),
    ],
)
def test_a_run_of_little_still_has_a_report(settings: tuple[str, ...]) -> None:
    assert PageReader(report("smoke/one_request.toml", *settings)).problems == []


@pytest.mark.parametrize("spec", ["cancel_storm", "client_timeout", "kv_pressure"])
def test_faults_are_told(spec: str) -> None:
    page = PageReader(report(f"faults/{spec}.toml", "workload.requests=40", "slo.ttft_ms=50"))
    assert page.problems == []
    assert "Requests that missed" in page.text
