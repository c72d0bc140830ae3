"""What is measured of a run of the evaluation: its latencies, and what it did in a window.

The run goes on until every request has ended, so each system's latencies are of the same requests.
Rates count what was complete, or streamed, when the window closed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blink.model.metrics import NS_PER_S, per_request_ns, summarise
from blink.model.record import ABSENT, RunRecord
from blink.plan.executor import Job

Figures = dict[str, float | None]


def measure(record: RunRecord, job: Job) -> Figures:
    """The figures of a run by name, ``ttft_ms.p99`` for one; those of ``blink run``, and more.

    ``power_w`` is the mean over the run. With ``extra["window_s"]`` these are of the window:
    ``completed`` requests, ``throughput_req_s``, ``prefill_tok_s`` (prompts whose first token had
    come), ``decode_tok_s`` (tokens streamed), ``served`` (completed over those that would have
    been, had nobody waited for a first token).
    """
    whole = summarise(record, job.objectives)
    figures = _flat(whole)
    seconds = whole["makespan_s"]
    figures["power_w"] = record.energy_j / seconds if record.energy_j and seconds else None
    if job.extra["window_s"] is not None:
        figures.update(_window(record, round(job.extra["window_s"] * NS_PER_S)))
    return figures


def _window(record: RunRecord, closes_ns: int) -> Figures:
    table = record.requests
    done = per_request_ns(record)["done"] > 0
    begun = (table.first_token_ns != ABSENT) & (table.first_token_ns <= closes_ns)
    at_once = done & (table.arrival_ns + table.finish_ns - table.first_token_ns <= closes_ns)
    seconds = closes_ns / NS_PER_S
    completed, possible = int((done & (table.finish_ns <= closes_ns)).sum()), int(at_once.sum())
    return {
        "completed": completed,
        "throughput_req_s": completed / seconds,
        "prefill_tok_s": int(table.input_tokens[begun].sum()) / seconds,
        "decode_tok_s": _streamed(record, begun, closes_ns) / seconds,
        "served": completed / possible if possible else None,
    }


def _streamed(record: RunRecord, begun: NDArray[np.bool_], closes_ns: int) -> int:
    """Tokens that had reached their clients by ``closes_ns``."""
    delivered = record.steps.delivered_ns[record.steps.decodes]
    streams = np.zeros(len(delivered) + 1, dtype=np.int64)
    np.add.at(streams, record.decode_ranges.first, 1)
    np.add.at(streams, record.decode_ranges.end, -1)
    in_step = np.cumsum(streams)[:-1]
    return int(in_step[delivered <= closes_ns].sum()) + int(begun.sum())


def _flat(summary: dict[str, Any]) -> Figures:
    found: Figures = {}
    for name, value in summary.items():
        if isinstance(value, dict) and name.endswith("_ms"):
            found.update({f"{name}.{part}": each for part, each in value.items()})
        elif value is None or isinstance(value, int | float):
            found[name] = value
    return found
