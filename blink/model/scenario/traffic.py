"""What arrives: `[workload]`, when requests come and how long they are."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from blink.model.scenario.base import Count, Positive, Seconds, Section, conflict

TOKENS_MAX = 1 << 24
"""A slot counts its tokens in 24 bits (`ring_protocol.constants.TOKENS_MAX`)."""

THINKING_S_MAX = 1e9

Tokens = Annotated[int, Field(ge=1, lt=TOKENS_MAX)]
Duration = Annotated[Seconds, Field(gt=0)]
Sigma = Annotated[float, Field(ge=0, le=10)]
Variation = Annotated[float, Field(ge=0.001, le=1000)]


class ConstantLengths(Section):
    """Every request alike."""

    kind: Literal["constant"] = "constant"
    input_tokens: Tokens
    output_tokens: Tokens


class LognormalLengths(Section):
    """Log-normal lengths, rounded and clipped, input and output independent.

    The means are those of the distribution before clipping; sigma is that of the logarithm.
    """

    kind: Literal["lognormal"]
    input_tokens_mean: Positive
    input_sigma: Sigma = 1.0
    input_tokens_min: Tokens = 1
    input_tokens_max: Tokens = 8192
    output_tokens_mean: Positive
    output_sigma: Sigma = 1.0
    output_tokens_min: Tokens = 1
    output_tokens_max: Tokens = 8192

    @model_validator(mode="after")
    def _ranges(self) -> Self:
        if self.input_tokens_min > self.input_tokens_max:
            raise conflict("input_tokens_min is above input_tokens_max")
        if self.output_tokens_min > self.output_tokens_max:
            raise conflict("output_tokens_min is above output_tokens_max")
        return self


class TableLengths(Section):
    """Lengths drawn from a quantile table of `model/data/lengths.toml`.

    The table's rank correlation between input and output is kept. Longer draws are clipped to
    the maxima.
    """

    kind: Literal["table"]
    table: str
    input_tokens_max: Tokens = TOKENS_MAX - 1
    output_tokens_max: Tokens = TOKENS_MAX - 1


Lengths = Annotated[
    ConstantLengths | LognormalLengths | TableLengths,
    Field(discriminator="kind"),
]


class SharedPrefix(Section):
    """Every prompt begins with one of `count` texts of `tokens` tokens, drawn uniformly.

    They come before the prompts that `lengths` describes, and are all that prompts share.
    """

    tokens: Tokens
    count: Count = 1


class _Generated(Section):
    """A synthetic workload ends after `requests` or `duration_s`, whichever comes first."""

    requests: Count | None = None
    duration_s: Duration | None = None
    lengths: Lengths
    shared_prefix: SharedPrefix | None = None

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.requests is None and self.duration_s is None:
            raise conflict('needs "requests" or "duration_s", or it never ends')
        return self


class PoissonWorkload(_Generated):
    """Independent arrivals: exponential gaps of mean 1/rate."""

    kind: Literal["poisson"]
    rate: Positive = Field(description="requests a second")


class ConstantWorkload(_Generated):
    """Equal gaps of 1/rate; the first request arrives at 0."""

    kind: Literal["constant"]
    rate: Positive = Field(description="requests a second")


class BurstsWorkload(_Generated):
    """Arrivals burstier, or calmer, than Poisson. Exactly one shape must be given.

    cv: gamma gaps with this coefficient of variation (1 is Poisson, 0.5 calmer, 3 bursty).
    on_s and off_s: Poisson for on_s, silence for off_s, again and again; `rate` is the mean over
        both.
    table: independent gaps from a quantile table of `model/data/lengths.toml`, scaled to `rate`.
    """

    kind: Literal["bursts"]
    rate: Positive = Field(description="requests a second, averaged over bursts and pauses")
    cv: Variation | None = None
    on_s: Duration | None = None
    off_s: Duration | None = None
    table: str | None = None

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        if (self.on_s is None) != (self.off_s is None):
            raise conflict('"on_s" and "off_s" belong together')
        shapes = [self.cv is not None, self.on_s is not None, self.table is not None]
        if sum(shapes) != 1:
            raise conflict('needs exactly one of "cv", "on_s" with "off_s", or "table"')
        return self


class ClosedLoopWorkload(Section):
    """`clients` callers, each sending its next request `think_s` after the last one ended."""

    kind: Literal["closed_loop"]
    clients: Count
    think_s: Seconds = 0.0
    requests: Count
    lengths: Lengths
    shared_prefix: SharedPrefix | None = None

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.think_s * self.requests / self.clients > THINKING_S_MAX:
            raise conflict(f"think_s adds up to more than {THINKING_S_MAX:g} s")
        return self


class TraceWorkload(Section):
    """Requests of a file, in its order; the format is recognised.

    Requests longer than `input_tokens_max` or `output_tokens_max` are left out. Then comes the
    slice, in the trace's own time: arrivals in [start_s, start_s + duration_s), and of those at
    most `requests`. What is left is scaled: `rate` to that many requests a
    second on average, or `time_scale` times as long (0.5 doubles the load).

    arrivals: "recorded" takes the file's; a file without any needs "poisson", "constant" or
        "bursts" (gamma gaps, with `cv`) and a `rate`.
    """

    kind: Literal["trace"] = "trace"
    trace: str = Field(min_length=1, description="path; relative to the scenario's folder")
    requests: Count | None = None
    start_s: Seconds = 0.0
    duration_s: Duration | None = None
    arrivals: Literal["recorded", "poisson", "constant", "bursts"] = "recorded"
    rate: Positive | None = None
    time_scale: Positive | None = None
    cv: Variation | None = None
    input_tokens_max: Tokens = TOKENS_MAX - 1
    output_tokens_max: Tokens = TOKENS_MAX - 1

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.rate is not None and self.time_scale is not None:
            raise conflict('"rate" and "time_scale" both scale the arrivals: give one')
        if self.arrivals != "recorded":
            if self.rate is None:
                raise conflict(f'arrivals = "{self.arrivals}" needs a "rate"')
            if self.start_s or self.duration_s is not None:
                raise conflict('"start_s" and "duration_s" slice recorded arrivals only')
        if (self.arrivals == "bursts") != (self.cv is not None):
            raise conflict('"cv" and arrivals = "bursts" belong together')
        return self


Workload = Annotated[
    PoissonWorkload | ConstantWorkload | BurstsWorkload | ClosedLoopWorkload | TraceWorkload,
    Field(discriminator="kind"),
]
