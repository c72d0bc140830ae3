"""What a scenario expects: `[expect]`. Invariants hold everywhere; timing names its clock.

Every timing expectation is about figures of `blink run --json`, by their path ("ttft_ms.p99") and,
for a count that the summary leaves out, "counters.NAME" or "outcomes.NAME" (absent means 0).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self, get_args

from pydantic import Field, StringConstraints, model_validator

from blink.model.scenario.base import NonNegative, Positive, Section, conflict, sequence

System = Literal["blink", "host_resident", "trtllm", "vllm", "vllm-0.13", "sglang"]
Condition = Literal["isolated", "interfered"]
Clock = Literal["virtual", "wall"]
Invariant = Literal[
    "CONSERVE",
    "SLOT",
    "OWNER",
    "WINDOW",
    "CAUSAL",
    "CLOCK",
    "ORDER",
    "KV",
    "DETERMINISM",
    "ORACLE",
    "WORK",
    "HOST-SILENT",
]
INVARIANTS: Final[tuple[Invariant, ...]] = get_args(Invariant)

_LATENCY = r"(?:ttft|tpot|itl|e2e)_ms\.(?:mean|p50|p95|p99|p999)"
_LESS_IS_BETTER = rf"{_LATENCY}|makespan_s|energy_mj_per_tok|host_cpu_on_token_path_s"
_MORE_IS_BETTER = r"throughput_req_s|output_tok_s|total_tok_s|goodput_req_s|completed"
_COUNT = r"requests|(?:outcomes|counters)\.[a-z0-9_]+"

Comparable = Annotated[
    str, StringConstraints(pattern=rf"^(?:{_LESS_IS_BETTER}|{_MORE_IS_BETTER})$")
]
"""A figure of which it is clear whether less or more of it is better."""

Metric = Annotated[
    str, StringConstraints(pattern=rf"^(?:{_LESS_IS_BETTER}|{_MORE_IS_BETTER}|{_COUNT})$")
]

MORE_IS_BETTER: Final = frozenset(_MORE_IS_BETTER.split("|"))


class _Timing(Section):
    clock: Clock = "virtual"
    over: Literal["each", "geomean"] = "each"
    """Of a sweep: hold at each of its points, or for the geometric mean over them."""


class Compare(_Timing):
    """How much better one system is than another: ratio_min <= ratio <= ratio_max.

    The ratio is worse/better where less is better (latency, energy), better/worse where more is.
    """

    metric: Comparable
    better: System
    worse: System
    condition: Condition = "isolated"
    ratio_min: Positive = 1.0
    ratio_max: Positive | None = None

    @model_validator(mode="after")
    def _sane(self) -> Self:
        if self.better == self.worse:
            raise conflict(f'"{self.better}" is compared with itself')
        if self.ratio_max is not None and self.ratio_max < self.ratio_min:
            raise conflict("ratio_max is below ratio_min")
        return self


class Inflation(_Timing):
    """How a system's figure changes next to neighbours: interfered over isolated."""

    metric: Comparable
    system: System
    ratio_min: NonNegative = 0.0
    ratio_max: Positive | None = None

    @model_validator(mode="after")
    def _sane(self) -> Self:
        if self.ratio_max is not None and self.ratio_max < self.ratio_min:
            raise conflict("ratio_max is below ratio_min")
        return self


class Bound(_Timing):
    """One figure of one system lies between `min` and `max`, both included."""

    metric: Metric
    system: System
    condition: Condition = "isolated"
    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _sane(self) -> Self:
        if self.min is None and self.max is None:
            raise conflict('needs "min" or "max"')
        if self.min is not None and self.max is not None and self.max < self.min:
            raise conflict("max is below min")
        return self


class Trend(Section):
    """A figure of one system falls, or rises, from each point of a sweep to the next."""

    clock: Clock = "virtual"
    metric: Metric
    system: System
    condition: Condition = "isolated"
    direction: Literal["falls", "rises"]


class Expect(Section):
    """`[expect]`: invariants on every backend, and timing on the clock that it names."""

    invariants: Annotated[tuple[Invariant, ...], sequence] = Field(default=INVARIANTS)
    compare: Annotated[tuple[Compare, ...], sequence] = ()
    inflation: Annotated[tuple[Inflation, ...], sequence] = ()
    bound: Annotated[tuple[Bound, ...], sequence] = ()
    trend: Annotated[tuple[Trend, ...], sequence] = ()
