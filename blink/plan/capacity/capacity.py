"""The largest load of every candidate: all searches of a plan, probe by probe, in parallel.

Each replication of each candidate is a search of its own, on the same requests as everybody's of
that replication: what differs between candidates is not luck. The mean over replications has an
interval, and so has the ratio of two candidates, replication by replication.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from blink.model.errors import BadInput
from blink.plan.capacity.candidates import Builder, Candidate
from blink.plan.capacity.measure import failure
from blink.plan.capacity.search import Probe, Search
from blink.plan.capacity.statistics import Interval, interval
from blink.plan.executor import Job, Result

Run = Callable[[Sequence[Job]], list[Result]]
"""Runs jobs and measures each (`measure.measure`)."""
CEILING: Final = 64.0
"""No search goes beyond so many times its start."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What was found of a candidate; ``infeasible`` says why nothing holds, if nothing does.

    ``loads``: the largest load of each replication, requests/s. ``searches``: how each was found.
    """

    candidate: Candidate
    searches: tuple[Search, ...]
    infeasible: str | None

    @property
    def loads(self) -> list[float]:
        """Of every replication; empty for a candidate that is infeasible."""
        if self.infeasible is not None:
            return []
        held = [each.holds for each in self.searches]
        return [each.load for each in held if each is not None]

    @property
    def load(self) -> Interval | None:
        """The mean over replications."""
        return interval(self.loads) if self.loads else None

    @property
    def binding(self) -> dict[str, Any] | None:
        """What is missed first beyond the largest load, in the first replication."""
        first = self.searches[0].fails if self.searches else None
        return None if first is None else first.failure

    @property
    def figures(self) -> dict[str, Any] | None:
        """What was measured at the first replication's largest load."""
        held = self.searches[0].holds if self.searches else None
        return None if held is None else held.figures


def find_capacities(
    builder: Builder, candidates: Sequence[Candidate], run: Run
) -> dict[Candidate, Capacity]:
    """Search them all. A candidate that cannot run at all is infeasible, and says why."""
    refused = {each: text for each in candidates if (text := _refusal(builder, each))}
    runnable = [each for each in candidates if each not in refused]
    first = {(each, 0): _search(builder, each) for each in runnable}
    _drive(builder, first, run)
    others = {
        (each, replication): _again(first[each, 0])
        for each in runnable
        if first[each, 0].holds is not None
        for replication in range(1, builder.plan.search.seeds)
    }
    _drive(builder, others, run)
    everyone = first | others
    found = {}
    for each in candidates:
        if each in refused:
            found[each] = Capacity(each, (), refused[each])
            continue
        mine = tuple(search for (candidate, _), search in everyone.items() if candidate == each)
        found[each] = Capacity(each, mine, _infeasible(mine))
    return found


def _refusal(builder: Builder, candidate: Candidate) -> str | None:
    """Why a candidate cannot run at all: a model that does not fit, requests that never would."""
    try:
        builder.check(candidate)
    except BadInput as error:
        return str(error)
    return None


def _search(builder: Builder, candidate: Candidate) -> Search:
    start = builder.start(candidate)
    floor = min(start, builder.alone(candidate))
    return Search(start, floor, start * CEILING, builder.plan.search.tolerance)


def _again(before: Search) -> Search:
    """Another replication begins where the first one ended."""
    held = before.holds
    assert held is not None
    return Search(held.load, before.floor, before.ceiling, before.tolerance)


def _drive(builder: Builder, searches: dict[tuple[Candidate, int], Search], run: Run) -> None:
    """Round after round: the next probe of every search that is not over."""
    slo = builder.plan.slo
    while open_ := [(key, load) for key, each in searches.items() if (load := each.load)]:
        jobs = [builder.job(candidate, load, seed) for (candidate, seed), load in open_]
        for (key, load), figures in zip(open_, run(jobs), strict=True):
            searches[key].probes.append(Probe(load, failure(figures, slo), figures))


def _infeasible(searches: Sequence[Search]) -> str | None:
    for each in searches:
        if each.holds is None:
            fails = each.fails
            assert fails is not None and fails.failure is not None
            request = fails.failure.get("request")
            who = f" ({described(request)})" if request else ""
            return f"even at {fails.load:.3g} req/s: {fails.failure['text']}{who}"
    return None


def described(request: dict[str, Any]) -> str:
    """A request taken apart, in words: who it was and where its time went."""
    parts = {
        "in the front end": request["front_end_ms"],
        "waiting for the engine": request["waiting_ms"],
        "in prefill": request["prefill_ms"],
        "decoding": request["decode_ms"],
    }
    where = ", ".join(f"{ms:.4g} ms {name}" for name, ms in parts.items())
    again = f", preempted {request['preemptions']} times" if request["preemptions"] else ""
    return (
        f"request {request['request']}, {request['input_tokens']} + {request['output_tokens']} "
        f"tokens, at {request['arrival_s']:.2f} s: {where}{again}"
    )
