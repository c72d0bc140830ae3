"""A hardware profile: what one machine measured of itself, as JSON that the twin loads by name.

``lookup("h200")`` reads ``data/profiles/h200.json``; a path ending in ``.json`` is read as it is.
``blink validate --profile-out`` writes one. It holds the machine and its clocks, what single things
cost (:data:`MICROBENCHMARKS`), what control costs around a step, step times by shape, and the runs
behind them with their figures and the error bands that the twin's prediction must hold.
``blink.model.calibration`` puts it under a run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypedDict

import numpy as np
import numpy.typing as npt
from pydantic import Field, StringConstraints, model_validator

from blink.model.errors import BadInput, UnknownName
from blink.model.json_file import laid_out, parse, read_text
from blink.model.scenario.base import Count, Section, conflict

MICROBENCHMARKS: Final = {
    "launch_call_ns": "a fire-and-forget launch from the device: the call alone",
    "launch_to_seen_ns": "that launch, of an empty graph, until the scheduler sees it complete",
    "tail_ns": "end of one instance of the scheduler to the start of the next",
    "scan_ns": "one pass over 4096 slots",
    "claim_ns": "claiming the prompt of one slot",
    "claim_to_launch_ns": "a prompt claimed until its graph is launched",
    "host_launch_ns": "launch of a graph by the host, until the host knows that it is over",
    "write_visible_ns": "64 B and their flag posted by the front end until the GPU sees them",
    "read_metadata_ns": "a bulk read of the ring's metadata, 64 KiB, posted to completed",
}
"""What every profile has measured; it may have more."""


class Timing(TypedDict):
    """Durations of one thing, measured ``count`` times, ns."""

    p50: float
    p99: float
    mean: float
    count: int


def timing_of(values_ns: npt.ArrayLike) -> Timing | None:
    """Sum up measured durations, ns; None if there is none."""
    values = np.asarray(values_ns, dtype=np.float64)
    if not len(values):
        return None
    p50, p99 = (float(each) for each in np.quantile(values, [0.5, 0.99]))
    return {"p50": p50, "p99": p99, "mean": float(values.mean()), "count": len(values)}


Duration = Annotated[float, Field(ge=0, le=1e12)]
"""ns, up to a quarter of an hour."""
Tokens = Annotated[int, Field(ge=0, le=1_000_000_000)]
Text = Annotated[str, Field(min_length=1)]


class Spread(Section):
    """A :class:`Timing` in a file."""

    p50: Duration
    p99: Duration
    mean: Duration
    count: Annotated[int, Field(ge=1)]


class Control(Section):
    """What a system's control plane took around its steps and requests, ns.

    ``to_start_ns`` from the launch of a decode step to the GPU's work, ``to_next_ns`` from its end
    to the next launch, ``prefill_to_start_ns`` as the first for a prefill; ``submit_ns`` from a
    request's arrival until the front end submitted it, ``pickup_ns`` from there until an idle
    scheduler took it up; ``deliver_ns`` from a step's end until its tokens were with their clients.
    None: there was no such thing.
    """

    to_start_ns: Spread | None = None
    to_next_ns: Spread | None = None
    prefill_to_start_ns: Spread | None = None
    submit_ns: Spread | None = None
    pickup_ns: Spread | None = None
    deliver_ns: Spread | None = None


class DecodeRow(Section):
    """``ns`` of the GPU for a decode graph of ``batch`` rows, ``context_tokens`` in all of them."""

    batch: Count
    context_tokens: Tokens
    ns: Annotated[float, Field(gt=0, le=1e12)]
    count: Count = 1


class PrefillRow(Section):
    """``ns`` of the GPU for ``batch`` prompts of ``tokens`` in all, padding included."""

    batch: Count
    tokens: Count
    ns: Annotated[float, Field(gt=0, le=1e12)]
    count: Count = 1


class Steps(Section):
    """Measured step times of one model under one engine, as one system launched it."""

    system: Text
    model: Text
    engine: Literal["null", "torch", "tensorrt"]
    decode: tuple[DecodeRow, ...] = ()
    prefill: tuple[PrefillRow, ...] = ()


class Requests(Section):
    """The requests of a run that are not those that its scenario draws; one entry a request."""

    arrival_ns: Annotated[tuple[Annotated[int, Field(ge=0, lt=1 << 62)], ...], Field(min_length=1)]
    input_tokens: tuple[Count, ...]
    output_tokens: tuple[Count, ...]

    def arrays(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Arrivals in ns, input and output tokens; int64 of shape (requests,)."""
        arrival, inputs, outputs = (
            np.array(each, dtype=np.int64)
            for each in (self.arrival_ns, self.input_tokens, self.output_tokens)
        )
        return arrival, inputs, outputs

    @model_validator(mode="after")
    def _alike(self) -> Self:
        if len({len(self.arrival_ns), len(self.input_tokens), len(self.output_tokens)}) > 1:
            raise conflict("arrival_ns, input_tokens and output_tokens differ in length")
        if any(later < earlier for earlier, later in pairwise(self.arrival_ns)):
            raise conflict("arrival_ns goes back in time")
        return self


class RecordedRun(Section):
    """One run: of which scenario, what was measured, and how near the twin's prediction must be.

    ``settings`` are what ``--set`` replaced, ``bands`` the largest size of relative error by
    metric; both name metrics as ``blink run --json`` does.
    """

    spec: Text
    settings: tuple[str, ...] = ()
    system: Text
    condition: Text = "isolated"
    point: str = ""
    requests: Requests | None = None
    metrics: Annotated[dict[str, Annotated[float, Field(ge=0)]], Field(min_length=1)]
    bands: dict[str, Annotated[float, Field(gt=0)]] = Field(default={})

    @model_validator(mode="after")
    def _measured(self) -> Self:
        for name in self.bands:
            if name not in self.metrics:
                raise conflict(f"bands has {name}, which metrics lacks")
        return self


class Profile(Section):
    """The whole file. ``gpu`` is the device's own name, ``clocks_mhz`` its clocks under load."""

    schema_version: Literal[1] = Field(alias="schema")
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    date: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    gpu: Text
    driver: Text
    cuda: Text
    clocks_mhz: dict[str, int]
    commit: Text
    command: Text
    microbenchmarks: dict[str, Spread]
    control: dict[str, Control] = Field(default={})
    steps: tuple[Steps, ...] = ()
    runs: tuple[RecordedRun, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for name in MICROBENCHMARKS:
            if name not in self.microbenchmarks:
                raise conflict(f"microbenchmarks.{name}: missing")
        return self

    @property
    def origin(self) -> str:
        """For the source of a constant."""
        return f"measured on {self.gpu}, {self.date}: profile {self.name}"

    def steps_of(self, system: str, model: str, engine: str) -> Steps | None:
        """The step times of that model under that engine in that system, if they were measured."""
        wanted = (system, model, engine)
        found = (each for each in self.steps if (each.system, each.model, each.engine) == wanted)
        return next(found, None)

    def text(self) -> str:
        """The file's text: keys as declared, None left out, a row a line."""
        return laid_out(self.model_dump(mode="json", by_alias=True, exclude_none=True), "") + "\n"


def names() -> list[str]:
    """The profiles that come with this package, in order."""
    folder = resources.files("blink.model") / "data" / "profiles"
    found = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    return sorted(name.removesuffix(".json") for name in found if name.endswith(".json"))


def lookup(name: str) -> Profile:
    """The profile of that name, or at that path if it ends in ``.json``.

    Raises UnknownName with those that there are, BadInput for a file that is none.
    """
    if name.endswith(".json"):
        return read(Path(name))
    if name not in names():
        raise UnknownName("hardware profile", name, names() or ["none yet"])
    path = resources.files("blink.model") / "data" / "profiles" / f"{name}.json"
    return parse(Profile, f"profile {name}", path.read_text(encoding="utf-8"))


def read(path: Path) -> Profile:
    """The profile in that file. Raises BadInput with one line for each bad field."""
    return parse(Profile, path, read_text(path))


def of(document: Mapping[str, Any]) -> Profile:
    """The profile that ``document`` describes. Raises BadInput for a bad field."""
    try:
        text = json.dumps(document, allow_nan=False)
    except ValueError as error:
        raise BadInput(f"profile: {error}") from None
    return parse(Profile, "profile", text)
