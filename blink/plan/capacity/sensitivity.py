"""One setting varies at a fixed load: at which value does each candidate lose its SLO?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blink.plan.capacity.candidates import Builder, Candidate, candidates_of
from blink.plan.capacity.capacity import Run
from blink.plan.capacity.measure import failure
from blink.plan.capacity.page import LATENCIES, NAMED_BY_DEFAULT, Plan
from blink.plan.capacity.statistics import interval

Curve = dict[str, Any]
NEIGHBOURS = "[sensitivity]"


def sensitivity(builder: Builder, run: Run) -> list[Curve]:
    """A curve for each system, model, GPU, placement and variant, of one replica each.

    ``points``: for each value how many replications hold, and the mean of each figure that is
    limited. ``lost``: the last value before the first loss, and the value of that loss; an SLO is
    lost where fewer than half of the replications hold.
    """
    asked = builder.plan.sensitivity
    assert asked is not None
    varied = Builder(_with_values(builder.plan))
    alone = [each for each in candidates_of(builder.plan) if len(each.gpus) == 1]
    bases = list(dict.fromkeys(replace(each, neighbours=NEIGHBOURS) for each in alone))
    seeds = range(builder.plan.search.seeds)
    cells = [(base, value, seed) for base in bases for value in asked.values for seed in seeds]
    jobs = [varied.job(_at(base, value), asked.rate, seed) for base, value, seed in cells]
    figures = dict(zip(cells, run(jobs), strict=True))
    curves = []
    for base in bases:
        runs = {value: [figures[base, value, seed] for seed in seeds] for value in asked.values}
        curves.append(_curve(builder.plan, base, runs))
    return curves


def _at(base: Candidate, value: float) -> Candidate:
    return replace(base, variant=f"{base.variant} {value:g}")


def _with_values(plan: Plan) -> Plan:
    """The plan with a variant for each value of each of its own."""
    asked = plan.sensitivity
    assert asked is not None
    own = {NAMED_BY_DEFAULT["variants"]: {}, **plan.variants}
    variants = {
        f"{name} {value:g}": {**own[name], asked.key: value}
        for name in plan.candidates.variants
        for value in asked.values
    }
    sets = {**plan.neighbours, NEIGHBOURS: asked.neighbours}
    return plan.model_copy(update={"variants": variants, "neighbours": sets})


def _curve(plan: Plan, base: Candidate, runs: dict[float, list[dict[str, Any]]]) -> Curve:
    points = [_point(plan, value, each) for value, each in runs.items()]
    before: float | None = None
    lost: dict[str, Any] | None = None
    for point in points:
        if 2 * point["holds"] < point["of"]:
            lost = {"after": before, "at": point["value"], "because": point["because"]}
            break
        before = point["value"]
    label = replace(base, neighbours=NAMED_BY_DEFAULT["neighbours"]).label
    return {"label": label, "system": base.system, "points": points, "lost": lost}


def _point(plan: Plan, value: float, runs: list[dict[str, Any]]) -> dict[str, Any]:
    misses = [failure(each, plan.slo) for each in runs]
    limited = [(name, statistic) for name in LATENCIES for statistic in plan.slo.limits(name)]
    figures = {}
    for name, statistic in limited:
        found = [each[name][statistic] for each in runs if each[name] is not None]
        figures[f"{name}.{statistic}"] = interval(found).as_dict() if found else None
    return {
        "value": value,
        "holds": misses.count(None),
        "of": len(runs),
        "because": next((each["text"] for each in misses if each), None),
        "figures": figures,
    }
