"""The requests that missed their objectives, which objective it was, and what took the time.

A request's *binding* objective is the one that it exceeds by the largest factor. The part named is
the largest besides the request's own work on the GPU, for that is what the server could have
spared it; its own work is named only where this alone exceeds the objective.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from blink.model.metrics import NS_PER_MS, Objectives, meets_objectives, per_request_ns
from blink.model.record import ABSENT, Int64Array
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
    :mod:`blink.plan.critical_path`, ``label`` its name for the reader; ``part_ms`` is of the time
    that the objective measures: a token's for TPOT, the longest gap's for ITL.
    """

    request: int
    objective: str
    value_ms: float | None
    limit_ms: float | None
    part: str
    label: str
    part_ms: float
    reason: str

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
    missed = np.flatnonzero(~meets_objectives(record, objectives))
    teller = _Teller(path, setup, objectives)
    found = [teller.tell(request) for request in missed.tolist()]
    return sorted(found, key=lambda miss: (-miss.factor, miss.request))


def tally(found: Sequence[Miss]) -> list[tuple[str, str, int]]:
    """How many missed which objective because of what: (objective, label, requests), most first."""
    counts = Counter((miss.objective, miss.label) for miss in found)
    return [(*names, count) for names, count in counts.most_common()]


class _Teller:
    """Tells of one request after the other; what all of them need is computed once."""

    def __init__(self, path: CriticalPath, setup: RunSetup, objectives: Objectives) -> None:
        self.path = path
        self.setup = setup
        self.record = path.record
        self.objectives = objectives
        self.per_request = per_request_ns(path.record)

    def tell(self, request: int) -> Miss:
        if not self.per_request["done"][request]:
            return self._unfinished(request)
        objective, value_ms, limit_ms = self._binding(request)
        parts = self._parts(request, objective)
        own = parts.get(STEP, 0.0)
        rest = {name: ms for name, ms in parts.items() if name != STEP}
        part = max(rest, key=lambda name: rest[name]) if own <= limit_ms and rest else STEP
        return Miss(
            request,
            objective,
            value_ms,
            limit_ms,
            part,
            label_of(part, self.setup),
            parts[part],
            self._reason(request, objective, part, parts),
        )

    def _binding(self, request: int) -> tuple[str, float, float]:
        """The objective that is exceeded by the largest factor: name, value and limit, ms."""
        limits = self.objectives
        tpot = float(np.nan_to_num(self.per_request["tpot"][request]))
        gap = sum(self.path.worst_gap(request).values()) if limits.itl_ms is not None else 0
        values: list[tuple[str, float, float | None]] = [
            ("TTFT", float(self.per_request["ttft"][request]), limits.ttft_ms),
            ("TPOT", tpot, limits.tpot_ms),
            ("ITL", float(gap), limits.itl_ms),
            ("E2E", float(self.per_request["e2e"][request]), limits.e2e_ms),
        ]
        known = [(name, ns / NS_PER_MS, limit) for name, ns, limit in values if limit is not None]
        return max(known, key=lambda each: each[1] / each[2])

    def _parts(self, request: int, objective: str) -> dict[str, float]:
        """What the objective's time is made of, ms."""
        first = {name: int(ns[request]) / NS_PER_MS for name, ns in self.path.first.items()}
        later = {name: int(ns[request]) / NS_PER_MS for name, ns in self.path.later.items()}
        if objective == "TTFT":
            return first
        if objective == "TPOT":
            tokens = int(self.record.requests.output_tokens[request]) - 1
            return {name: ms / tokens for name, ms in later.items()}
        if objective == "ITL":
            gap = self.path.worst_gap(request)
            return {name: ns / NS_PER_MS for name, ns in gap.items()}
        return {
            name: first.get(name, 0.0) + later.get(name, 0.0)
            for name in dict.fromkeys((*first, *later))
        }

    def _unfinished(self, request: int) -> Miss:
        table = self.record.requests
        outcome = Outcome(int(table.outcome[request]))
        where = "before its first token"
        if table.first_token_ns[request] != ABSENT:
            where = f"after {int(table.output_tokens[request]):,} tokens"
        elif table.scheduled_ns[request] == ABSENT:
            where = "while it waited to be scheduled"
        lived_ms = int(table.finish_ns[request] - table.arrival_ns[request]) / NS_PER_MS
        ending = _ENDINGS.get(outcome, "it did not complete")
        told = outcome.name.lower().replace("_", " ")
        reason = ending if outcome is Outcome.REJECTED else f"{ending} {where}"
        return Miss(request, COMPLETION, None, None, told, told, lived_ms, reason)

    # --- in words ----------------------------------------------------------------------------

    def _reason(self, request: int, objective: str, part: str, parts: Mapping[str, float]) -> str:
        each = {"TPOT": " a token", "ITL": " in its longest gap"}.get(objective, "")
        took = f"{_ms(parts[part])}{each}"
        table = self.record.requests
        if part == QUEUE:
            return f"{took} in the queue{self._queued_behind(request)}"
        if part == OTHERS_PROMPTS:
            return f"{took} while the GPU computed the prompts of others"
        if part == PREEMPTED:
            times = int(table.preemptions[request])
            often = "once" if times == 1 else f"{times} times"
            return f"{took} without its KV blocks: preempted {often}, then computed again"
        if part == CONTROL and self.setup.plane.processes:
            return f"{took} in which the host kept the GPU waiting"
        if part == FRONT_END:
            return f"{took} before the front end, busy or without a core, had taken it in"
        if part == READER:
            return f"{took} in which finished tokens waited to be sent"
        if part == STEP:
            what = "its own prompt" if objective == "TTFT" else "its own steps"
            return f"{took} of GPU work on {what} alone"
        return f"{took}: {label_of(part, self.setup)}"

    def _queued_behind(self, request: int) -> str:
        """What stood before a request while it was in the queue."""
        table, steps = self.record.requests, self.record.steps
        since, until = int(table.submitted_ns[request]), int(table.scheduled_ns[request])
        waiting = (table.submitted_ns != ABSENT) & (table.submitted_ns < since)
        unscheduled = (table.scheduled_ns > since) | (table.scheduled_ns == ABSENT)
        still = unscheduled & (table.finish_ns > since)
        ahead = int((waiting & still).sum())
        rows = _rows_between(steps.end_ns, since, until)
        prompts = int(np.count_nonzero(steps.prefill_tokens[rows]))
        batch = int(steps.decode_batch[rows].max(initial=0))
        said = [f"behind {_count(ahead, 'request')}"]
        if prompts:
            said.append(f"while {_count(prompts, 'step')} computed prompts of others")
        if batch >= self.setup.limits.batch_max:
            said.append(f"and the batch was full ({batch} sequences)")
        elif batch:
            said.append(f"and up to {batch} sequences were decoding")
        return ", " + " ".join(said)


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
