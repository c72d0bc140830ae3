"""How many replicas serve a demand, tried on whole fleets; and what they take and cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from blink.model import control_plane
from blink.model.setup import RunSetup
from blink.plan.capacity.candidates import FLEET_REQUESTS_MAX, Builder, Candidate
from blink.plan.capacity.capacity import Capacity, Run
from blink.plan.capacity.measure import failure
from blink.plan.capacity.page import Plan
from blink.plan.executor import Job

TRIES_MAX: Final = 6
SECONDS_PER_HOUR: Final = 3600.0


@dataclass(slots=True)
class Sizing:
    """The search for the least fleet that serves a demand: up until it holds, then down.

    ``tried``: replicas -> what came of each replication; a size holds if every one does.
    """

    candidate: Candidate
    start: int
    scales: bool
    tried: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    misses: dict[int, list[dict[str, Any] | None]] = field(default_factory=dict)

    @property
    def replicas(self) -> int | None:
        """The least size that held."""
        return min((n for n, each in self.misses.items() if not any(each)), default=None)

    @property
    def next(self) -> int | None:
        """The size to try next; None when it is known, or has been looked for long enough."""
        if not self.tried:
            return self.start
        held = self.replicas
        if not self.scales or len(self.tried) >= TRIES_MAX:
            return None
        if held is None:
            return max(self.tried) + 1
        return held - 1 if held > 1 and held - 1 not in self.tried else None


def peak_rate(plan: Plan, builder: Builder) -> float:
    """What the fleet is sized for, requests/s."""
    demand = plan.demand
    assert demand is not None
    rate = demand.rate if demand.rate is not None else builder.source.recorded_rate
    return rate * max(demand.hourly, default=1.0)


def size_fleets(
    builder: Builder, capacities: dict[Candidate, Capacity], run: Run
) -> dict[Candidate, Sizing]:
    """Size every candidate that meets the SLO at all. One of several replicas is not scaled."""
    rate = peak_rate(builder.plan, builder)
    sizings = {}
    for candidate, found in capacities.items():
        if found.load is not None:
            single = len(candidate.gpus) == 1
            start = math.ceil(rate / found.load.mean) if single else len(candidate.gpus)
            sizings[candidate] = Sizing(candidate, start, single)
    while open_ := [(each, n) for each in sizings.values() if (n := each.next)]:
        jobs = [(each, n, job) for each, n in open_ for job in _jobs(builder, each, n, rate)]
        results = run([job for _, _, job in jobs])
        for (each, n, _), figures in zip(jobs, results, strict=True):
            each.tried.setdefault(n, []).append(figures)
            each.misses.setdefault(n, []).append(failure(figures, builder.plan.slo))
    return sizings


def _jobs(builder: Builder, sizing: Sizing, replicas: int, rate: float) -> list[Job]:
    candidate = sizing.candidate.of(replicas) if sizing.scales else sizing.candidate
    plan = builder.plan
    assert plan.demand is not None
    if plan.demand.recorded:
        return [builder.job_of(candidate, builder.source.scaled(plan.demand.rate), 0)]
    requests = min(plan.search.requests * replicas, FLEET_REQUESTS_MAX)
    return [
        builder.job_of(candidate, builder.source.at(rate, requests, seed), seed)
        for seed in range(plan.search.seeds)
    ]


def bill(plan: Plan, builder: Builder, candidate: Candidate, runs: Sequence[Any]) -> dict[str, Any]:
    """What a fleet takes and costs; ``runs``: the figures of its replications at its load.

    Cores that are reserved count as such; of a server without any, those that it keeps busy. Cost
    is None without prices, or with a GPU that has none.
    """
    plane = control_plane.profile(candidate.system)
    placement = plan.placements.get(candidate.placement)
    replicas = len(candidate.gpus)
    on_host = plane.processes > 0
    pinned = (placement.pinned_cores or 0) if placement and on_host else 0
    dpus = math.ceil(replicas / plan.hardware.replicas_per_dpu) if plane.front_end == "dpu" else 0
    busy = _mean(runs, "host_cores_busy")
    power_w = _mean(runs, "power_w")
    tokens_s = _mean(runs, "output_tok_s")
    energy = [each["energy_mj_per_tok"] for each in runs if each["energy_mj_per_tok"] is not None]
    found: dict[str, Any] = {
        "replicas": replicas,
        "gpus": sum(gpus_of(builder.setup(candidate, gpu)) for gpu in candidate.gpus),
        "dpus": dpus,
        "host_cores_reserved": pinned * replicas,
        "host_cores_busy": busy,
        "power_w": power_w,
        "output_tok_s": tokens_s,
        "energy_mj_per_tok": float(np.mean(energy)) if energy else None,
    }
    hour = _hourly(plan, builder, candidate, found)
    per_mtok = hour / (tokens_s * SECONDS_PER_HOUR) * 1e6 if hour is not None else None
    return {**found, "cost_per_hour": hour, "cost_per_mtok": per_mtok}


def _hourly(
    plan: Plan, builder: Builder, candidate: Candidate, found: dict[str, Any]
) -> float | None:
    prices = plan.prices
    if prices is None or any(gpu not in prices.gpu_hour for gpu in candidate.gpus):
        return None
    gpus = sum(
        prices.gpu_hour[gpu] * gpus_of(builder.setup(candidate, gpu)) for gpu in candidate.gpus
    )
    cores = max(found["host_cores_reserved"], found["host_cores_busy"])
    hour: float = (
        gpus
        + cores * prices.host_core_hour
        + found["dpus"] * prices.dpu_hour
        + found["power_w"] / 1e3 * prices.kwh
    )
    return hour


def gpus_of(setup: RunSetup) -> int:
    """The GPUs of one replica."""
    return setup.parallel.gpus


def gpu_hours_a_day(plan: Plan, capacity: Capacity, peak_replicas: int) -> dict[str, float] | None:
    """GPU-hours of a day: of a fleet that stays, and of one that follows the hours.

    The second by the candidate's capacity alone: only the peak was simulated.
    """
    demand = plan.demand
    if demand is None or not demand.hourly or capacity.load is None or demand.rate is None:
        return None
    per_hour = [math.ceil(demand.rate * each / capacity.load.mean) for each in demand.hourly]
    hours = 24 / len(demand.hourly)
    followed = sum(min(each, peak_replicas) for each in per_hour) * hours
    return {"fixed": 24.0 * peak_replicas, "hourly": followed}


def _mean(runs: Sequence[Any], name: str) -> float:
    return float(np.mean([each[name] for each in runs]))
