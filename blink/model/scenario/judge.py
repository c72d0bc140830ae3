"""Holds the figures of runs against a scenario's timing expectations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from blink.model.scenario.expect import MORE_IS_BETTER, Bound, Compare, Expect, Inflation, Trend

Expectation = Compare | Inflation | Bound
Summary = Mapping[str, Any]
"""A run's figures as `blink run --json` prints them; "point" is the label of its sweep point."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One expectation at one point of a sweep ("": no sweep, or over all of it).

    holds: None when a run or figure that it needs is not there, for example after
        `--set systems=blink`.
    value: the ratio or figure that was judged.
    """

    text: str
    point: str
    holds: bool | None
    value: float | None

    @property
    def number(self) -> float | None:
        """The value as JSON can say it: a ratio to nothing is no number there."""
        return None if self.value is None or math.isinf(self.value) else self.value

    def __str__(self) -> str:
        word = {True: "holds", False: "FAILS", None: "does not apply"}[self.holds]
        value = "" if self.value is None else f" (is {self.value:.4g})"
        return f"{self.point + ': ' if self.point else ''}{self.text}: {word}{value}"


def judge(
    expect: Expect, runs: Sequence[Summary], clock: Literal["virtual", "wall"] = "virtual"
) -> list[Verdict]:
    """All verdicts on the expectations that name `clock`, in the scenario's order."""
    points = list(dict.fromkeys(str(run.get("point", "")) for run in runs))
    table = {(str(run.get("point", "")), run["system"], run["condition"]): run for run in runs}
    verdicts: list[Verdict] = []
    expectations: list[Expectation] = [*expect.compare, *expect.inflation, *expect.bound]
    for each in expectations:
        if each.clock != clock:
            continue
        values = {point: _value(each, table, point) for point in points}
        if each.over == "geomean" and len(points) > 1:
            values = {"": _geometric_mean(list(values.values()))}
        for point, value in values.items():
            verdicts.append(Verdict(_text(each), point, _holds(each, value), value))
    verdicts += [_trend(each, table, points) for each in expect.trend if each.clock == clock]
    return verdicts


Table = Mapping[tuple[str, str, str], Summary]


def _trend(each: Trend, table: Table, points: Sequence[str]) -> Verdict:
    """One verdict over all points; its value is the ratio of the two neighbours that fit least."""
    runs = [table.get((point, each.system, each.condition)) for point in points]
    figures = [None if run is None else figure(run, each.metric) for run in runs]
    ratios = [_ratio(after, before) for before, after in pairwise(figures)]
    known = [ratio for ratio in ratios if ratio is not None]
    text = f"{each.metric}, {each.condition}: {each.system} {each.direction} from point to point"
    if not ratios or len(known) < len(ratios):
        return Verdict(text, "", None, None)
    worst = max(known) if each.direction == "falls" else min(known)
    return Verdict(text, "", worst < 1 if each.direction == "falls" else worst > 1, worst)


def _value(each: Expectation, table: Table, point: str) -> float | None:
    def figure_of(system: str, condition: str) -> float | None:
        run = table.get((point, system, condition))
        return None if run is None else figure(run, each.metric)

    if isinstance(each, Bound):
        return figure_of(each.system, each.condition)
    if isinstance(each, Inflation):
        return _ratio(figure_of(each.system, "interfered"), figure_of(each.system, "isolated"))
    better, worse = figure_of(each.better, each.condition), figure_of(each.worse, each.condition)
    return _ratio(better, worse) if each.metric in MORE_IS_BETTER else _ratio(worse, better)


def figure(run: Summary, metric: str) -> float | None:
    """The figure at a dotted path. A count that is not listed is 0, any other is None."""
    value: Any = run
    for name in metric.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None and metric.startswith(("outcomes.", "counters.")):
        value = 0 if metric.partition(".")[0] in run else None
    return None if value is None else float(value)


def _ratio(above: float | None, below: float | None) -> float | None:
    if above is None or below is None:
        return None
    if below == 0:
        return 1.0 if above == 0 else math.inf
    return above / below


def _geometric_mean(values: list[float | None]) -> float | None:
    if any(value is None or value <= 0 for value in values):
        return None
    return math.exp(math.fsum(math.log(value) for value in values if value) / len(values))


def _limits(each: Expectation) -> tuple[float | None, float | None]:
    if isinstance(each, Bound):
        return each.min, each.max
    return each.ratio_min, each.ratio_max


def _holds(each: Expectation, value: float | None) -> bool | None:
    if value is None:
        return None
    low, high = _limits(each)
    return (low is None or value >= low) and (high is None or value <= high)


def _text(each: Expectation) -> str:
    low, high = _limits(each)
    if isinstance(each, Compare):
        what = f"{each.metric}, {each.condition}: {each.better} over {each.worse}"
    elif isinstance(each, Inflation):
        what = f"{each.metric}, interfered over isolated: {each.system}"
    else:
        what = f"{each.metric}, {each.condition}: {each.system}"
    limits = [f"at least {low:g}" if low else "", f"at most {high:g}" if high is not None else ""]
    return f"{what} {' and '.join(limit for limit in limits if limit)}".rstrip()
