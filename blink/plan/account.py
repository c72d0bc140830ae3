"""An account of one run: its result, where its requests' time went, and which of them missed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from blink.model.metrics import Objectives
from blink.plan.critical_path import CriticalPath, critical_path
from blink.plan.misses import Miss, misses
from blink.plan.runner import Result


@dataclass(frozen=True, slots=True)
class Account:
    """What sections of a report are made from."""

    result: Result
    path: CriticalPath
    objectives: Objectives
    missed: list[Miss]

    @classmethod
    def of(cls, result: Result) -> Account:
        """Divide the times of a result, and find its misses."""
        setup = result.planned.setup
        path = critical_path(result.record, setup)
        objectives = objectives_of(result.record.scenario)
        return cls(result, path, objectives, misses(path, setup, objectives))

    @property
    def name(self) -> str:
        """What a reader calls the run."""
        name = self.result.record.label.replace("workload.", "")
        several = len(self.result.planned.scenario.conditions) > 1
        return name if several else name.removesuffix(self.result.record.condition).rstrip()

    @property
    def point(self) -> str:
        """The point of the sweep, "" without one."""
        return self.result.planned.point

    @property
    def quiet(self) -> bool:
        """Whether it ran without neighbours."""
        return self.result.record.condition == "isolated"

    @property
    def share_within(self) -> float:
        """The share of requests that met every objective, 0 to 1."""
        requests = len(self.result.record.requests)
        return 1 - len(self.missed) / requests if requests else 1.0


def objectives_of(scenario: Mapping[str, Any]) -> Objectives:
    """The objectives that a resolved scenario states."""
    slo = scenario.get("slo", {})
    return Objectives(**{each.name: slo.get(each.name) for each in fields(Objectives)})
