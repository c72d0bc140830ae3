"""What a sweep shows: curves over the swept value, and the knee, beyond which objectives are lost.

With objectives a run's *knee* is the largest swept value up to which, without a break, at least
KNEE_SHARE of the requests met all of them: what the p99 of a figure asks, for all figures together.
Without objectives it is where the curve of p99 TTFT bends most: the point furthest below the chord
from its first to its last (Satopaa et al. 2011), if the curve at least doubles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from blink.model.metrics import NS_PER_MS, per_request_ns
from blink.model.scenario import Scenario, expand
from blink.plan.account import Account
from blink.plan.intervals import block_interval, mean, p99
from blink.plan.misses import tally
from blink.plan.report import (
    Column,
    Html,
    Limit,
    Marker,
    Palette,
    Point,
    Section,
    Series,
    line_chart,
    side_by_side,
    table,
)

KNEE_SHARE: Final = 0.99
POINTS_MAX: Final = 40
"""Points of one curve that names of points can stand under."""

Lines = Mapping[tuple[str, str], Sequence[tuple[float, Account]]]


@dataclass(frozen=True, slots=True)
class _Sweep:
    """The swept axis: its name, each point's place on it, and names where places are no numbers."""

    label: str
    place: Mapping[str, float]
    names: Sequence[str]


def sweep_section(scenario: Scenario, told: Sequence[Account], palette: Palette) -> Section | None:
    """The curves of a sweep and its knees; None without a sweep of at least two points."""
    sweep = _sweep_of(scenario)
    if sweep is None:
        return None
    lines: dict[tuple[str, str], list[tuple[float, Account]]] = {}
    for each in told:
        record = each.result.record
        line = lines.setdefault((record.system, record.condition), [])
        line.append((sweep.place[each.point], each))
    for line in lines.values():
        line.sort(key=lambda entry: entry[0])
    knees = {key: knee(line) for key, line in lines.items()}
    charts = _charts(lines, sweep, knees, palette)
    blocks = [side_by_side(charts), _knee_table(lines, knees, sweep)]
    return Section(f"Over {sweep.label}", blocks, _note(told))


def _note(told: Sequence[Account]) -> str:
    bands = "Bands are 95 % intervals (blocks of consecutive requests, drawn again)."
    if told[0].objectives.any:
        return (
            f"{bands} The ring is the knee: the largest value up to which at least "
            f"{KNEE_SHARE:.0%} of the requests met every objective."
        )
    return (
        f"{bands} The ring is the knee: where p99 TTFT bends most (the scenario states no "
        "objective)."
    )


def _sweep_of(scenario: Scenario) -> _Sweep | None:
    """The axis of a sweep: the value of the only key that varies, or else the points' names."""
    points = expand(scenario)
    if not 2 <= len(points) <= POINTS_MAX:
        return None
    keys = {key for point in points for key in point.settings}
    varying = [key for key in sorted(keys) if len({str(p.settings.get(key)) for p in points}) > 1]
    if len(varying) == 1 and not scenario.points:
        values = [point.settings[varying[0]] for point in points]
        if all(isinstance(value, int | float) and value is not True for value in values):
            numbers = [float(value) for value in values]
            places = {p.label: x for p, x in zip(points, numbers, strict=True)}
            return _Sweep(_axis_name(varying[0]), places, ())
    labels = [point.label for point in points]
    return _Sweep("the points", {label: float(i) for i, label in enumerate(labels)}, labels)


def _axis_name(key: str) -> str:
    return {"workload.rate": "offered load, requests/s"}.get(key, key)


# --- knees -----------------------------------------------------------------------------------


def knee(line: Sequence[tuple[float, Account]]) -> tuple[float, Account] | None:
    """The knee of a line of (swept value, account), by rising value; None if it has none."""
    if line[0][1].objectives.any:
        within = [each.share_within >= KNEE_SHARE for _, each in line]
        if all(within):
            return None
        first_beyond = within.index(False)
        return line[first_beyond - 1] if first_beyond else None
    curve = [each.result.summary["ttft_ms"]["p99"] for _, each in line]
    at = _bend([x for x, _ in line], curve)
    return None if at is None else line[at]


def _bend(xs: Sequence[float], ys: Sequence[float | None]) -> int | None:
    if len(xs) < 4 or any(y is None for y in ys):
        return None
    x, y = np.array(xs, dtype=np.float64), np.array(ys, dtype=np.float64)
    if y[-1] < 2 * y[0]:
        return None
    below = (x - x[0]) / (x[-1] - x[0]) - (y - y[0]) / (y[-1] - y[0])
    return int(below.argmax())


def _knee_table(
    lines: Lines, knees: Mapping[tuple[str, str], tuple[float, Account] | None], sweep: _Sweep
) -> Html:
    headings = [Column("run", number=False), Column("knee", sweep.label, number=not sweep.names)]
    headings += [Column("beyond it", number=False)]
    return table(
        headings,
        [
            (_line_name(lines, key), *_knee_cells(line, knees[key], sweep))
            for key, line in lines.items()
        ],
    )


def _knee_cells(
    line: Sequence[tuple[float, Account]], found: tuple[float, Account] | None, sweep: _Sweep
) -> tuple[str, str]:
    objectives = line[0][1].objectives.any
    if found is None:
        if objectives and line[0][1].share_within < KNEE_SHARE:
            return f"below {_value(line[0][0], sweep)}", _beyond(line[0], sweep)
        return "not reached", f"up to {_value(line[-1][0], sweep)}" if objectives else "no bend"
    after = [entry for entry in line if entry[0] > found[0]]
    return _value(found[0], sweep), _beyond(after[0], sweep) if after and objectives else ""


def _beyond(entry: tuple[float, Account], sweep: _Sweep) -> str:
    x, told = entry
    why = "; ".join(f"{n} {what}: {label}" for what, label, n in tally(told.missed)[:3])
    return f"at {_value(x, sweep)} {1 - told.share_within:.1%} missed ({why})"


def _value(x: float, sweep: _Sweep) -> str:
    return sweep.names[int(x)] if sweep.names else f"{x:g}"


# --- curves ----------------------------------------------------------------------------------


def _charts(
    lines: Lines,
    sweep: _Sweep,
    knees: Mapping[tuple[str, str], tuple[float, Account] | None],
    palette: Palette,
) -> list[Html]:
    objectives = next(iter(lines.values()))[0][1].objectives

    def chart(
        title: str, unit: str, point_of: Callable[[float, Account], Point | None], **look: Any
    ) -> Html:
        series, markers = [], []
        for key, line in lines.items():
            points = [point_of(x, each) for x, each in line]
            colour = palette.of(key[0])
            known = [point for point in points if point is not None]
            dashed = key[1] != "isolated" and len({k[1] for k in lines}) > 1
            series.append(Series(_line_name(lines, key), known, colour, dashed))
            found = knees[key]
            ring = point_of(*found) if found is not None else None
            if ring is not None:
                markers.append(Marker(ring.x, "", colour, ring.y))
        return line_chart(
            title, series, x_label=sweep.label, y_label=unit, markers=markers,
            x_names=sweep.names, **look,
        )  # fmt: skip

    charts = [
        chart("p99 TTFT", "ms", _ttft_p99, log_y=True, limits=_limit("TTFT", objectives.ttft_ms)),
        chart("Mean TPOT", "ms", _tpot_mean, limits=_limit("TPOT", objectives.tpot_ms)),
        chart("Throughput", "output tokens/s", _throughput),
    ]
    if objectives.any:
        charts.append(chart("Within objectives", "% of requests", _within))
    return charts


def _limit(name: str, ms: float | None) -> Sequence[Limit]:
    return [] if ms is None else [Limit(ms, f"objective: {name} ≤ {ms:g} ms")]


def _line_name(lines: Lines, key: tuple[str, str]) -> str:
    return key[0] if len({condition for _, condition in lines}) == 1 else f"{key[0]} {key[1]}"


def _ttft_p99(x: float, told: Account) -> Point | None:
    return _latency(x, told, "ttft", p99, told.result.summary["ttft_ms"]["p99"])


def _tpot_mean(x: float, told: Account) -> Point | None:
    return _latency(x, told, "tpot", mean, told.result.summary["tpot_ms"]["mean"])


def _latency(
    x: float, told: Account, name: str, statistic: Callable[[Any], float], figure: float | None
) -> Point | None:
    if figure is None:
        return None
    times = per_request_ns(told.result.record)
    low, high = block_interval(times[name][times["done"] > 0] / NS_PER_MS, statistic)
    return Point(x, figure, low, high)


def _throughput(x: float, told: Account) -> Point | None:
    found = told.result.summary["output_tok_s"]
    return None if found is None else Point(x, found)


def _within(x: float, told: Account) -> Point | None:
    return Point(x, 100 * told.share_within)
