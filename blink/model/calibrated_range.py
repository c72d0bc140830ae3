"""Where a fitted profile may be believed: the range of the runs that it was fitted to.

A fit says something about steps and requests like those that it has seen. :func:`coverage`
compares a run that is about to start with the range (its load, its host's condition),
:func:`extrapolation` what the run then did (its steps, its prompts). Whatever lies outside is said
in words, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from blink.model.interference import Interference
from blink.model.record import Int64Array, StepTable
from blink.model.scenario.base import Section, conflict

RATE_SLACK: Final = 1.1
"""Two draws of one Poisson rate differ: a rate counts as observed up to this factor beyond it."""
Number = Annotated[float, Field(ge=0, le=1e15)]


class Span(Section):
    """From ``low`` to ``high``, both inside."""

    low: Number
    high: Number

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise conflict(f"low {self.low:g} is above high {self.high:g}")
        return self

    def outside(self, values: NDArray[np.float64] | Int64Array) -> NDArray[np.bool_]:
        """Which of ``values`` lie outside."""
        found: NDArray[np.bool_] = (values < self.low) | (values > self.high)
        return found

    def __str__(self) -> str:
        return f"{self.low:.4g} to {self.high:.4g}"


class HostCondition(Section):
    """What else ran on the host: threads by kind of neighbour, and what was done against them."""

    host: Annotated[str, Field(min_length=1)]
    neighbours: dict[str, Annotated[int, Field(ge=1)]] = Field(default={})
    pinned_cores: int | None = None
    llc_ways: int | None = None

    def covers(self, other: HostCondition) -> bool:
        """Whether ``other`` is this condition, or the same with fewer threads of each kind."""
        alike = (self.host, self.pinned_cores, self.llc_ways, set(self.neighbours)) == (
            other.host,
            other.pinned_cores,
            other.llc_ways,
            set(other.neighbours),
        )
        return alike and all(
            threads <= self.neighbours[kind] for kind, threads in other.neighbours.items()
        )

    def __str__(self) -> str:
        beside = ", ".join(f"{count} {kind}" for kind, count in self.neighbours.items())
        limits = [f"{self.pinned_cores} pinned cores"] if self.pinned_cores else []
        limits += [f"{self.llc_ways} cache ways"] if self.llc_ways is not None else []
        return ", ".join([self.host, beside or "quiet", *limits])


def condition_of(host: str, interference: Interference) -> HostCondition:
    """The condition of a host with those neighbours; without any nothing else counts."""
    threads: dict[str, int] = {}
    for each in interference.neighbours:
        if each.threads > 0:
            threads[each.kind] = threads.get(each.kind, 0) + each.threads
    if not threads:
        return HostCondition(host=host)
    return HostCondition(
        host=host,
        neighbours=threads,
        pinned_cores=interference.pinned_cores,
        llc_ways=interference.llc_ways,
    )


class CalibratedRange(Section):
    """The range of all runs that a profile was fitted to.

    Of a step: ``batch`` sequences decoded, ``context_tokens`` cached a sequence, in the mean, and
    ``prefill_tokens`` computed beside them. Of a request its ``prompt_tokens``. Of a run its
    ``rate_req_s`` (None: closed loops only), and what its host was doing.
    """

    batch: Span
    context_tokens: Span
    prefill_tokens: Span
    prompt_tokens: Span
    rate_req_s: Span | None
    hosts: Annotated[tuple[HostCondition, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a fitted profile says of one run: its range, and what of the run lies outside anyway.

    ``range`` is None where the profile has no constant for this run at all.
    """

    range: CalibratedRange | None
    outside: tuple[str, ...] = ()


def rate_of(arrival_ns: Int64Array) -> float | None:
    """Requests a second between the first and the last arrival; None if there is no such time."""
    span_ns = int(arrival_ns.max() - arrival_ns.min())
    return (len(arrival_ns) - 1) / span_ns * 1e9 if span_ns else None


def coverage(known: CalibratedRange, condition: HostCondition, arrival_ns: Int64Array) -> Coverage:
    """The range, and in what the run that is to start lies outside of it."""
    outside = []
    rate, observed = rate_of(arrival_ns), known.rate_req_s
    if rate is not None and observed is None:
        outside.append(f"{rate:.3g} req/s: only closed loops were observed")
    elif rate is not None and observed is not None:
        low, high = observed.low / RATE_SLACK, observed.high * RATE_SLACK
        if not low <= rate <= high:
            outside.append(f"{rate:.3g} req/s: observed {observed} req/s")
    if not any(each.covers(condition) for each in known.hosts):
        observed_hosts = "; ".join(str(each) for each in known.hosts)
        outside.append(f"host condition ({condition}): observed ({observed_hosts})")
    return Coverage(known, tuple(outside))


def extrapolation(
    covered: Coverage, steps: StepTable, prompt_tokens: Int64Array
) -> tuple[int, list[str]]:
    """How many of ``steps`` lie outside, and all that does, one line each."""
    known = covered.range
    if known is None:
        return len(steps), list(covered.outside)
    decodes, every = steps.decode_batch > 0, np.ones(len(steps), dtype=np.bool_)
    context = steps.context_tokens / np.maximum(1, steps.decode_batch)
    parts = (
        ("decode more or fewer sequences", "", known.batch, steps.decode_batch, decodes),
        ("decode at another mean context", " tokens", known.context_tokens, context, decodes),
        ("prefill more tokens", " tokens", known.prefill_tokens, steps.prefill_tokens, every),
    )
    outside, lines = np.zeros(len(steps), dtype=np.bool_), []
    for what, unit, span, values, judged in parts:
        where = span.outside(values) & judged
        outside |= where
        if where.any():
            count = f"{int(where.sum())} of {len(steps)} steps"
            lines.append(f"{count} {what}: observed {span}{unit}")
    prompts = int(known.prompt_tokens.outside(prompt_tokens).sum())
    if prompts:
        lines.append(
            f"{prompts} of {len(prompt_tokens)} prompts have another length: observed "
            f"{known.prompt_tokens} tokens"
        )
    return int(outside.sum()), [*covered.outside, *lines]


def range_of(
    runs: Sequence[tuple[StepTable, Int64Array, float | None, HostCondition]],
) -> CalibratedRange:
    """The range of runs: of each its steps, its prompts' tokens, its rate, its host's condition."""
    steps = [each for each, _, _, _ in runs]
    decoding = [each.decode_batch > 0 for each in steps]
    batches = [each.decode_batch[at] for each, at in zip(steps, decoding, strict=True)]
    contexts = [
        each.context_tokens[at] / each.decode_batch[at]
        for each, at in zip(steps, decoding, strict=True)
    ]
    rates = [rate for _, _, rate, _ in runs if rate is not None]
    hosts = tuple(dict.fromkeys(condition.model_dump_json() for _, _, _, condition in runs))
    return CalibratedRange(
        batch=_span(batches),
        context_tokens=_span(contexts),
        prefill_tokens=_span([each.prefill_tokens for each in steps]),
        prompt_tokens=_span([prompts for _, prompts, _, _ in runs]),
        rate_req_s=Span(low=min(rates), high=max(rates)) if rates else None,
        hosts=tuple(HostCondition.model_validate_json(each) for each in hosts),
    )


def _span(parts: Sequence[NDArray[np.float64] | Int64Array]) -> Span:
    values = np.concatenate([np.asarray(each, dtype=np.float64) for each in parts])
    if not len(values):
        return Span(low=0.0, high=0.0)
    return Span(low=float(values.min()), high=float(values.max()))
