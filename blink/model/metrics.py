"""TTFT, TPOT, ITL, end-to-end, goodput and throughput, computed one way, in one place.

The definitions are those of ``vllm bench serve``, so that a real server's figures and the twin's
can share a table:

* TTFT: first chunk received minus request sent. TPOT: (last - first) / (output tokens - 1),
requests
  with more than one token only. ITL: every gap between consecutive *chunks* of a stream, pooled
  over requests (a chunk may carry several tokens when a server is late; then there is no gap within
  it).
* Percentiles interpolate linearly between order statistics (numpy's default).
* Throughput is over the makespan: from the start of the run to the last completion, drain included.
* Goodput counts completed requests that meet *every* stated objective, per second of makespan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from blink.model.record import ABSENT, RunRecord
from blink.ring_protocol.states import Outcome

FloatArray = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

QUANTILES: Final = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "p999": 0.999}
COMPLETED: Final = (int(Outcome.STOP), int(Outcome.LENGTH))
NS_PER_MS: Final = 1e6
NS_PER_S: Final = 1e9

Figures = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Objectives:
    """Service level objectives in ms; ``None`` is no objective."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def any(self) -> bool:
        """Whether at least one objective is stated."""
        return any(v is not None for v in (self.ttft_ms, self.tpot_ms, self.itl_ms, self.e2e_ms))


def weighted_quantiles(
    values: npt.NDArray[Any], weights: Int64Array, quantiles: list[float]
) -> list[float]:
    """Return quantiles of ``values`` each repeated ``weights`` times, without repeating them.

    Equal to ``np.quantile(np.repeat(values, weights), quantiles)``: linear interpolation at
    position q * (n - 1). ``values`` and ``weights`` have shape (n,); the weights sum to at least 1.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    last = np.cumsum(weights[order]) - 1
    position = np.asarray(quantiles) * last[-1]
    below = np.floor(position)
    low = ordered[np.searchsorted(last, below)]
    high = ordered[np.searchsorted(last, np.ceil(position))]
    return [float(x) for x in low + (high - low) * (position - below)]


def _figures(values: npt.NDArray[Any], weights: Int64Array | None = None) -> Figures:
    """Return mean and percentiles of ns values, in ms; all None where there is no value."""
    if weights is None:
        weights = np.ones(len(values), dtype=np.int64)
    count = int(weights.sum())
    if count == 0:
        return {"mean": None, **dict.fromkeys(QUANTILES)}
    mean = float(np.dot(values.astype(np.float64), weights) / count)
    quantiles = weighted_quantiles(values, weights, list(QUANTILES.values()))
    figures: Figures = {"mean": mean / NS_PER_MS}
    for name, value in zip(QUANTILES, quantiles, strict=True):
        figures[name] = value / NS_PER_MS
    return figures


def inter_token_gaps(record: RunRecord) -> tuple[Int64Array, Int64Array]:
    """Return all inter-chunk gaps of the run as (gap in ns, how many streams saw it).

    Exact without visiting tokens: the gap before decode step ``i`` is seen by each stream that was
    also in step ``i - 1``; the first gap of each range is that stream's own.
    """
    delivered = record.steps.delivered_ns[record.steps.decodes]
    ranges = record.decode_ranges
    streams = np.zeros(len(delivered) + 1, dtype=np.int64)
    np.add.at(streams, np.minimum(ranges.first + 1, ranges.end), 1)
    np.add.at(streams, ranges.end, -1)
    shared = np.cumsum(streams)[1 : len(delivered)]
    gaps = np.concatenate([np.diff(delivered), _entry_gaps(record, delivered)])
    counts = np.concatenate([shared, np.ones(len(ranges.request), dtype=np.int64)])
    seen = (gaps > 0) & (counts > 0)
    return gaps[seen], counts[seen]


def _entry_gaps(record: RunRecord, delivered: Int64Array) -> Int64Array:
    """Return for each range the gap between its first token and the stream's token before it."""
    ranges = record.decode_ranges
    if not len(ranges.request):
        return np.empty(0, dtype=np.int64)
    order = np.lexsort((ranges.first, ranges.request))
    request, first, end = ranges.request[order], ranges.first[order], ranges.end[order]
    before = record.requests.first_token_ns[request].copy()
    again = np.flatnonzero(request[1:] == request[:-1]) + 1
    before[again] = delivered[end[again - 1] - 1]
    return delivered[first] - before


def per_request_ns(record: RunRecord) -> dict[str, Int64Array | FloatArray]:
    """Return ``ttft``, ``tpot`` (NaN below two tokens), ``e2e`` in ns, and ``done``, by request."""
    table = record.requests
    done = np.isin(table.outcome, COMPLETED)
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = (table.finish_ns - table.first_token_ns) / (table.output_tokens - 1)
    tpot[table.output_tokens < 2] = np.nan
    return {
        "ttft": table.first_token_ns - table.arrival_ns,
        "tpot": tpot,
        "e2e": table.finish_ns - table.arrival_ns,
        "done": done.astype(np.int64),
    }


def worst_gap_ns(record: RunRecord) -> Int64Array:
    """Return the largest inter-chunk gap of each request, ns; 0 for a single token."""
    worst = np.zeros(len(record.requests), dtype=np.int64)
    delivered = record.steps.delivered_ns[record.steps.decodes]
    ranges = record.decode_ranges
    np.maximum.at(
        worst,
        ranges.request[np.lexsort((ranges.first, ranges.request))],
        _entry_gaps(record, delivered),
    )
    gaps = np.diff(delivered, prepend=delivered[:1])
    inner = ranges.end - ranges.first > 1
    for request, first, end in zip(
        ranges.request[inner], ranges.first[inner], ranges.end[inner], strict=True
    ):
        worst[request] = max(worst[request], gaps[first + 1 : end].max())
    return worst


def meets_objectives(record: RunRecord, objectives: Objectives) -> npt.NDArray[np.bool_]:
    """Return which requests completed within every stated objective, bool of shape (requests,)."""
    per_request = per_request_ns(record)
    good = per_request["done"] > 0
    limits = (
        (objectives.ttft_ms, per_request["ttft"]),
        (objectives.tpot_ms, np.nan_to_num(per_request["tpot"])),
        (objectives.e2e_ms, per_request["e2e"]),
    )
    for limit_ms, values in limits:
        if limit_ms is not None:
            good &= values <= limit_ms * NS_PER_MS
    if objectives.itl_ms is not None:
        good &= worst_gap_ns(record) <= objectives.itl_ms * NS_PER_MS
    return good


def makespan_s(record: RunRecord) -> float:
    """Return seconds from the start of the run to the last completion (0.0 if none completed)."""
    done = np.isin(record.requests.outcome, COMPLETED)
    return float(record.requests.finish_ns[done].max()) / NS_PER_S if done.any() else 0.0


def summarise(record: RunRecord, objectives: Objectives) -> dict[str, Any]:
    """Return the run's figures under the names that ``blink run --json`` prints.

    A figure that does not apply is None, never 0: latencies of a run without completions, goodput
    without objectives, energy on hardware that reports none.
    """
    table = record.requests
    per_request = per_request_ns(record)
    done = per_request["done"] > 0
    tpot = per_request["tpot"][done]
    gaps, counts = inter_token_gaps(record)
    seconds = makespan_s(record)
    delivered_tokens = int(table.output_tokens[table.first_token_ns != ABSENT].sum())
    output_tokens = int(table.output_tokens[done].sum())
    good = int(meets_objectives(record, objectives).sum()) if objectives.any else None
    return {
        "label": record.label,
        "system": record.system,
        "condition": record.condition,
        "requests": len(table),
        "completed": int(done.sum()),
        "outcomes": outcome_counts(record),
        "ttft_ms": _figures(per_request["ttft"][done]),
        "tpot_ms": _figures(tpot[~np.isnan(tpot)]),
        "itl_ms": _figures(gaps, counts),
        "e2e_ms": _figures(per_request["e2e"][done]),
        "makespan_s": seconds or None,
        "throughput_req_s": int(done.sum()) / seconds if seconds else None,
        "output_tok_s": output_tokens / seconds if seconds else None,
        "total_tok_s": (output_tokens + int(table.input_tokens[done].sum())) / seconds
        if seconds
        else None,
        "goodput_req_s": good / seconds if good is not None and seconds else None,
        "energy_mj_per_tok": record.energy_j * 1e3 / delivered_tokens
        if record.energy_j is not None and delivered_tokens
        else None,
        "host_cpu_on_token_path_s": record.host_cpu_on_token_path_ns / NS_PER_S
        if record.host_cpu_on_token_path_ns is not None
        else None,
        "seed": record.seed,
        "commit": record.commit,
    }


def outcome_counts(record: RunRecord) -> dict[str, int]:
    """Return how many requests ended in each outcome, by lower-case name, zeros left out."""
    values, counts = np.unique(record.requests.outcome, return_counts=True)
    return {
        Outcome(int(value)).name.lower(): int(count)
        for value, count in zip(values, counts, strict=True)
    }
