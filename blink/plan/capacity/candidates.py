"""From a plan to its candidates, and from a candidate and a load to a fleet that can be run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import numpy as np

from blink.model import control_plane
from blink.model.errors import BadInput
from blink.model.metrics import Objectives
from blink.model.random import stream_of
from blink.model.resolve import resolve
from blink.model.scenario import Scenario, parse_scenario
from blink.model.scenario.overrides import parse_key, set_all
from blink.model.scenario.traffic import TraceWorkload
from blink.model.servable import check_servable
from blink.model.setup import FleetSetup, RunSetup
from blink.model.step_table import step_time
from blink.model.workload import Workload, build_workload
from blink.plan.capacity.page import LATENCIES, NAMED_BY_DEFAULT, Plan
from blink.plan.executor import Job

TRACE_REQUESTS_MIN: Final = 20
FLEET_REQUESTS_MAX: Final = 4_000
"""Of one run of a whole fleet; a larger fleet's replicas see fewer requests each."""
NS_PER_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class Candidate:
    """One thing that may be bought. ``gpus``: the GPU of each replica."""

    system: str
    model: str
    gpus: tuple[str, ...]
    neighbours: str
    placement: str
    variant: str

    @property
    def label(self) -> str:
        """Such as ``blink llama3-8b 2xH100 beside paper``; what is as by default is left out."""
        counted = [
            f"{self.gpus.count(gpu)}x{gpu}" if self.gpus.count(gpu) > 1 else gpu
            for gpu in dict.fromkeys(self.gpus)
        ]
        parts = [self.system, self.model, "+".join(counted)]
        if self.neighbours != NAMED_BY_DEFAULT["neighbours"]:
            parts.append(f"beside {self.neighbours}")
        if self.placement != NAMED_BY_DEFAULT["placements"]:
            parts.append(self.placement)
        if self.variant != NAMED_BY_DEFAULT["variants"]:
            parts.append(self.variant)
        return " ".join(parts)

    def of(self, replicas: int) -> Candidate:
        """The same with so many replicas."""
        assert len(set(self.gpus)) == 1
        return replace(self, gpus=self.gpus[:1] * replicas)


def candidates_of(plan: Plan) -> list[Candidate]:
    """Every combination, in the page's order; a placement is for servers with a host alone."""
    chosen = plan.candidates
    fleets = [(gpu,) * count for gpu in chosen.gpus for count in chosen.replicas]
    fleets += chosen.fleets
    found = [
        Candidate(*each)
        for each in product(
            chosen.systems,
            chosen.models,
            fleets,
            chosen.neighbours,
            chosen.placements,
            chosen.variants,
        )
    ]
    return list(dict.fromkeys(_without_idle_placement(each) for each in found))


def _without_idle_placement(candidate: Candidate) -> Candidate:
    """Nothing of a host is kept for a server that has no process there."""
    if control_plane.profile(candidate.system).processes:
        return candidate
    return replace(candidate, placement=NAMED_BY_DEFAULT["placements"])


class Source:
    """The plan's requests: the same for every candidate, whatever the load.

    Replications of a synthetic workload are seeds; of a trace they are stretches of it.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._trace = self._read() if isinstance(plan.workload, TraceWorkload) else None

    def _read(self) -> Workload:
        assert isinstance(self._plan.workload, TraceWorkload)
        found = build_workload(self._plan.workload, stream_of(self._plan.seed))
        if len(found) < TRACE_REQUESTS_MIN:
            raise BadInput(
                f"workload.trace: {len(found)} request{'s' if len(found) > 1 else ''} after the "
                f"slice: a load needs at least {TRACE_REQUESTS_MIN} to be searched"
            )
        return found

    @property
    def recorded(self) -> Workload:
        """The whole trace at its own times."""
        assert self._trace is not None
        return self._trace

    @property
    def recorded_rate(self) -> float:
        """Its mean, requests/s."""
        return _rate(self.recorded)

    def at(self, load: float, requests: int, replication: int) -> Workload:
        """``requests`` requests at ``load`` requests/s."""
        if self._trace is None:
            spec = self._plan.workload.model_copy(
                update={"rate": load, "requests": requests, "duration_s": None}
            )
            return build_workload(spec, stream_of(self._plan.seed + replication))
        return self._stretch(load, requests, replication)

    def _stretch(self, load: float, requests: int, replication: int) -> Workload:
        trace = self.recorded
        count = min(requests, len(trace))
        first = (len(trace) - count) * replication // max(1, self._plan.search.seeds - 1)
        rows = slice(first, first + count)
        arrivals = trace.arrival_ns[rows] - trace.arrival_ns[first]
        cut = Workload(arrivals, trace.input_tokens[rows], trace.output_tokens[rows])
        factor = _rate(cut) / load
        return replace(cut, arrival_ns=np.rint(arrivals * factor).astype(np.int64))

    def scaled(self, load: float | None) -> Workload:
        """The whole trace, squeezed or stretched to ``load``, or at its own."""
        whole = self.recorded
        if load is None:
            return whole
        arrivals = np.rint(whole.arrival_ns * (_rate(whole) / load)).astype(np.int64)
        return replace(whole, arrival_ns=arrivals)


def _rate(workload: Workload) -> float:
    span_s = (workload.arrival_ns[-1] - workload.arrival_ns[0]) / NS_PER_S
    if not span_s:
        raise BadInput("workload.trace: all requests of a stretch arrive at once: no rate to scale")
    return float((len(workload) - 1) / span_s)


class Builder:
    """Makes jobs of candidates. Scenarios are validated once, SKUs looked up once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.source = Source(plan)
        self._setups: dict[tuple[Candidate, str], RunSetup] = {}

    def job(self, candidate: Candidate, load: float, replication: int) -> Job:
        """A probe. Raises BadInput for a candidate that cannot be run at all."""
        requests = self.plan.search.requests * len(candidate.gpus)
        return self.job_of(candidate, self.source.at(load, requests, replication), replication)

    def job_of(self, candidate: Candidate, workload: Workload, replication: int) -> Job:
        """A run of a candidate on a workload."""
        replicas = tuple(
            replace(self.setup(candidate, gpu), workload=workload, seed=self._seed(replication))
            for gpu in candidate.gpus
        )
        router = self.plan.router
        fleet = FleetSetup(replicas, router.policy, router.sessions, _weights(replicas))
        return Job(fleet, objectives_of(self.plan))

    def check(self, candidate: Candidate) -> None:
        """Raise BadInput for a candidate that some request of the plan could never run on."""
        for replication in range(self.plan.search.seeds):
            workload = self.source.at(1.0, FLEET_REQUESTS_MAX, replication)
            for gpu in candidate.gpus:
                check_servable(replace(self.setup(candidate, gpu), workload=workload))

    def setup(self, candidate: Candidate, gpu: str) -> RunSetup:
        """A replica of the candidate on one of its GPUs, with a stand-in for the workload."""
        found = self._setups.get((candidate, gpu))
        if found is None:
            found = self._setups[candidate, gpu] = self._resolved(candidate, gpu)
        return found

    def start(self, candidate: Candidate) -> float:
        """Where to begin a search: the load at which the batch would be full, by the GPU alone."""
        lengths = self.source.at(1.0, self.plan.search.requests, 0)
        return sum(_full_load(self.setup(candidate, gpu), lengths) for gpu in candidate.gpus)

    def alone(self, candidate: Candidate) -> float:
        """A load at which requests do not meet: a tenth of what one at a time would be, req/s."""
        lengths = self.source.at(1.0, self.plan.search.requests, 0)
        setup = self.setup(candidate, candidate.gpus[0])
        timing = step_time(setup)
        tokens = float(lengths.output_tokens.mean())
        inputs = int(lengths.input_tokens.mean())
        lasts_ns: float = timing.prefill_ns(inputs, inputs * inputs // 2)
        lasts_ns += tokens * float(timing.decode_ns(1, inputs, 1)[0])
        return 0.1 * NS_PER_S / lasts_ns

    def _seed(self, replication: int) -> int:
        return self.plan.seed + replication

    def _resolved(self, candidate: Candidate, gpu: str) -> RunSetup:
        scenario = scenario_of(self.plan, candidate, gpu)
        condition = scenario.conditions[0]
        one = np.ones(1, dtype=np.int64)
        stand_in = Workload(one, one, one)
        return resolve(
            scenario,
            stand_in,
            system=candidate.system,
            condition=condition,
            label=candidate.label,
        )


def scenario_of(plan: Plan, candidate: Candidate, gpu: str) -> Scenario:
    """The scenario that a replica of the candidate runs. Raises ScenarioError."""
    shared = plan.model_dump(mode="json", by_alias=True, exclude_none=True)
    kept = ("title", "question", "seed", "workload", "engine", "ring", "front_end", "control_plane")
    document: dict[str, Any] = {"schema": 1, **{name: shared[name] for name in kept}}
    hardware = dict(shared["hardware"])
    del hardware["replicas_per_dpu"]
    neighbours = plan.neighbours.get(candidate.neighbours, ())
    placement = plan.placements.get(candidate.placement)
    document |= {
        "systems": [candidate.system],
        "model": candidate.model,
        "hardware": {**hardware, "gpu": gpu},
        "conditions": ["interfered" if neighbours else "isolated"],
        "interference": {
            "neighbours": [each.model_dump() for each in neighbours],
            **(placement.model_dump(exclude_none=True) if placement else {}),
        },
    }
    variant = plan.variants.get(candidate.variant, {})
    set_all(document, [(parse_key(key), value) for key, value in variant.items()])
    return parse_scenario(document, f"candidate {candidate.label}")


def objectives_of(plan: Plan) -> Objectives:
    """The limits that a request must keep to count for goodput_fraction."""
    if plan.slo.goodput_fraction is None:
        return Objectives()
    limits = {name: list(plan.slo.limits(name).values()) for name in LATENCIES}
    return Objectives(**{name: each[0] if each else None for name, each in limits.items()})


def _full_load(setup: RunSetup, lengths: Workload) -> float:
    """Requests/s of a full batch: each takes its prefill, and its share of every decode step."""
    timing = step_time(setup)
    inputs, outputs = float(lengths.input_tokens.mean()), float(lengths.output_tokens.mean())
    context = inputs + outputs / 2
    held = setup.kv_blocks_total * setup.kv_block_tokens / (inputs + outputs)
    batch = max(1, min(setup.limits.batch_max, int(held), len(lengths)))
    step_ns = float(timing.decode_ns(batch, int(batch * context), 1)[0])
    prefill_ns = timing.prefill_ns(int(inputs), int(inputs * inputs / 2))
    return NS_PER_S / (prefill_ns + outputs * step_ns / batch)


def _weights(replicas: tuple[RunSetup, ...]) -> tuple[float, ...]:
    """Shares by memory bandwidth, which decoding is bound by; none for replicas that are alike."""
    speeds = [each.gpu.memory_bandwidth_bytes_s for each in replicas]
    return () if len(set(speeds)) == 1 else tuple(speed / max(speeds) for speed in speeds)
