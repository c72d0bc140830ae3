"""The requests that missed their objectives, which objective it was, and what took the time.

A request's *binding* objective is the one that it exceeds by the largest factor. The part named is
the largest besides the request's own work on the GPU, for that is what the server could have
spared it; its own work is named only where this alone exceeds the objective.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from blink.model.metrics import NS_PER_MS, FloatArray, Objectives, meets_objectives, per_request_ns
from blink.model.record import ABSENT, Int64Array, RunRecord
from blink.model.setup import RunSetup
from blink.plan.critical_path import (
    CONTROL,
    FRONT_END,
    OTHERS_PROMPTS,
    PREEMPTED,
    QUEUE,
    READER,
    STEP,
    CriticalPath,
    label_of,
)
from blink.plan.report import number
from blink.ring_protocol.states import Outcome

COMPLETION: Final = "completion"
"""The objective of a request that ended without its whole answer."""

OBJECTIVES: Final = ("TTFT", "TPOT", "ITL", "E2E")

_ENDINGS: Final = {
    Outcome.REJECTED: "turned away: no slot was free and the front end's queue was full",
    Outcome.TIMED_OUT: "its client gave up",
    Outcome.CANCELLED: "its client went away",
    Outcome.FAILED: "the engine could not go on",
    Outcome.NONE: "it had not ended when the run did",
}


@dataclass(frozen=True, slots=True)
class Miss:
    """A request that missed: what it had, what was allowed, and what took the time.

    ``value_ms`` and ``limit_ms`` are None where it did not complete. ``part`` is one of
    :mod:`blink.plan.critical_path` (of a request that did not complete, how it ended), ``label``
    its name for the reader; ``part_ms`` is of the time that the objective measures: a token's for
    TPOT, the longest gap's for ITL. :func:`reason` says it in words.
    """

    request: int
    objective: str
    value_ms: float | None
    limit_ms: float | None
    part: str
    label: str
    part_ms: float

    @property
    def factor(self) -> float:
        """By how much the objective is exceeded; infinite where the request did not complete."""
        if self.value_ms is None or not self.limit_ms:
            return float("inf")
        return self.value_ms / self.limit_ms


def misses(path: CriticalPath, setup: RunSetup, objectives: Objectives) -> list[Miss]:
    """Every request that is not goodput, the worst first; none without objectives."""
    if not objectives.any:
        return []
    record = path.record
    missed = ~meets_objectives(record, objectives)
    done = per_request_ns(record)["done"] > 0
    found = [_unfinished(record, request) for request in np.flatnonzero(missed & ~done).tolist()]
    late = np.flatnonzero(missed & done)
    values, limits = _measured(path, late, objectives)
    binding = (values / np.array(limits)[:, None]).argmax(axis=0) if len(late) else late
    for index, (objective, limit_ms) in enumerate(zip(OBJECTIVES, limits, strict=True)):
        mine = binding == index
        found += _of_objective(path, setup, objective, limit_ms, late[mine], values[index][mine])
    return sorted(found, key=lambda miss: (-miss.factor, miss.request))


def tally(found: Sequence[Miss]) -> list[tuple[str, str, int]]:
    """How many missed which objective because of what: (objective, label, requests), most first."""
    counts = Counter((miss.objective, miss.label) for miss in found)
    return [(*names, count) for names, count in counts.most_common()]


def _measured(
    path: CriticalPath, late: Int64Array, objectives: Objectives
) -> tuple[FloatArray, list[float]]:
    """What each of ``late`` had of TTFT, TPOT, ITL and E2E, shape (4, late), and the limits, ms.

    A limit that is not stated is infinite.
    """
    times = per_request_ns(path.record)
    gaps = np.zeros(len(late))
    if objectives.itl_ms is not None:
        gaps[:] = [sum(path.worst_gap(request).values()) for request in late.tolist()]
    values = [times["ttft"][late], np.nan_to_num(times["tpot"][late]), gaps, times["e2e"][late]]
    limits = (objectives.ttft_ms, objectives.tpot_ms, objectives.itl_ms, objectives.e2e_ms)
    stated = [float("inf") if limit is None else limit for limit in limits]
    return np.array(values, dtype=np.float64) / NS_PER_MS, stated


def _of_objective(
    path: CriticalPath,
    setup: RunSetup,
    objective: str,
    limit_ms: float,
    who: Int64Array,
    values_ms: FloatArray,
) -> list[Miss]:
    """The misses of those whom one objective binds: the part named, of each."""
    if not len(who):
        return []
    names, parts = _parts_ms(path, objective, who)
    own = parts[names.index(STEP)].copy()
    parts[names.index(STEP)] = np.where(own > limit_ms, own.max() + parts.max() + 1, -np.inf)
    named = parts.argmax(axis=0)
    parts[names.index(STEP)] = own
    return [
        Miss(
            request,
            objective,
            float(value),
            limit_ms,
            names[part],
            label_of(names[part], setup),
            float(parts[part, place]),
        )
        for place, (request, value, part) in enumerate(
            zip(who.tolist(), values_ms.tolist(), named.tolist(), strict=True)
        )
    ]


def _parts_ms(path: CriticalPath, objective: str, who: Int64Array) -> tuple[list[str], FloatArray]:
    """What the objective's time is made of: names, and ms of shape (names, who)."""
    first = {name: ns[who] for name, ns in path.first.items()}
    later = {name: ns[who] for name, ns in path.later.items()}
    if objective == "TTFT":
        parts = first
    elif objective == "ITL":
        gaps = [path.worst_gap(request) for request in who.tolist()]
        parts = {name: np.array([gap[name] for gap in gaps]) for name in gaps[0]}
    elif objective == "TPOT":
        parts = later
    else:
        nothing = np.zeros_like(who)
        names = dict.fromkeys((*first, *later))
        parts = {name: first.get(name, nothing) + later.get(name, nothing) for name in names}
    times = np.array(list(parts.values()), dtype=np.float64) / NS_PER_MS
    if objective == "TPOT":
        times /= path.record.requests.output_tokens[who] - 1
    return list(parts), times


def _unfinished(record: RunRecord, request: int) -> Miss:
    table = record.requests
    told = Outcome(int(table.outcome[request])).name.lower().replace("_", " ")
    lived_ms = int(table.finish_ns[request] - table.arrival_ns[request]) / NS_PER_MS
    return Miss(request, COMPLETION, None, None, told, told, lived_ms)


# --- in words --------------------------------------------------------------------------------


def reason(miss: Miss, path: CriticalPath, setup: RunSetup) -> str:
    """Say why a request missed: what took the time, and of a queue, what it stood behind."""
    if miss.objective == COMPLETION:
        return _ending(path.record, miss.request)
    each = {"TPOT": " a token", "ITL": " in its longest gap"}.get(miss.objective, "")
    took = f"{_ms(miss.part_ms)}{each}"
    if miss.part == QUEUE:
        return f"{took} in the queue, {_queued_behind(path.record, setup, miss.request)}"
    if miss.part == OTHERS_PROMPTS:
        return f"{took} while the GPU computed the prompts of others"
    if miss.part == PREEMPTED:
        times = int(path.record.requests.preemptions[miss.request])
        often = "once" if times == 1 else f"{times} times"
        return f"{took} without its KV blocks: preempted {often}, then computed again"
    if miss.part == CONTROL and setup.plane.processes:
        return f"{took} in which the host kept the GPU waiting"
    if miss.part == FRONT_END:
        return f"{took} before the front end, busy or without a core, had taken it in"
    if miss.part == READER:
        return f"{took} in which finished tokens waited to be sent"
    if miss.part == STEP:
        what = "its own prompt" if miss.objective == "TTFT" else "its own steps"
        return f"{took} of GPU work on {what} alone"
    return f"{took}: {label_of(miss.part, setup)}"


def _ending(record: RunRecord, request: int) -> str:
    table = record.requests
    outcome = Outcome(int(table.outcome[request]))
    ending = _ENDINGS.get(outcome, "it did not complete")
    if outcome is Outcome.REJECTED:
        return ending
    if table.first_token_ns[request] != ABSENT:
        return f"{ending} after {int(table.output_tokens[request]):,} tokens"
    waiting = table.scheduled_ns[request] == ABSENT
    return f"{ending} {'while it waited to be scheduled' if waiting else 'before its first token'}"


def _queued_behind(record: RunRecord, setup: RunSetup, request: int) -> str:
    """What stood before a request while it was in the queue."""
    table, steps = record.requests, record.steps
    since, until = int(table.submitted_ns[request]), int(table.scheduled_ns[request])
    waiting = (table.submitted_ns != ABSENT) & (table.submitted_ns < since)
    unscheduled = (table.scheduled_ns > since) | (table.scheduled_ns == ABSENT)
    ahead = int((waiting & unscheduled & (table.finish_ns > since)).sum())
    rows = _rows_between(steps.end_ns, since, until)
    prompts = int(np.count_nonzero(steps.prefill_tokens[rows]))
    batch = int(steps.decode_batch[rows].max(initial=0))
    said = [f"behind {_count(ahead, 'request')}"]
    if prompts:
        said.append(f"while {_count(prompts, 'step')} computed prompts of others")
    if batch >= setup.limits.batch_max:
        said.append(f"and the batch was full ({batch} sequences)")
    elif batch:
        said.append(f"and up to {batch} sequences were decoding")
    return " ".join(said)


def _rows_between(end_ns: Int64Array, since: int, until: int) -> slice:
    """The steps that ran, in part at least, between two times."""
    first = int(np.searchsorted(end_ns, since, side="right"))
    return slice(first, int(np.searchsorted(end_ns, until, side="left")) + 1)


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _ms(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.1f} s"
    return f"{number(value)} ms"
