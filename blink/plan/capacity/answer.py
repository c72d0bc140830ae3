"""A plan's answer: capacities, fleets, comparisons and a sensitivity, as one JSON document."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from blink.model.errors import BadInput
from blink.plan.capacity.candidates import Builder, Candidate, candidates_of
from blink.plan.capacity.capacity import Capacity, Run, described, find_capacities
from blink.plan.capacity.compare import comparisons
from blink.plan.capacity.measure import measure
from blink.plan.capacity.page import Plan
from blink.plan.capacity.sensitivity import sensitivity
from blink.plan.capacity.sizing import Sizing, bill, gpu_hours_a_day, peak_rate, size_fleets
from blink.plan.commit import commit_id
from blink.plan.executor import TimeLeft, Where, execute_jobs

Document = dict[str, Any]


def answer(
    plan: Plan,
    *,
    where: Where = "local",
    workers: int | None = None,
    cache: Path | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> Document:
    """Answer a plan; ``say`` takes lines of progress. See the module's parts for what is in it.

    Raises BadInput for a plan that no candidate could ever run as it stands.
    """
    builder = Builder(plan)
    candidates = candidates_of(plan)

    execute = partial(execute_jobs, measure=measure, where=where, workers=workers, cache=cache)

    def named(what: str) -> Run:
        rounds = count(1)
        return lambda jobs: execute(jobs, progress=TimeLeft(f"{what}, round {next(rounds)}", say))

    capacities = find_capacities(builder, candidates, named("capacity"))
    sizings: dict[Candidate, Sizing] = {}
    if plan.demand is not None:
        sizings = size_fleets(builder, capacities, named("fleets"))
    rows = [_row(builder, capacities[each], sizings.get(each)) for each in candidates]
    document: Document = {
        "title": plan.title,
        "question": plan.question,
        "slo": plan.slo.model_dump(mode="json", exclude_none=True),
        "demand_req_s": peak_rate(plan, builder) if plan.demand is not None else None,
        "currency": plan.prices.currency if plan.prices else None,
        "candidates": rows,
        "comparisons": comparisons(plan, rows),
        "sensitivity": [],
        "commit": commit_id(),
        "seed": plan.seed,
    }
    if plan.sensitivity is not None:
        document["sensitivity"] = sensitivity(builder, named("sensitivity"))
    return document


def _row(builder: Builder, capacity: Capacity, sizing: Sizing | None) -> Document:
    """One candidate's line of the document."""
    candidate, plan = capacity.candidate, builder.plan
    binding, load = capacity.binding, capacity.load
    row: Document = {
        "label": candidate.label,
        "system": candidate.system,
        "model": candidate.model,
        "gpus": list(candidate.gpus),
        "neighbours": candidate.neighbours,
        "placement": candidate.placement,
        "variant": candidate.variant,
        "infeasible": capacity.infeasible,
        "capacity_req_s": load.as_dict() if load else None,
        "capacity_by_seed": capacity.loads,
        "binding": binding,
        "binding_request": described(binding["request"])
        if binding is not None and binding.get("request")
        else None,
        "searches": [each.told() for each in capacity.searches],
        "figures": capacity.figures,
        "fleet": None,
        "fleet_infeasible": None,
    }
    if load is None:
        return row
    if sizing is None:
        held = [each.holds.figures for each in capacity.searches if each.holds is not None]
        row["fleet"] = bill(plan, builder, candidate, held)
        return row
    return row | _fleet(builder, capacity, sizing)


def _fleet(builder: Builder, capacity: Capacity, sizing: Sizing) -> Document:
    replicas = sizing.replicas
    if replicas is None:
        size = max(sizing.tried)
        miss = next(each for each in sizing.misses[size] if each)
        return {"fleet_infeasible": f"{size} replicas: {miss['text']}"}
    candidate = sizing.candidate.of(replicas) if sizing.scales else sizing.candidate
    found = bill(builder.plan, builder, candidate, sizing.tried[replicas])
    found["proposed"] = sizing.start
    found["tried"] = {str(n): not any(each) for n, each in sorted(sizing.misses.items())}
    found["gpu_hours_a_day"] = gpu_hours_a_day(builder.plan, capacity, replicas)
    return {"fleet": found}


def feasible(document: Document) -> bool:
    """Whether any candidate meets the SLO, and the demand if there is one."""
    return any(row["fleet"] is not None for row in document["candidates"])


def check_runnable(document: Document) -> None:
    """Raise BadInput if no candidate could be run at all."""
    reasons = [row["infeasible"] for row in document["candidates"]]
    if all(reasons) and not any(row["searches"] for row in document["candidates"]):
        raise BadInput("no candidate can run: " + "; ".join(dict.fromkeys(reasons)))
