"""From runs on a real machine to a hardware profile: what their steps and requests took."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blink.model import profile
from blink.model.policy.graphs import PREFILL_BATCHES
from blink.model.profile import Profile, Timing, timing_of
from blink.model.record import ABSENT, STEP_DECODE, STEP_PREFILL, Int64Array, RunRecord
from blink.model.setup import RunSetup, graph_cache
from blink.model.workload import Workload

Measured = tuple[RunSetup, RunRecord]
Document = dict[str, Any]
CONTEXT_CUTS: Final = (0.02, 0.15, 0.3, 0.5, 0.7, 0.85, 0.98)
"""Where the steps of a decode graph, by context, are cut into rows: small ones at both ends, so
that the table reaches almost as far as the steps did."""
AIMS: Final = {
    "ttft_ms.mean": 0.10,
    "ttft_ms.p50": 0.10,
    "ttft_ms.p99": 0.15,
    "tpot_ms.mean": 0.05,
    "tpot_ms.p99": 0.05,
    "itl_ms.p50": 0.05,
    "itl_ms.p99": 0.15,
    "output_tok_s": 0.05,
    "throughput_req_s": 0.05,
}
"""The metrics by which twin and metal are compared, and the error not to be passed."""


def profile_of(
    machine: Mapping[str, Any],
    microbenchmarks: Mapping[str, Timing],
    measured: Sequence[Measured],
    *,
    name: str,
    commit: str,
    command: str,
) -> Profile:
    """What was measured, as a profile without runs yet.

    machine: as the backend's ``metal()`` says it. Raises BadInput for what no profile can hold.
    """
    return profile.of(
        {
            "schema": 1,
            "name": name,
            **{key: machine[key] for key in ("date", "gpu", "driver", "cuda")},
            "clocks_mhz": clocks_mhz(machine),
            "commit": commit,
            "command": command,
            "microbenchmarks": {name: _positive(each) for name, each in microbenchmarks.items()},
            "control": control_of(measured),
            "steps": steps_of(measured),
        }
    )


def clocks_mhz(machine: Mapping[str, Any]) -> dict[str, int]:
    """The clocks among what a machine says of itself: every key that ends in ``_mhz``."""
    return {key.removesuffix("_mhz"): each for key, each in machine.items() if key[-4:] == "_mhz"}


def _positive(timing: Timing) -> Timing:
    """A difference of two clocks may come out below 0; a profile holds durations."""
    found = timing.copy()
    for name in ("p50", "p99", "mean"):
        found[name] = max(0.0, timing[name])
    return found


# --- control ---------------------------------------------------------------------------------


def control_of(measured: Sequence[Measured]) -> dict[str, Document]:
    """By system, the durations of :class:`blink.model.profile.Control`, over all of its runs."""
    found: dict[str, dict[str, list[Int64Array]]] = {}
    for setup, record in measured:
        parts = found.setdefault(setup.system, {})
        for name, values in _control(record).items():
            parts.setdefault(name, []).append(values)
    return {
        system: {
            name: spread
            for name, values in parts.items()
            if (spread := timing_of(np.maximum(0, np.concatenate(values)))) is not None
        }
        for system, parts in found.items()
    }


def _control(record: RunRecord) -> dict[str, Int64Array]:
    steps, requests = record.steps, record.requests
    to_start = steps.start_ns - steps.launched_ns
    between = steps.launched_ns[1:] - steps.end_ns[:-1]
    submitted = requests.submitted_ns != ABSENT
    return {
        "to_start_ns": to_start[steps.kind == STEP_DECODE],
        "to_next_ns": between[_pairs(record)],
        "prefill_to_start_ns": to_start[steps.kind == STEP_PREFILL],
        "submit_ns": (requests.submitted_ns - requests.arrival_ns)[submitted],
        "pickup_ns": _pickups(record),
        "deliver_ns": steps.delivered_ns - steps.end_ns,
    }


def _pickups(record: RunRecord) -> Int64Array:
    """Submitted to taken up, of requests that came when no step was running."""
    requests, steps = record.requests, record.steps
    computed = np.flatnonzero(requests.first_step > 0)
    before = steps.end_ns[requests.first_step[computed] - 1]
    idle = computed[before < requests.submitted_ns[computed]]
    return requests.scheduled_ns[idle] - requests.submitted_ns[idle]


def _pairs(record: RunRecord) -> NDArray[np.bool_]:
    """Which decode steps are followed by another: between the two nothing was waited for."""
    decodes = record.steps.kind == STEP_DECODE
    found: NDArray[np.bool_] = decodes[:-1] & decodes[1:]
    return found


def step_figures(record: RunRecord) -> dict[str, float]:
    """p50 and p99 of the GPU's time a step in ms, and of what control adds to one in us."""
    steps = record.steps
    gpu_ns = steps.end_ns - steps.start_ns
    control_ns = np.diff(steps.launched_ns) - gpu_ns[:-1]
    parts = (
        ("decode_step_ms", gpu_ns[steps.kind == STEP_DECODE], 1e6),
        ("prefill_step_ms", gpu_ns[steps.kind == STEP_PREFILL], 1e6),
        ("control_us", control_ns[_pairs(record)], 1e3),
    )
    spreads = [(name, timing_of(values), unit) for name, values, unit in parts]
    return {
        f"{name}.{part}": (spread["p50"] if part == "p50" else spread["p99"]) / unit
        for name, spread, unit in spreads
        if spread is not None
        for part in ("p50", "p99")
    }


# --- step times ------------------------------------------------------------------------------


def steps_of(measured: Sequence[Measured]) -> list[Document]:
    """Measured step times by system, model and engine, each shape with its median."""
    groups: dict[tuple[str, str, str], list[Measured]] = {}
    for setup, record in measured:
        key = (setup.system, setup.llm.name, setup.provider)
        groups.setdefault(key, []).append((setup, record))
    return [
        {
            "system": system,
            "model": model,
            "engine": engine,
            "decode": _decode_rows(group),
            "prefill": _prefill_rows(group),
        }
        for (system, model, engine), group in groups.items()
    ]


def _decode_rows(group: Iterable[Measured]) -> list[Document]:
    by_graph: dict[int, list[tuple[int, int]]] = {}
    for setup, record in group:
        graphs, steps = graph_cache(setup), record.steps
        decodes = steps.kind == STEP_DECODE
        batches = steps.decode_batch[decodes].tolist()
        gpu_ns = (steps.end_ns - steps.start_ns)[decodes].tolist()
        contexts = steps.context_tokens[decodes].tolist()
        for batch, context, ns in zip(batches, contexts, gpu_ns, strict=True):
            graph = graphs.decode_batch(batch) if graphs else batch
            by_graph.setdefault(graph, []).append((context, ns))
    return [row for graph in sorted(by_graph) for row in _by_context(graph, by_graph[graph])]


def _by_context(graph: int, steps: list[tuple[int, int]]) -> list[Document]:
    """Steps of one graph, in parts of like context and as many steps."""
    ordered = np.array(sorted(steps), dtype=np.int64)
    cuts = sorted({round(each * len(ordered)) for each in CONTEXT_CUTS})
    return [
        {
            "batch": graph,
            "context_tokens": round(float(part[:, 0].mean())),
            "ns": float(np.median(part[:, 1])),
            "count": len(part),
        }
        for part in np.split(ordered, cuts)
        if len(part)
    ]


def _prefill_rows(group: Iterable[Measured]) -> list[Document]:
    """By captured shape: what a record counts is prompts, or padding too; the graph is the same."""
    by_shape: dict[tuple[int, int], list[int]] = {}
    for setup, record in group:
        steps, graphs = record.steps, graph_cache(setup)
        gpu_ns = steps.end_ns - steps.start_ns
        for row, prompts in _prompts(record).items():
            padded = graphs.prefill(prompts) if graphs else sum(prompts)
            shape = (_captured(len(prompts)), padded)
            by_shape.setdefault(shape, []).append(int(gpu_ns[row]))
    return [
        {"batch": batch, "tokens": tokens, "ns": float(np.median(ns)), "count": len(ns)}
        for (batch, tokens), ns in sorted(by_shape.items())
    ]


def _prompts(record: RunRecord) -> dict[int, list[int]]:
    """The prompts of each prefill, tokens, by the step's row.

    A recomputation after a preemption gives nobody a first token, and is left out.
    """
    requests, found = record.requests, dict[int, list[int]]()
    for row, tokens in zip(requests.first_step.tolist(), requests.input_tokens, strict=True):
        if row != ABSENT and record.steps.kind[row] == STEP_PREFILL:
            found.setdefault(row, []).append(int(tokens))
    return found


def _captured(prompts: int) -> int:
    """The batch of the prefill graph that takes so many prompts."""
    at = bisect_left(PREFILL_BATCHES, prompts)
    return PREFILL_BATCHES[at] if at < len(PREFILL_BATCHES) else prompts


# --- runs ------------------------------------------------------------------------------------


def as_it_came(setup: RunSetup, record: RunRecord) -> RunSetup:
    """``setup`` with the requests that ``record`` saw, if they are not the workload's own.

    A closed loop's arrivals are answers to the run itself: there the workload stands.
    """
    workload, table = setup.workload, record.requests
    same = workload.concurrency is not None or (
        np.array_equal(workload.arrival_ns, table.arrival_ns)
        and np.array_equal(workload.input_tokens, table.input_tokens)
        and np.array_equal(workload.output_tokens, table.output_tokens_wanted)
    )
    if same:
        return setup
    came = Workload(table.arrival_ns, table.input_tokens, table.output_tokens_wanted)
    return replace(setup, workload=came)


def requests_of(planned: RunSetup, came: RunSetup) -> Document | None:
    """The requests of ``came`` for a profile; None if ``planned`` has the same."""
    if came is planned:
        return None
    workload = came.workload
    return {
        "arrival_ns": workload.arrival_ns.tolist(),
        "input_tokens": workload.input_tokens.tolist(),
        "output_tokens": workload.output_tokens.tolist(),
    }


def metrics_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """The figures of :data:`AIMS` that a run has."""
    found = {name: figure_of(summary, name) for name in AIMS}
    return {name: value for name, value in found.items() if value is not None}


def figure_of(summary: Mapping[str, Any], name: str) -> float | None:
    """The figure at a dotted path of a summary, or None."""
    value: Any = summary
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if value is None else float(value)


def error_of(predicted: float | None, measured: float | None) -> float | None:
    """Relative to the measured value; None where one is missing, or that is 0."""
    return predicted / measured - 1 if measured and predicted is not None else None


def band_of(metric: str, error: float) -> float:
    """What a prediction may be off by from now on: the aim, or where that is missed, as now."""
    size = abs(error)
    return AIMS[metric] if size <= AIMS[metric] else ceil(size * 105) / 100
