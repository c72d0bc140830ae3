"""What a run returns, on every backend: requests, steps, and who took part in which.

Token times are kept in compact form. A decode step gives one token to every sequence in its batch,
and all of a step's tokens reach their clients together (one flush). So the delivery time is a
column of the step table, and a request's tokens are ranges of *decode ordinals*: the how-manieth
step that decoded. A request's first token comes from the step that completed its prefill. Every
token time is exact and recoverable (:meth:`RunRecord.token_times_ns`), at a few bytes a step
instead of a token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Int8Array = npt.NDArray[np.int8]

ABSENT: Final = -1
"""The value of a time that never happened."""

STEP_PREFILL: Final = 0
STEP_DECODE: Final = 1
STEP_MIXED: Final = 2
STEP_KINDS: Final = ("prefill", "decode", "mixed")


@dataclass(frozen=True, slots=True)
class RequestTable:
    """One row a request, in order of arrival; int64 arrays of shape (requests,), times in ns.

    A time that never happened is :data:`ABSENT`. ``outcome`` holds the values of
    ``ring_protocol.states.Outcome``. ``first_step`` is the row of the step table whose flush
    delivered the first token.
    """

    arrival_ns: Int64Array
    input_tokens: Int64Array
    output_tokens_wanted: Int64Array
    output_tokens: Int64Array
    submitted_ns: Int64Array
    scheduled_ns: Int64Array
    first_token_ns: Int64Array
    finish_ns: Int64Array
    outcome: Int8Array
    slot: Int64Array
    preemptions: Int64Array
    first_step: Int64Array

    def __len__(self) -> int:
        return len(self.arrival_ns)


@dataclass(frozen=True, slots=True)
class StepTable:
    """One row a GPU step, in order of time; arrays of shape (steps,), times in ns.

    ``launched_ns`` is when the control plane began to launch the step, ``start_ns``..``end_ns`` the
    GPU's work, ``delivered_ns`` when the flush that carries its tokens reached the clients.
    """

    launched_ns: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    delivered_ns: Int64Array
    kind: Int8Array
    decode_batch: Int64Array
    prefill_tokens: Int64Array
    context_tokens: Int64Array

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def decodes(self) -> Int64Array:
        """Rows of the steps that decoded; index it with a decode ordinal."""
        return np.flatnonzero(self.decode_batch > 0).astype(np.int64)


@dataclass(frozen=True, slots=True)
class DecodeRanges:
    """Which decode steps gave tokens to which request: rows (request, first, end), end excluded.

    Rows of one request are in order of time; there is more than one only after a preemption.
    """

    request: Int64Array
    first: Int64Array
    end: Int64Array


@dataclass(frozen=True, slots=True)
class Mark:
    """One thing worth seeing on a timeline: ``track`` is the entity, times in ns."""

    track: str
    name: str
    start_ns: int
    duration_ns: int = 0
    details: dict[str, int | str] = field(default_factory=dict)


@dataclass(slots=True)
class RunRecord:
    """The only thing a run returns. ``counters`` are counts and sums, named with their units.

    ``violations`` names each broken invariant of docs/invariants.md; an honest run has none.
    ``step_tokens`` says how many tokens each step of each decode range gave, one range after the
    other; None: one each, as without speculation.
    """

    label: str
    system: str
    condition: str
    backend: str
    seed: int
    commit: str
    requests: RequestTable
    steps: StepTable
    decode_ranges: DecodeRanges
    counters: dict[str, int]
    energy_j: float | None
    host_cpu_on_token_path_ns: int | None
    scenario: dict[str, Any]
    assumptions: dict[str, Any] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    step_tokens: Int8Array | None = None

    def token_times_ns(self, request: int) -> Int64Array:
        """Return when each token of ``request`` reached its client, int64 of shape (tokens,).

        Tokens that one flush delivered together share a time.
        """
        if self.requests.first_step[request] == ABSENT:
            return np.empty(0, dtype=np.int64)
        parts = [self.requests.first_token_ns[request : request + 1]]
        delivered = self.steps.delivered_ns[self.steps.decodes]
        mine = np.flatnonzero(self.decode_ranges.request == request)
        offsets = np.cumsum(self.decode_ranges.end - self.decode_ranges.first)
        for row in mine:
            first, end = self.decode_ranges.first[row], self.decode_ranges.end[row]
            times = delivered[first:end]
            if self.step_tokens is not None:
                times = np.repeat(
                    times, self.step_tokens[offsets[row] - (end - first) : offsets[row]]
                )
            parts.append(times)
        return np.concatenate(parts)
