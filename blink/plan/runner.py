"""From scenario files to records and figures: what ``blink run`` does, printing nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from blink import backends
from blink.model.errors import BadInput
from blink.model.metrics import Objectives, summarise
from blink.model.random import stream_of
from blink.model.record import RunRecord
from blink.model.resolve import resolve
from blink.model.scenario import Scenario, Verdict, expand, judge, load_scenario
from blink.model.setup import RunSetup
from blink.model.workload import build_workload
from blink.plan.commit import commit_id
from blink.plan.pages import is_plan


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One system in one condition at one point of a scenario's sweep (``point`` "" without one)."""

    scenario: Scenario
    point: str
    setup: RunSetup


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run: its record, and its figures under their JSON names."""

    planned: PlannedRun
    record: RunRecord
    summary: dict[str, Any]


def load(path: Path, overrides: Sequence[str], seed: int | None = None) -> Scenario:
    """Read a scenario; ``seed`` overrides its own. Raises ScenarioError."""
    if is_plan(path):
        raise BadInput(f"{path} is a plan, not a scenario: blink plan {path}")
    seeded = [*overrides, f"seed={seed}"] if seed is not None else overrides
    return load_scenario(path, seeded)


def plan_runs(scenario: Scenario) -> list[PlannedRun]:
    """All runs of a scenario: points, then systems, then conditions. Builds each workload once.

    Raises BadInput for whatever cannot be run: it is found before anything has run.
    """
    runs: list[PlannedRun] = []
    for point in expand(scenario):
        streams = stream_of(point.scenario.seed)
        workload = build_workload(point.scenario.workload, streams)
        for system in point.scenario.systems:
            for condition in point.scenario.conditions:
                label = " ".join(part for part in (system, point.label, condition) if part)
                setup = resolve(
                    point.scenario, workload, system=system, condition=condition, label=label
                )
                runs.append(PlannedRun(point.scenario, point.label, setup))
    return runs


def execute(
    runs: Sequence[PlannedRun],
    backend: backends.Backend,
    *,
    progress: Callable[[PlannedRun, int], None] = lambda run, ended: None,
) -> Iterator[Result]:
    """Run each of ``runs`` on ``backend``; ``progress(run, ended)`` as its requests end."""
    commit = commit_id()
    for run in runs:
        record = backend.run(run.setup, commit=commit, progress=partial(progress, run))
        yield Result(run, record, summary_of(run, record))


def summary_of(run: PlannedRun, record: RunRecord) -> dict[str, Any]:
    """The figures of one run, its sweep point and its counters beside them."""
    slo = run.scenario.slo
    objectives = Objectives(slo.ttft_ms, slo.tpot_ms, slo.itl_ms, slo.e2e_ms)
    summary = summarise(record, objectives)
    summary["point"] = run.point
    summary["counters"] = record.counters
    if "extrapolated" in record.assumptions:
        summary["extrapolated"] = record.assumptions["extrapolated"]
    return summary


def verdicts(scenario: Scenario, results: Sequence[Result], backend: Any) -> list[Verdict]:
    """Hold the figures against the scenario's expectations for the backend's clock."""
    return judge(scenario.expect, [result.summary for result in results], backend.clock)
