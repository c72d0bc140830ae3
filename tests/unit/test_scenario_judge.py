"""Expectations held against figures."""

from __future__ import annotations

import math
from typing import Any

import pytest

from blink.model.scenario import Bound, Compare, Expect, Inflation, Trend, judge
from blink.model.scenario.judge import figure


def run(
    system: str, condition: str = "isolated", point: str = "", **figures: Any
) -> dict[str, Any]:
    return {"system": system, "condition": condition, "point": point, "outcomes": {}} | figures


def verdict_of(expect: Expect, *runs: dict[str, Any]) -> tuple[Any, Any]:
    [verdict] = judge(expect, runs)
    return verdict.holds, verdict.value


TPOT = Compare(metric="tpot_ms.p99", better="blink", worse="vllm", ratio_min=1.5, ratio_max=3)


@pytest.mark.parametrize(
    ("worse", "holds"), [(14.9, False), (15, True), (20, True), (30, True), (30.1, False)]
)
def test_compare_where_less_is_better(worse: float, holds: bool) -> None:
    runs = run("blink", tpot_ms={"p99": 10.0}), run("vllm", tpot_ms={"p99": worse})
    assert verdict_of(Expect(compare=(TPOT,)), *runs) == (holds, pytest.approx(worse / 10))


def test_compare_where_more_is_better() -> None:
    expect = Expect(compare=(Compare(metric="output_tok_s", better="blink", worse="vllm"),))
    runs = run("blink", output_tok_s=30.0), run("vllm", output_tok_s=20.0)
    assert verdict_of(expect, *runs) == (True, 1.5)


def test_compare_looks_at_its_condition_only() -> None:
    expect = Expect(
        compare=(
            Compare(metric="e2e_ms.mean", better="blink", worse="vllm", condition="interfered"),
        )
    )
    quiet = run("blink", e2e_ms={"mean": 9.0}), run("vllm", e2e_ms={"mean": 1.0})
    noisy = (
        run("blink", "interfered", e2e_ms={"mean": 1.0}),
        run("vllm", "interfered", e2e_ms={"mean": 2.0}),
    )
    assert verdict_of(expect, *quiet, *noisy) == (True, 2.0)


def test_inflation_is_interfered_over_isolated() -> None:
    expect = Expect(inflation=(Inflation(metric="ttft_ms.p99", system="vllm", ratio_max=1.5),))
    runs = run("vllm", ttft_ms={"p99": 10.0}), run("vllm", "interfered", ttft_ms={"p99": 16.0})
    assert verdict_of(expect, *runs) == (False, 1.6)


def test_bounds_include_their_ends_and_absent_counts_are_zero() -> None:
    expect = Expect(bound=(Bound(metric="outcomes.failed", system="blink", min=0, max=0),))
    assert verdict_of(expect, run("blink")) == (True, 0.0)
    assert verdict_of(expect, run("blink", outcomes={"failed": 1})) == (False, 1.0)


@pytest.mark.parametrize(
    "runs",
    [
        [run("blink", tpot_ms={"p99": 10.0})],
        [run("blink", tpot_ms={"p99": 10.0}), run("vllm", tpot_ms={"p99": None})],
        [run("blink", tpot_ms={"p99": 10.0}), run("vllm", tpot_ms=None)],
    ],
)
def test_what_was_not_run_or_does_not_apply_is_not_judged(runs: list[dict[str, Any]]) -> None:
    assert verdict_of(Expect(compare=(TPOT,)), *runs) == (None, None)


def test_each_point_of_a_sweep_or_their_geometric_mean() -> None:
    runs = [
        run(system, point=point, tpot_ms={"p99": value})
        for point, ours, theirs in (("rate=1", 1.0, 1.0), ("rate=2", 1.0, 4.0))
        for system, value in (("blink", ours), ("vllm", theirs))
    ]
    each = judge(Expect(compare=(TPOT,)), runs)
    assert [(verdict.point, verdict.holds) for verdict in each] == [
        ("rate=1", False),
        ("rate=2", False),
    ]
    mean = TPOT.model_copy(update={"over": "geomean"})
    assert verdict_of(Expect(compare=(mean,)), *runs) == (True, pytest.approx(2.0))


def test_only_expectations_for_this_clock() -> None:
    wall = TPOT.model_copy(update={"clock": "wall"})
    expect = Expect(compare=(TPOT, wall))
    assert len(judge(expect, [run("blink")], "wall")) == 1


def test_nothing_over_something_is_infinitely_better() -> None:
    compare = Compare(metric="host_cpu_on_token_path_s", better="blink", worse="vllm")
    expect = Expect(compare=(compare,))
    idle = run("blink", host_cpu_on_token_path_s=0.0)
    runs = idle, run("vllm", host_cpu_on_token_path_s=3.0)
    assert verdict_of(expect, *runs) == (True, math.inf)
    assert judge(expect, runs)[0].number is None, "JSON has no infinity"
    still = idle, run("vllm", host_cpu_on_token_path_s=0.0)
    assert verdict_of(expect, *still) == (True, 1.0)


def test_a_verdict_says_what_was_asked() -> None:
    runs = run("blink", tpot_ms={"p99": 10.0}), run("vllm", tpot_ms={"p99": 12.0})
    [verdict] = judge(Expect(compare=(TPOT,)), runs)
    assert str(verdict) == (
        "tpot_ms.p99, isolated: blink over vllm at least 1.5 and at most 3: FAILS (is 1.2)"
    )


def test_a_count_is_unknown_where_counts_are_not_told() -> None:
    assert figure({"system": "blink"}, "counters.preemptions") is None


@pytest.mark.parametrize(
    ("figures", "direction", "holds", "value"),
    [
        ([9.0, 6.0, 3.0], "falls", True, 2 / 3),
        ([9.0, 6.0, 6.0], "falls", False, 1.0),
        ([1.0, 3.0, 6.0], "rises", True, 2.0),
        ([1.0, 3.0, 2.0], "rises", False, 2 / 3),
        ([1.0], "rises", None, None),
    ],
)
def test_a_trend_over_the_points_of_a_sweep(
    figures: list[float], direction: str, holds: bool | None, value: float | None
) -> None:
    trend = Trend.model_validate(
        {"metric": "output_tok_s", "system": "blink", "direction": direction}
    )
    runs = [run("blink", point=f"n={i}", output_tok_s=each) for i, each in enumerate(figures)]
    assert verdict_of(Expect(trend=(trend,)), *runs) == (holds, value)


def test_a_trend_with_a_gap_is_not_judged() -> None:
    trend = Trend(metric="output_tok_s", system="blink", direction="falls")
    runs = [run("blink", point="1", output_tok_s=2.0), run("vllm", point="2", output_tok_s=1.0)]
    assert verdict_of(Expect(trend=(trend,)), *runs) == (None, None)
