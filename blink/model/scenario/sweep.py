"""A sweep becomes its points: `[sweep]` a grid, `[[points]]` a list, together their product."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from blink.model.errors import Problem, ScenarioError
from blink.model.scenario.dump import resolved
from blink.model.scenario.locate import Path
from blink.model.scenario.overrides import parse_key, set_all
from blink.model.scenario.problems import Found, to_problems, validate
from blink.model.scenario.schema import Scalar, Scenario


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One point: `scenario` has the settings in place and sweeps no more.

    label: "" for a scenario without a sweep, else such as "workload.rate=7" or the point's own.
    """

    label: str
    settings: dict[str, Scalar]
    scenario: Scenario


def expand(scenario: Scenario) -> tuple[SweepPoint, ...]:
    """All points of a scenario in order, at least one; the grid's last key varies fastest.

    Raises ScenarioError for settings that are wrong only together.
    """
    if not scenario.sweep and not scenario.points:
        return (SweepPoint("", {}, scenario),)
    base = resolved(scenario)
    grid, listed = base.pop("sweep"), base.pop("points") or [{"set": {}}]
    return tuple(_point(base, label, settings) for label, settings in _combinations(grid, listed))


def _combinations(
    grid: dict[str, list[Scalar]], listed: list[dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Scalar]]]:
    for point in listed:
        for values in product(*grid.values()):
            chosen = dict(zip(grid, values, strict=True))
            parts = [point["label"]] if point.get("label") else _texts(point["set"])
            yield ", ".join([*parts, *_texts(chosen)]), {**point["set"], **chosen}


def _texts(settings: dict[str, Scalar]) -> list[str]:
    return [
        f"{key}={value:g}" if _is_number(value) else f"{key}={value}"
        for key, value in settings.items()
    ]


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _point(base: dict[str, Any], label: str, settings: dict[str, Scalar]) -> SweepPoint:
    document = copy.deepcopy(base)
    try:
        set_all(document, [(parse_key(key), value) for key, value in settings.items()])
    except ValueError as error:
        raise ScenarioError([Problem(label, "", str(error))]) from error
    scenario, found = validate(document)
    if scenario is None:
        raise ScenarioError(to_problems(found, lambda path: label))
    return SweepPoint(label, settings, scenario)


def sweep_problems(document: dict[str, Any], known: Found) -> Found:
    """What is wrong with single settings of a sweep, by the sweep's own keys; `known` left out."""
    found: Found = {}
    for path, key, value in _settings(document):
        trial = {name: part for name, part in document.items() if name not in ("sweep", "points")}
        trial = copy.deepcopy(trial)
        try:
            set_all(trial, [(parse_key(key), value)])
        except ValueError as error:
            found.setdefault(path, str(error))
            continue
        for where, message in validate(trial)[1].items():
            if known.get(where) != message:
                found.setdefault(path, f"{key} = {value}: {message}")
    return found


def _settings(document: dict[str, Any]) -> Iterator[tuple[Path, str, Any]]:
    sweep, points = document.get("sweep"), document.get("points")
    for key, values in sweep.items() if isinstance(sweep, dict) else ():
        for index, value in enumerate(values if isinstance(values, list) else ()):
            yield ("sweep", key, index), key, value
    for place, point in enumerate(points if isinstance(points, list) else ()):
        settings = point.get("set") if isinstance(point, dict) else None
        for key, value in settings.items() if isinstance(settings, dict) else ():
            yield ("points", place, "set", key), key, value
