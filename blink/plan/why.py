"""Why systems differ: what each run's steps say about its control plane, in numbers and in words.

A system's latency is made of GPU work, which is the same for all on the same batch, and of whatever
happens between one piece of GPU work and the next. Only the second depends on who is in control.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from blink.model.metrics import NS_PER_MS
from blink.model.record import ABSENT, STEP_DECODE, Int64Array, RunRecord

ISOLATED: Final = "isolated"


def explain(records: Sequence[RunRecord]) -> str:
    """Return one paragraph, without markup, that says where the time between steps went.

    It is empty if no run decoded twice: there is nothing between steps to speak of. Of several
    runs of a system under one condition (a sweep) the last speaks.
    """
    told = {(record.system, record.condition): record for record in records}.values()
    known = [(record, shares) for record in told if (shares := step_shares(record)) is not None]
    if not known:
        return ""
    sentences = [
        f"A mean decode step, control plane + GPU (share of the control plane): "
        f"{_by_system(known, _step)}.",
        f"While sequences were running the GPU stood idle: {_by_system(known, _idle)}.",
        f"From the end of a step to the clients tokens took: {_by_system(known, _delivery)}.",
        *(_preemptions(record) for record in told if record.requests.preemptions.any()),
    ]
    return " ".join(sentences)


@dataclass(frozen=True, slots=True)
class StepShares:
    """Where a run's time went while sequences were running; means and sums in ns.

    ``decode_gpu_ns`` is the mean GPU work of a decode step that follows another step with a
    sequence in common; ``decode_cycle_ns`` the mean time from the end of that step to its own end:
    what a stream waits for a token. ``running_ns`` sums the time between steps' ends while at least
    one sequence was running, ``idle_ns`` the part of it in which the GPU had nothing to do.
    ``delivery_ns`` is the mean time from the end of a step to the arrival of its tokens.
    """

    decode_gpu_ns: float
    decode_cycle_ns: float
    running_ns: int
    idle_ns: int
    delivery_ns: float

    @property
    def control_ns(self) -> float:
        """What the control plane adds to a decode step, mean, ns."""
        return self.decode_cycle_ns - self.decode_gpu_ns

    @property
    def control_share(self) -> float:
        """The part of the time between decode steps that is not GPU work, 0..1."""
        return self.control_ns / self.decode_cycle_ns if self.decode_cycle_ns else 0.0

    @property
    def idle_share(self) -> float:
        """The part of the time with running sequences in which the GPU was idle, 0..1."""
        return self.idle_ns / self.running_ns if self.running_ns else 0.0


def step_shares(record: RunRecord) -> StepShares | None:
    """Return the shares of a run, or None if no stream saw two steps in a row."""
    steps = record.steps
    inside = np.flatnonzero(running_after(record)[:-1] > 0) + 1
    decode = inside[steps.kind[inside] == STEP_DECODE]
    if not len(decode):
        return None
    cycle = np.diff(steps.end_ns, prepend=0)
    work = steps.end_ns - steps.start_ns
    idle = np.maximum(steps.start_ns[inside] - steps.end_ns[inside - 1], 0)
    delivered = steps.delivered_ns != ABSENT
    lag = (steps.delivered_ns - steps.end_ns)[delivered]
    return StepShares(
        decode_gpu_ns=float(work[decode].mean()),
        decode_cycle_ns=float(cycle[decode].mean()),
        running_ns=int(cycle[inside].sum()),
        idle_ns=int(idle.sum()),
        delivery_ns=float(lag.mean()) if len(lag) else 0.0,
    )


def running_after(record: RunRecord) -> Int64Array:
    """Return how many sequences have a token behind and a token ahead when each step ends.

    int64 of shape (steps,). A preempted sequence counts: it, too, waits for its next token.
    """
    change = np.zeros(len(record.steps) + 1, dtype=np.int64)
    if not len(record.decode_ranges.request):
        return change[:-1]
    first = record.requests.first_step
    last = np.full(len(first), ABSENT, dtype=np.int64)
    decodes = record.steps.decodes
    ranges = record.decode_ranges
    np.maximum.at(last, ranges.request, decodes[ranges.end - 1])
    goes_on = (first != ABSENT) & (last > first)
    np.add.at(change, first[goes_on], 1)
    np.add.at(change, last[goes_on], -1)
    return np.cumsum(change)[:-1]


# --- In words --------------------------------------------------------------------------------


def _by_system(
    known: Sequence[tuple[RunRecord, StepShares]], tell: Callable[[StepShares], str]
) -> str:
    """Join what there is to tell of each run: a system's conditions meet, systems are apart."""
    by_system: dict[str, list[str]] = {}
    for record, shares in known:
        quiet = record.condition == ISOLATED
        told = tell(shares) if quiet else f"{record.condition} {tell(shares)}"
        by_system.setdefault(record.system, []).append(told)
    return "; ".join(f"{system} {', '.join(told)}" for system, told in by_system.items())


def _step(shares: StepShares) -> str:
    control, gpu = _ms(shares.control_ns), _ms(shares.decode_gpu_ns)
    return f"{control} + {gpu} ms ({shares.control_share:.1%})"


def _idle(shares: StepShares) -> str:
    return f"{shares.idle_share:.1%}"


def _delivery(shares: StepShares) -> str:
    return f"{_ms(shares.delivery_ns)} ms"


def _preemptions(record: RunRecord) -> str:
    count = int(record.requests.preemptions.sum())
    times = "once" if count == 1 else f"{count} times"
    return f"{record.system} ({record.condition}) ran out of KV cache and preempted {times}."


def _ms(value_ns: float) -> str:
    value = value_ns / NS_PER_MS
    return f"{value:.{1 if value >= 10 else 2 if value >= 0.1 else 3}f}"
