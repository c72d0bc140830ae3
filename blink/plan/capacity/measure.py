"""What a probe measures of a fleet's run, and whether an SLO held there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from blink.model.fleet import FleetRecord
from blink.model.metrics import NS_PER_MS, NS_PER_S, weighted_quantiles, worst_gap_ns
from blink.model.record import ABSENT
from blink.plan.capacity.page import LATENCIES, Slo
from blink.plan.capacity.statistics import trend, warm_up
from blink.plan.executor import Job

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Figures = dict[str, Any]
QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


def measure(record: FleetRecord, job: Job) -> Figures:
    """The figures of one probe as JSON values; see :func:`failure` for what is made of them.

    Requests of the beginning (MSER-5) and of the end (those that may outlast the last arrival) are
    left out, but of the gaps between tokens, which are counted as the run's steps have them.
    """
    values = {f"{name}_ms": each / NS_PER_MS for name, each in record.per_request().items()}
    done = values.pop("done_ms") > 0
    arrivals_s = record.column("arrival_ns") / NS_PER_S
    inside = _inside(arrivals_s, values, done)
    found: Figures = {
        "requests": len(record),
        "measured": int(inside.sum()),
        "warm_up": int(np.argmax(inside)),
        "completed": int(done.sum()),
        "trend": _trend(arrivals_s, values["ttft_ms"], inside & done),
        "served_fraction": _served(record, inside, done),
        "goodput_fraction": _goodput(record, values, done, inside, job),
        "worst": _worst(record, values, inside & done),
    }
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        chosen = values[name][inside & done]
        found[name] = statistics_of(chosen[~np.isnan(chosen)])
    gaps, counts = record.inter_token_gaps()
    found["itl_ms"] = statistics_of(gaps / NS_PER_MS, counts)
    return found | _use(record)


def statistics_of(
    values: FloatArray, weights: npt.NDArray[np.int64] | None = None
) -> dict[str, float] | None:
    """Mean and percentiles; None where there is no value."""
    if not len(values):
        return None
    counts = np.ones(len(values), dtype=np.int64) if weights is None else weights
    quantiles = weighted_quantiles(values, counts, list(QUANTILES.values()))
    mean = float(np.average(values, weights=counts))
    return {"mean": mean, **dict(zip(QUANTILES, quantiles, strict=True))}


def failure(figures: Mapping[str, Any], slo: Slo) -> dict[str, Any] | None:
    """Why a run does not meet an SLO, by the objective that it misses most; None if it does.

    ``text`` says it in words; ``metric``, ``statistic``, ``value`` and ``limit`` in numbers, and
    ``request`` is the one at that statistic, if the objective is about requests.
    """
    misses = list(_misses(figures, slo))
    if misses:
        return max(misses, key=lambda each: float(each["factor"]))
    rise = figures["trend"]
    if rise["grows"]:
        return {
            "metric": "trend",
            "factor": 1.0,
            "text": f"not stationary: TTFT rises by {rise['slope']:.3g} ms every second",
        }
    return None


def _misses(figures: Mapping[str, Any], slo: Slo) -> Iterator[dict[str, Any]]:
    limits = [(name, *each) for name in LATENCIES for each in slo.limits(name).items()]
    if slo.goodput_fraction is None:
        for name, statistic, limit in limits:
            value = (figures[name] or {}).get(statistic)
            if value is None and name in ("tpot_ms", "itl_ms"):
                continue  # answers of a single token have no time between tokens
            if value is None or value > limit:
                yield _latency_miss(figures, name, statistic, value, limit)
    for name in ("goodput_fraction", "served_fraction"):
        least = getattr(slo, name)
        value = figures[name]
        if least is not None and value < least:
            text = f"{name} {value:.3f} < {least:g}"
            factor = least / value if value else float("inf")
            yield {"metric": name, "value": value, "limit": least, "factor": factor, "text": text}


def _latency_miss(
    figures: Mapping[str, Any], name: str, statistic: str, value: float | None, limit: float
) -> dict[str, Any]:
    label = name.removesuffix("_ms").upper()
    shown = "of no request that completed" if value is None else f"{value:.4g} ms"
    return {
        "metric": name,
        "statistic": statistic,
        "value": value,
        "limit": limit,
        "factor": 1e9 if value is None else value / limit,
        "text": f"{label} {statistic} {shown} > {limit:g} ms",
        "request": (figures["worst"].get(name) or {}).get(statistic),
    }


# --- what counts -----------------------------------------------------------------------------


def _inside(arrivals_s: FloatArray, values: Mapping[str, FloatArray], done: BoolArray) -> BoolArray:
    """Which requests are measured: neither of the beginning nor of the end."""
    cut = warm_up(values["ttft_ms"][done])
    first = int(np.flatnonzero(done)[cut]) if cut else 0
    inside = np.arange(len(arrivals_s)) >= first
    if done.any():
        lasts_s = float(np.median(values["e2e_ms"][done])) / 1e3
        last = int(np.searchsorted(arrivals_s, arrivals_s[-1] - lasts_s))
        inside[max(last, len(inside) * 3 // 4) :] = False
    return inside


def _trend(arrivals_s: FloatArray, ttft_ms: FloatArray, chosen: BoolArray) -> dict[str, Any]:
    if chosen.sum() < 3:
        return {"slope": 0.0, "p": 1.0, "rise": 0.0, "mean": 0.0, "grows": False}
    found = trend(arrivals_s[chosen], ttft_ms[chosen])
    return {**asdict(found), "grows": bool(found.grows)}


def _served(record: FleetRecord, inside: BoolArray, done: BoolArray) -> float:
    """Completions over arrivals between the first and the last measured arrival."""
    arrivals = record.column("arrival_ns")
    begins, ends = arrivals[inside].min(), arrivals[inside].max()
    finish = record.column("finish_ns")[done]
    arrived = int(((arrivals >= begins) & (arrivals < ends)).sum())
    return float(((finish >= begins) & (finish < ends)).sum()) / max(1, arrived)


def _goodput(
    record: FleetRecord,
    values: Mapping[str, FloatArray],
    done: BoolArray,
    inside: BoolArray,
    job: Job,
) -> float:
    """The share of measured requests that completed within every limit that is a plain number."""
    good = done.copy()
    objectives = job.objectives
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        limit = getattr(objectives, name)
        if limit is not None:
            good &= np.nan_to_num(values[name]) <= limit
    if objectives.itl_ms is not None:
        gaps = np.zeros(len(good))
        for each, members in zip(record.records, record.members, strict=True):
            gaps[members] = worst_gap_ns(each) / NS_PER_MS
        good &= gaps <= objectives.itl_ms
    return float(good[inside].mean())


# --- who broke it ----------------------------------------------------------------------------


_COLUMNS: Final = (
    "arrival_ns",
    "input_tokens",
    "output_tokens",
    "submitted_ns",
    "scheduled_ns",
    "first_token_ns",
    "finish_ns",
    "preemptions",
)


def _worst(
    record: FleetRecord, values: Mapping[str, FloatArray], chosen: BoolArray
) -> dict[str, Any]:
    """For each latency of requests, and each percentile: the request that has it, taken apart."""
    columns = {name: record.column(name) for name in _COLUMNS}
    found: dict[str, Any] = {}
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        usable = np.flatnonzero(chosen & ~np.isnan(values[name]))
        order = usable[np.argsort(values[name][usable], kind="stable")]
        if len(order):
            found[name] = {
                statistic: _taken_apart(columns, int(order[int(np.ceil(q * (len(order) - 1)))]))
                for statistic, q in QUANTILES.items()
            }
    return found


def _taken_apart(columns: Mapping[str, npt.NDArray[np.int64]], request: int) -> dict[str, Any]:
    at = {name: int(column[request]) for name, column in columns.items()}
    parts = {
        "front_end_ms": (at["submitted_ns"] - at["arrival_ns"]) / NS_PER_MS,
        "waiting_ms": (at["scheduled_ns"] - at["submitted_ns"]) / NS_PER_MS,
        "prefill_ms": (at["first_token_ns"] - at["scheduled_ns"]) / NS_PER_MS,
        "decode_ms": (at["finish_ns"] - at["first_token_ns"]) / NS_PER_MS,
    }
    assert ABSENT not in (at["submitted_ns"], at["scheduled_ns"], at["first_token_ns"])
    return {
        "request": request,
        "arrival_s": at["arrival_ns"] / NS_PER_S,
        "input_tokens": at["input_tokens"],
        "output_tokens": at["output_tokens"],
        "preemptions": at["preemptions"],
        **parts,
    }


# --- what was used ---------------------------------------------------------------------------


def _use(record: FleetRecord) -> Figures:
    """How busy the fleet was, over the time from the first arrival to the last end."""
    seconds = float(record.column("finish_ns").max()) / NS_PER_S
    tokens = int(record.column("output_tokens").sum())
    energy = [each.energy_j for each in record.records]
    busy_ns = sum(each.counters.get("gpu_busy_ns", 0) for each in record.records)
    host_ns = [each.host_cpu_on_token_path_ns or 0 for each in record.records]
    work, weighted = 0.0, 0.0
    for each in record.records:
        worked_ns = (each.steps.end_ns - each.steps.start_ns).astype(np.float64)
        work += float(worked_ns.sum())
        weighted += float(worked_ns @ each.steps.decode_batch)
    return {
        "seconds": seconds,
        "output_tok_s": tokens / seconds,
        "energy_mj_per_tok": sum(filter(None, energy)) * 1e3 / tokens if tokens else None,
        "power_w": sum(filter(None, energy)) / seconds,
        "gpu_busy": busy_ns / 1e9 / seconds / len(record.records),
        "host_cores_busy": sum(host_ns) / 1e9 / seconds,
        "batch_mean": weighted / work if work else 0.0,
        "preemptions": int(record.column("preemptions").sum()),
    }
