"""A plan: one page of strict TOML that says what may be bought, for whom, and what must hold.

Its workload, engine, ring, front end and control planes are a scenario's. What differs between
candidates is listed in `[candidates]`; the plan tries every combination.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from blink.model.scenario.base import Count, NonNegative, Positive, Section, conflict, sequence
from blink.model.scenario.expect import System
from blink.model.scenario.schema import (
    Engine,
    FrontEnd,
    Name,
    Neighbour,
    Ring,
    Settings,
)
from blink.model.scenario.traffic import Workload
from blink.model.setup import RouterPolicy

Names = Annotated[tuple[Name, ...], sequence, Field(min_length=1)]
Statistic = Literal["mean", "p50", "p90", "p95", "p99", "p999"]
Limits = Positive | dict[Statistic, Positive]
LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
ORDER: tuple[Statistic, ...] = ("p50", "p90", "p95", "p99", "p999")


NAMED_BY_DEFAULT = {"neighbours": "none", "placements": "shared", "variants": "plain"}
"""Names that candidates may use without the page's defining them: nothing is different there."""


class Slo(Section):
    """`[slo]`: what must hold. A limit is a number, at `percentile`, or a table by statistic.

    TTFT, TPOT and E2E have a value a request, ITL one a gap between chunks.
    """

    percentile: Statistic = "p99"
    ttft_ms: Limits | None = None
    tpot_ms: Limits | None = None
    itl_ms: Limits | None = None
    e2e_ms: Limits | None = None
    goodput_fraction: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="instead of percentiles: this share of requests meets every latency limit",
    )
    served_fraction: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="completions over arrivals; the paper's rule is 0.95"
    )

    @model_validator(mode="after")
    def _sane(self) -> Self:
        stated = [name for name in LATENCIES if getattr(self, name) is not None]
        if not stated and self.served_fraction is None:
            raise conflict("states no objective: give a latency limit or served_fraction")
        if self.goodput_fraction is not None:
            tables = [name for name in stated if isinstance(getattr(self, name), dict)]
            if not stated or tables:
                raise conflict("goodput_fraction needs latency limits that are plain numbers")
        for name in stated:
            _check_order(name, self.limits(name))
        for part in ("ttft_ms", "tpot_ms"):
            _check_parts(part, self.limits(part), self.limits("e2e_ms"))
        return self

    def limits(self, name: str) -> dict[str, float]:
        """The limits of one latency by statistic, ms."""
        found: Limits | None = getattr(self, name)
        if found is None:
            return {}
        by_statistic = found if isinstance(found, dict) else {self.percentile: found}
        return {str(name): limit for name, limit in by_statistic.items()}


def _check_order(name: str, limits: dict[str, float]) -> None:
    """A higher percentile under a lower limit makes the lower percentile's limit idle: a slip."""
    ordered = [(each, limits[each]) for each in ORDER if each in limits]
    for (lower, loose), (higher, tight) in pairwise(ordered):
        if tight < loose:
            raise conflict(
                f"{name}: {higher} <= {tight:g} contradicts {lower} <= {loose:g}: a {lower} is "
                f"never above the {higher}"
            )


def _check_parts(part: str, limits: dict[str, float], whole: dict[str, float]) -> None:
    for statistic, limit in limits.items():
        if statistic in whole and whole[statistic] < limit:
            raise conflict(
                f"e2e_ms {statistic} <= {whole[statistic]:g} contradicts {part} {statistic} <= "
                f"{limit:g}: a request takes longer than its part"
            )


class Candidates(Section):
    """`[candidates]`: every combination of these is a candidate."""

    systems: Annotated[tuple[System, ...], sequence, Field(min_length=1)]
    models: Names
    gpus: Names
    replicas: Annotated[tuple[Count, ...], sequence, Field(min_length=1)] = Field(
        default=(1,), description="servers whose joint capacity is searched; demand sizes them by 1"
    )
    fleets: Annotated[tuple[Names, ...], sequence] = Field(
        default=(), description="further candidates: replicas of several GPUs, [[gpu, gpu], ...]"
    )
    neighbours: Names = Field(default=("none",), description="names of [neighbours], or none")
    placements: Names = Field(default=("shared",), description="names of [placements], or shared")
    variants: Names = Field(default=("plain",), description="names of [variants], or plain")


class Placement(Section):
    """What a replica's host keeps for a CPU-driven server next to neighbours."""

    pinned_cores: Count | None = None
    llc_ways: Count | None = None
    huge_pages: bool = False


class PlanHardware(Section):
    """`[hardware]`: what all candidates share; GPUs are `candidates.gpus`."""

    host: Name = "xeon-6336y-2s"
    dpu: Name = "bluefield3"
    link: Name = "connectx6-200g"
    profile: Name | None = None
    replicas_per_dpu: Count = 1


class Demand(Section):
    """`[demand]`: what the fleet must serve.

    hourly: multiples of `rate` by the hour of a day; the fleet is sized for the highest.
    recorded: serve the trace's own arrivals, scaled to `rate` if that is given, instead of a
        stretch of it.
    """

    rate: Positive | None = Field(default=None, description="requests a second")
    hourly: Annotated[tuple[Positive, ...], sequence] = ()
    recorded: bool = False

    @model_validator(mode="after")
    def _sane(self) -> Self:
        if self.rate is None and not self.recorded:
            raise conflict("needs a rate, or recorded = true for a trace's own")
        if self.hourly and self.recorded:
            raise conflict("hourly and recorded both say when requests come: give one")
        return self


class Search(Section):
    """`[search]`: how hard to look. More seeds and requests: narrower intervals, longer runs."""

    requests: Annotated[int, Field(ge=20, le=1_000_000)] = Field(
        default=600, description="a probe's, for each replica"
    )
    seeds: Annotated[int, Field(ge=1, le=64)] = 3
    tolerance: Annotated[float, Field(ge=0.002, le=0.2)] = Field(
        default=0.03, description="how near the largest load that meets and the next that does not"
    )


class Router(Section):
    """`[router]`: how requests find their replica."""

    policy: RouterPolicy = "least_loaded"
    sessions: Count = 1000


class Prices(Section):
    """`[prices]`: by the hour, in `currency`. A candidate with a part without a price has none."""

    currency: Name = "USD"
    gpu_hour: dict[Name, Positive]
    host_core_hour: NonNegative = Field(description="of a core that is reserved, or kept busy")
    dpu_hour: NonNegative = 0.0
    kwh: NonNegative = 0.0


class Sensitivity(Section):
    """`[sensitivity]`: one setting varies at a fixed load; where is the SLO lost?"""

    key: Annotated[str, StringConstraints(pattern=r"^[a-z_]+(\.[a-z0-9_-]+)+$")] = Field(
        description="a scenario's dotted key, such as interference.neighbours.0.threads"
    )
    values: Annotated[tuple[float | int, ...], sequence, Field(min_length=2)]
    rate: Positive = Field(description="requests a second of one replica")
    neighbours: Annotated[tuple[Neighbour, ...], sequence] = Field(
        default=(), description="who are next to it while the setting varies"
    )


class Plan(Section):
    """The whole page."""

    schema_version: Literal[1] = Field(
        default=1, alias="schema", description="version of this format"
    )
    title: Name
    question: Annotated[str, StringConstraints(pattern=r"\?$")]
    seed: Annotated[int, Field(ge=0, lt=1 << 62)] = 1
    candidates: Candidates
    workload: Workload
    slo: Slo
    demand: Demand | None = None
    search: Search = Search()
    router: Router = Router()
    hardware: PlanHardware = PlanHardware()
    engine: Engine = Engine()
    ring: Ring = Ring()
    front_end: FrontEnd = FrontEnd()
    control_plane: dict[System, Settings] = Field(default={})
    neighbours: dict[Name, Annotated[tuple[Neighbour, ...], sequence]] = Field(
        default={}, description="sets of neighbours by name"
    )
    placements: dict[Name, Placement] = Field(default={})
    variants: dict[Name, Settings] = Field(
        default={}, description='settings of a scenario by name, such as "engine.batch_max" = 64'
    )
    prices: Prices | None = None
    baseline: System | None = Field(default=None, description="whom the others are compared with")
    sensitivity: Sensitivity | None = None

    @model_validator(mode="after")
    def _names(self) -> Self:
        chosen = self.candidates
        for what, default in (
            ("neighbours", "none"),
            ("placements", "shared"),
            ("variants", "plain"),
        ):
            known: dict[str, Any] = getattr(self, what)
            for name in getattr(chosen, what):
                if name != default and name not in known:
                    raise conflict(
                        f'candidates.{what} names "{name}", which is not one of [{what}]: '
                        f"{', '.join(known) or 'there are none'}"
                    )
        if self.baseline is not None and self.baseline not in chosen.systems:
            raise conflict(f'baseline "{self.baseline}" is not one of candidates.systems')
        if self.workload.kind == "closed_loop":
            raise conflict("a closed loop has no rate to search: take an open workload")
        if self.demand is not None and self.demand.recorded and self.workload.kind != "trace":
            raise conflict("demand.recorded needs a workload of kind trace")
        return self
