"""A fitted profile: constants of the twin that were fitted to observed runs, as JSON.

``blink calibrate`` writes one; ``[hardware] profile = "FILE.json"`` puts it under a run. It holds
each constant with its interval and what it was before, the constants that the runs could not
identify, every run with what is left of its errors, and the range in which all this may be
believed (:mod:`blink.model.calibrated_range`). A constant's name says where it goes:

* ``engine.*``: a field of :class:`blink.model.timing.EngineEfficiency`
* ``plane.*``: a field of :class:`blink.model.control_plane.ControlPlane`
* ``gpu.*``, ``dpu.*``: a field of that SKU
* ``interference.*``: a factor of :class:`blink.model.interference.Interference`
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from blink.model import hardware
from blink.model.calibrated_range import CalibratedRange, Coverage, condition_of, coverage
from blink.model.control_plane import ControlPlane
from blink.model.errors import BadInput, is_file
from blink.model.hardware import DpuSku, GpuSku
from blink.model.json_file import laid_out, parse, read_text
from blink.model.provenance import Constant
from blink.model.scenario.base import Section
from blink.model.setup import RunSetup, engine_efficiency
from blink.model.timing import EngineEfficiency

Text = Annotated[str, Field(min_length=1)]
KIND: Final = "fitted"
OWNERS: Final[dict[str, Any]] = {
    "engine": EngineEfficiency,
    "plane": ControlPlane,
    "gpu": GpuSku,
    "dpu": DpuSku,
}
FACTORS: Final = {
    "queue_factor": "what neighbours add to a thread's wait for a core",
    "memory_factor": "what neighbours add to a thread's own work",
}


class FittedConstant(Section):
    """One constant, its 95 % interval, and what it was before the fit.

    ``method`` says where the interval comes from; ``seen_in`` names the figures that tell most.
    """

    value: Annotated[float, Field(gt=0, le=1e15)]
    low: Annotated[float, Field(ge=0, le=1e18)]
    high: Annotated[float, Field(gt=0, le=1e18)]
    before: Annotated[float, Field(gt=0, le=1e15)]
    unit: Text
    method: Text
    seen_in: tuple[str, ...] = ()


class Figure(Section):
    """One figure of a run; ``error`` is predicted / measured - 1, ``held_out`` the same without it.

    ``held_out``: with constants fitted to the other runs only; None if there is no other.
    """

    measured: Annotated[float, Field(gt=0)]
    predicted: float | None
    error: float | None
    held_out: float | None = None


class ObservedRun(Section):
    """One run that was fitted to: which file's, and what is left of its errors by metric."""

    run: Text
    condition: Text
    file: Text
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    date: str | None = None
    requests: Annotated[int, Field(ge=1)]
    identifies: tuple[str, ...] = ()
    figures: dict[str, Figure]
    notes: tuple[str, ...] = ()


class FittedProfile(Section):
    """The whole file. ``range`` is where the constants may be believed."""

    schema_version: Literal[1] = Field(alias="schema")
    kind: Literal["fitted"]
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    date: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    commit: Text
    command: Text
    gpu: Text
    model: Text
    system: Text
    constants: Annotated[dict[str, FittedConstant], Field(min_length=1)]
    not_fitted: dict[str, Text]
    held_out_by: str | None = None
    range: CalibratedRange
    runs: Annotated[tuple[ObservedRun, ...], Field(min_length=1)]

    @property
    def origin(self) -> str:
        """For the source of a constant."""
        return f"profile {self.name}, fitted on {self.date}"

    def text(self) -> str:
        """The file's text: keys as declared, None left out, a row a line."""
        return laid_out(self.model_dump(mode="json", by_alias=True, exclude_none=True)) + "\n"


def find(name: str) -> FittedProfile | None:
    """The fitted profile in the file of that name; None if it is no fitted profile.

    Raises BadInput for a file that cannot be read, or that says it is one and is not.
    """
    text = read_text(Path(name)) if name.endswith(".json") else ""
    if not _says_so(text):
        return None
    found = parse(FittedProfile, name, text)
    _check(found, name)
    return found


def is_fitted(name: str) -> bool:
    """Whether a file of that name, if it is still there, says that it is a fitted profile."""
    return name.endswith(".json") and is_file(Path(name)) and _says_so(read_text(Path(name)))


def _says_so(text: str) -> bool:
    try:
        document = json.loads(text)
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("kind") == KIND


def apply(setup: RunSetup, fitted: FittedProfile) -> RunSetup:
    """``setup`` with the fitted constants, if it is a run of the system that they were fitted to.

    A run of another system keeps the catalogue's constants and is flagged, and so is another
    model's, whose steps nobody observed. Raises BadInput if the run has another GPU.
    """
    if hardware.gpu(fitted.gpu).name != setup.gpu.name:
        raise BadInput(
            f"hardware.profile: {fitted.name} was fitted on {fitted.gpu}, hardware.gpu is "
            f"{setup.gpu.name}: set hardware.gpu={fitted.gpu}"
        )
    if setup.system != fitted.system:
        reason = f"system {setup.system}: {fitted.name} was fitted to {fitted.system} only"
        return replace(setup, profile=fitted.name, coverage=Coverage(None, (reason,)))
    values = {name: each.value for name, each in fitted.constants.items()}
    made = with_constants(setup, values, fitted.origin)
    if setup.llm.name != fitted.model:
        reason = f"model {setup.llm.name}: {fitted.name} was fitted to {fitted.model} only"
        return replace(made, profile=fitted.name, coverage=Coverage(None, (reason,)))
    condition = condition_of(setup.host.name, setup.interference)
    covered = coverage(fitted.range, condition, setup.workload.arrival_ns)
    return replace(made, profile=fitted.name, coverage=covered)


def constant_of(setup: RunSetup, name: str) -> tuple[float, str]:
    """What a constant is in ``setup``, and its unit."""
    part, _, field = name.partition(".")
    if part == "interference":
        return float(getattr(setup.interference, field)), "ratio"
    owner = _owner(setup, part)
    return float(getattr(owner, field)), owner.provenance[field].unit


def with_constants(setup: RunSetup, values: Mapping[str, float], source: str) -> RunSetup:
    """``setup`` with those constants, whole ns where they are whole, each with ``source``."""
    parts: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        part, _, field = name.partition(".")
        parts.setdefault(part, {})[field] = value
    changes: dict[str, Any] = {
        {"engine": "efficiency"}.get(part, part): _replaced(_owner(setup, part), found, source)
        for part, found in parts.items()
        if part != "interference"
    }
    if "interference" in parts:
        factors: dict[str, Any] = dict(parts["interference"])
        changes["interference"] = replace(setup.interference, **factors)
    return replace(setup, **changes)


def _owner(setup: RunSetup, part: str) -> Any:
    return engine_efficiency(setup) if part == "engine" else getattr(setup, part)


def _replaced(owner: Any, found: Mapping[str, float], source: str) -> Any:
    values: dict[str, float] = {}
    said: dict[str, Constant] = dict(owner.provenance)
    for name, value in found.items():
        values[name] = round(value) if isinstance(getattr(owner, name), int) else float(value)
        said[name] = Constant(values[name], said[name].unit, source)
    return replace(owner, provenance=MappingProxyType(said), **values)


def _check(fitted: FittedProfile, where: str) -> None:
    """Raise BadInput for a constant that the twin has not."""
    for name in fitted.constants:
        part, _, field = name.partition(".")
        known = part in OWNERS and field in {
            each.name for each in fields(OWNERS[part]) if each.type in ("int", "float")
        }
        if not known and not (part == "interference" and field in FACTORS):
            raise BadInput(f"{where}: constants.{name}: the twin has no such constant")
