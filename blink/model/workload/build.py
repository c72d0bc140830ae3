"""From a scenario's `[workload]` to arrays: arrivals and lengths of every request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from blink.model.errors import BadInput, TraceError
from blink.model.scenario.traffic import (
    BurstsWorkload,
    ClosedLoopWorkload,
    ConstantWorkload,
    PoissonWorkload,
    SharedPrefix,
    TraceWorkload,
)
from blink.model.workload.arrivals import bursts_s, constant_s, gamma_s, poisson_s
from blink.model.workload.lengths import draw_lengths
from blink.model.workload.traces import MOONCAKE_HASH_TOKENS, TIME_MAX_NS, Trace, read_trace

Int64Array = npt.NDArray[np.int64]
PrefixHashes = tuple[tuple[int, ...], ...]
RngFor = Callable[[str], np.random.Generator]
"""Gives a random generator of a named stream, each call a fresh one from the stream's start.

Arrivals, inputs and outputs have one each, so that a longer run begins like a shorter one, and a
faster one has the same requests."""

NS_PER_S: Final = 1_000_000_000
HASH_TOKENS: Final = 16
"""Tokens of one prefix hash of a synthetic workload: a KV block of most engines."""
REQUESTS_MAX: Final = 50_000_000
"""1.2 GB of arrays, beyond what a run can use."""

AnyWorkload = (
    PoissonWorkload | ConstantWorkload | BurstsWorkload | ClosedLoopWorkload | TraceWorkload
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival; three int64 arrays of shape (requests,).

    arrival_ns: from the start of the run, sorted. In a closed loop all are 0: `concurrency`
        requests start at 0, each further one `think_ns` after one has ended.
    input_tokens, output_tokens: at least 1 each. The output's length is the world's secret.
    prefix_hashes: of each prompt, one hash for every `hash_tokens` tokens of it (the last may cover
        fewer): equal hashes mean that all up to there is equal. None: unknown.
    """

    arrival_ns: Int64Array
    input_tokens: Int64Array
    output_tokens: Int64Array
    concurrency: int | None = None
    think_ns: int = 0
    prefix_hashes: PrefixHashes | None = None
    hash_tokens: int = 0

    def __post_init__(self) -> None:
        assert len(self.arrival_ns) == len(self.input_tokens) == len(self.output_tokens)
        assert self.prefix_hashes is None or len(self.prefix_hashes) == len(self.arrival_ns)

    def __len__(self) -> int:
        return len(self.arrival_ns)


def build_workload(spec: AnyWorkload, rng_for: RngFor, base_dir: Path | None = None) -> Workload:
    """Draw or read the requests that `spec` describes.

    A relative trace path counts from `base_dir` (None: the working directory; a scenario that was
    loaded from a file has its path joined already). Raises TraceError for an unreadable trace,
    UnknownName for a table that is not there, BadInput for a workload without requests.
    """
    if isinstance(spec, TraceWorkload):
        return _from_trace(spec, rng_for, base_dir)
    if isinstance(spec, ClosedLoopWorkload):
        _check_count(spec.requests)
        inputs, outputs = draw_lengths(spec.lengths, spec.requests, rng_for)
        workload = Workload(
            arrival_ns=np.zeros(spec.requests, dtype=np.int64),
            input_tokens=inputs,
            output_tokens=outputs,
            concurrency=spec.clients,
            think_ns=round(spec.think_s * NS_PER_S),
        )
    else:
        arrival_s = _synthetic_arrivals(spec, rng_for)
        inputs, outputs = draw_lengths(spec.lengths, len(arrival_s), rng_for)
        workload = Workload(to_ns(arrival_s), inputs, outputs)
    if spec.shared_prefix is not None:
        return _with_prefix(workload, spec.shared_prefix, rng_for)
    return workload


def _with_prefix(workload: Workload, shared: SharedPrefix, rng_for: RngFor) -> Workload:
    """Put one of the shared texts before every prompt. What follows it is every prompt's own."""
    texts = rng_for("workload.prefixes").integers(0, shared.count, len(workload))
    input_tokens = workload.input_tokens + shared.tokens
    common = shared.tokens // HASH_TOKENS
    hashes: list[tuple[int, ...]] = []
    own = shared.count * common
    for text, tokens in zip(texts.tolist(), input_tokens.tolist(), strict=True):
        more = -(-tokens // HASH_TOKENS) - common
        hashes.append((*range(text * common, (text + 1) * common), *range(own, own + more)))
        own += more
    return replace(
        workload,
        input_tokens=input_tokens,
        prefix_hashes=tuple(hashes),
        hash_tokens=HASH_TOKENS,
    )


def _check_count(requests: int) -> None:
    if requests > REQUESTS_MAX:
        raise BadInput(
            f"workload of more than {REQUESTS_MAX:,} requests: fewer requests, or a shorter "
            "duration_s"
        )


def to_ns(seconds: npt.NDArray[np.float64]) -> Int64Array:
    """Seconds to whole ns, to the nearest. Raises BadInput for arrivals that int64 cannot hold."""
    last_s = float(seconds.max(initial=0.0))
    if not last_s * NS_PER_S < TIME_MAX_NS:  # not: a NaN is no time either
        raise BadInput(
            f"workload: the last request would arrive after {last_s:.1e} s, beyond "
            f"{TIME_MAX_NS / NS_PER_S:.1e} s: scale the arrivals or raise the rate"
        )
    whole: Int64Array = np.rint(seconds * NS_PER_S).astype(np.int64)
    return whole


def _synthetic_arrivals(
    spec: PoissonWorkload | ConstantWorkload | BurstsWorkload, rng_for: RngFor
) -> npt.NDArray[np.float64]:
    """Arrivals in s, ended by `requests` or `duration_s`. Drawn again, longer, until they reach."""
    expected = spec.rate * (spec.duration_s or 0.0)
    count = spec.requests or int(expected + 8 * np.sqrt(expected) + 16)
    while True:
        _check_count(count)
        arrival_s = _first_arrivals(spec, count, rng_for("workload.arrivals"))
        if spec.duration_s is None:
            return arrival_s
        if spec.requests is not None or arrival_s[-1] >= spec.duration_s:
            break
        count *= 2
    arrival_s = arrival_s[arrival_s < spec.duration_s]
    if not len(arrival_s):
        raise BadInput(f"no request arrives within workload.duration_s = {spec.duration_s:g}")
    return arrival_s


def _first_arrivals(
    spec: PoissonWorkload | ConstantWorkload | BurstsWorkload,
    count: int,
    rng: np.random.Generator,
) -> npt.NDArray[np.float64]:
    if isinstance(spec, PoissonWorkload):
        return poisson_s(count, spec.rate, rng)
    if isinstance(spec, ConstantWorkload):
        return constant_s(count, spec.rate)
    return bursts_s(spec, count, rng)


def _from_trace(spec: TraceWorkload, rng_for: RngFor, base_dir: Path | None) -> Workload:
    path = Path(spec.trace) if base_dir is None else base_dir / spec.trace
    trace = read_trace(path)
    keep = _chosen(spec, trace)
    inputs, outputs = trace.input_tokens[keep], trace.output_tokens[keep]
    if spec.arrivals != "recorded":
        assert spec.rate is not None
        rng = rng_for("workload.arrivals")
        if spec.arrivals == "constant":
            arrival_s = constant_s(len(inputs), spec.rate)
        elif spec.arrivals == "poisson":
            arrival_s = poisson_s(len(inputs), spec.rate, rng)
        else:
            assert spec.cv is not None
            arrival_s = gamma_s(len(inputs), spec.rate, spec.cv, rng)
        return _hashed(Workload(to_ns(arrival_s), inputs, outputs), trace, keep)
    assert trace.arrival_ns is not None
    arrival_ns = trace.arrival_ns[keep] - round(spec.start_s * NS_PER_S)
    return _hashed(Workload(_scaled(arrival_ns, spec), inputs, outputs), trace, keep)


def _hashed(workload: Workload, trace: Trace, keep: Int64Array) -> Workload:
    """The workload with the prefix hashes of the requests that were kept, if the trace has any."""
    if trace.prefix_hashes is None:
        return workload
    hashes = tuple(trace.prefix_hashes[each] for each in keep.tolist())
    return replace(workload, prefix_hashes=hashes, hash_tokens=MOONCAKE_HASH_TOKENS)


def _chosen(spec: TraceWorkload, trace: Trace) -> Int64Array:
    """Indices of the requests that are left after the limits on length and the slice."""
    keep = trace.input_tokens <= spec.input_tokens_max
    keep &= trace.output_tokens <= spec.output_tokens_max
    if spec.arrivals == "recorded":
        if trace.arrival_ns is None:
            raise TraceError(
                trace.path,
                None,
                "has lengths but no arrivals; set workload.arrivals to "
                '"poisson", "constant" or "bursts", and workload.rate',
            )
        start_ns = round(spec.start_s * NS_PER_S)
        keep &= trace.arrival_ns >= start_ns
        if spec.duration_s is not None:
            keep &= trace.arrival_ns < start_ns + round(spec.duration_s * NS_PER_S)
    chosen = np.flatnonzero(keep)[: spec.requests]
    if not len(chosen):
        raise TraceError(
            trace.path,
            None,
            f"none of its {len(trace):,} requests is within start_s, duration_s and the length "
            "limits of [workload]",
        )
    return chosen


def _scaled(arrival_ns: Int64Array, spec: TraceWorkload) -> Int64Array:
    """Arrivals made `time_scale` times as long, or so that their mean rate is `rate`.

    With `rate` the first request keeps its share of the time: n requests span (n - 1) gaps.
    """
    factor = spec.time_scale or 1.0
    if spec.rate is not None:
        span_s = int(arrival_ns[-1] - arrival_ns[0]) / NS_PER_S
        if span_s == 0 and len(arrival_ns) > 1:
            raise BadInput(
                "workload.rate: all requests of the slice arrive at once, no gap to scale"
            )
        factor = (len(arrival_ns) - 1) / spec.rate / span_s if span_s else 1.0
    if factor == 1.0:
        return arrival_ns
    return to_ns(arrival_ns.astype(np.float64) * (factor / NS_PER_S))
