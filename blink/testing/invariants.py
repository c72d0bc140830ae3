"""The invariants of docs/invariants.md that a record can show, checked on every run of every spec.

Each check is O(requests + steps), vectorised. What a record cannot show is held elsewhere: SLOT and
OWNER raise in the ring itself, ORACLE is a type, DETERMINISM is a test that runs twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from blink.model.record import ABSENT, RunRecord
from blink.ring_protocol.constants import LAUNCH_WINDOW_MAX
from blink.ring_protocol.states import Outcome

Check = Callable[[RunRecord], Iterator[str]]


def violations(record: RunRecord) -> list[str]:
    """Return ``["NAME: what is wrong", ...]``; an honest run has none."""
    return [f"{name}: {text}" for name, check in CHECKS.items() for text in check(record)]


def _conserve(record: RunRecord) -> Iterator[str]:
    """Every request ends in exactly one outcome (a second end is an assertion)."""
    open_requests = int((record.requests.outcome == int(Outcome.NONE)).sum())
    if open_requests:
        yield f"{open_requests} of {len(record.requests)} requests never ended"


def _causal(record: RunRecord) -> Iterator[str]:
    """No effect before its cause, in any request."""
    table = record.requests
    last = table.arrival_ns
    for name in ("submitted_ns", "scheduled_ns", "first_token_ns"):
        times = getattr(table, name)
        happened = times != ABSENT
        early = happened & (times < last)
        if early.any():
            yield f"{name} before its cause in request {int(np.argmax(early))}"
        last = np.where(happened, times, last)
    completed = np.isin(table.outcome, (int(Outcome.STOP), int(Outcome.LENGTH)))
    early = completed & (table.finish_ns < last)
    if early.any():
        yield f"finish_ns before the first token in request {int(np.argmax(early))}"


def _clock(record: RunRecord) -> Iterator[str]:
    """Steps follow one another on one GPU, and flushes follow their steps in order."""
    steps = record.steps
    if (steps.end_ns[:-1] > steps.start_ns[1:]).any():
        yield "two steps overlap"
    if (steps.start_ns < steps.launched_ns).any() or (steps.end_ns <= steps.start_ns).any():
        yield "a step ends before it starts"
    if (steps.delivered_ns < steps.end_ns).any():
        yield "tokens delivered before their step ended"
    if (np.diff(steps.delivered_ns) < 0).any():
        yield "a flush overtakes an earlier one"


def _order(record: RunRecord) -> Iterator[str]:
    """Token ranges of a request are in order, disjoint, and add up to what it received."""
    ranges, table = record.decode_ranges, record.requests
    tokens = np.zeros(len(table), dtype=np.int64)
    steps = ranges.end - ranges.first
    given = steps
    if record.step_tokens is not None:
        if (record.step_tokens < 1).any() or len(record.step_tokens) != steps.sum():
            yield f"{len(record.step_tokens)} steps with tokens of {int(steps.sum())}"
            return
        starts = np.cumsum(steps) - steps
        given = (
            np.add.reduceat(record.step_tokens.astype(np.int64), starts) if len(steps) else steps
        )
    np.add.at(tokens, ranges.request, given)
    tokens += table.first_step != ABSENT
    wrong = tokens != table.output_tokens
    if wrong.any():
        request = int(np.argmax(wrong))
        yield (
            f"request {request} has {tokens[request]} token times "
            f"for {table.output_tokens[request]} tokens"
        )
    order = np.lexsort((ranges.first, ranges.request))
    same = ranges.request[order][1:] == ranges.request[order][:-1]
    if (same & (ranges.first[order][1:] < ranges.end[order][:-1])).any():
        yield "two ranges of a request overlap"
    missing = record.counters.get("tokens_not_streamed", 0)
    if missing:
        yield f"{missing} tokens of completed requests were never streamed"


def _window(record: RunRecord) -> Iterator[str]:
    """At most 120 launches an execution, and as many launches as steps: none lost at a relaunch."""
    counters = record.counters
    if "launches" not in counters:
        return
    window = counters["window_launches_max"]
    if window > LAUNCH_WINDOW_MAX:
        yield f"a window of {window} launches"
    if counters["launches"] > window * (counters["relaunches"] + 1):
        yield f"{counters['launches']} launches in {counters['relaunches'] + 1} executions"
    if counters["launches"] != len(record.steps):
        yield f"{counters['launches']} launches for {len(record.steps)} steps"


def _kv(record: RunRecord) -> Iterator[str]:
    """No block leaked, none over-committed (that is asserted as it happens)."""
    leaked = record.counters.get("kv_blocks_leaked", 0)
    if leaked:
        yield f"{leaked} blocks are still held after the run"
    left = record.counters.get("kv_offload_blocks_left", 0)
    if left:
        yield f"{left} blocks still lie in the host's memory after the run"


def _slot(record: RunRecord) -> Iterator[str]:
    """Every slot returns to EMPTY."""
    left = record.counters.get("slots_not_empty", 0)
    if left:
        yield f"{left} slots are not empty after the run"


def _host_silent(record: RunRecord) -> Iterator[str]:
    """In CPU-free mode the host does nothing on the token path."""
    if record.system == "blink" and record.host_cpu_on_token_path_ns:
        yield f"{record.host_cpu_on_token_path_ns} ns of host CPU on the token path"


CHECKS: dict[str, Check] = {
    "CONSERVE": _conserve,
    "CAUSAL": _causal,
    "CLOCK": _clock,
    "ORDER": _order,
    "WINDOW": _window,
    "KV": _kv,
    "SLOT": _slot,
    "HOST-SILENT": _host_silent,
}
