"""The search for the largest load: a bracket by factors, then halves, each probe with its verdict.

It knows nothing of what is probed: whoever drives it runs ``load`` and says what came of it. So it
can be asked for the next probe of many candidates at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

STEP: Final = 1.3
"""From one probe of a bracket to the next."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One load, requests/s, and what came of it: ``failure`` is None if every objective held."""

    load: float
    failure: dict[str, Any] | None
    figures: dict[str, Any]


@dataclass(slots=True)
class Search:
    """One search. ``load`` is the next to be probed; None when it is over.

    start: the first load. floor: a load at which requests no longer meet; if that fails, all do.
    ceiling: beyond this nobody looks. tolerance: the search ends when the least load that fails is
    so near, as a share, to the largest that holds.
    """

    start: float
    floor: float
    ceiling: float
    tolerance: float
    probes: list[Probe] = field(default_factory=list)

    @property
    def holds(self) -> Probe | None:
        """The probe of the largest load below every failure that held."""
        failing = self.fails
        good = [each for each in self.probes if each.failure is None]
        below = [each for each in good if failing is None or each.load < failing.load]
        return max(below, key=lambda each: each.load, default=None)

    @property
    def fails(self) -> Probe | None:
        """The probe of the least load that failed."""
        bad = [each for each in self.probes if each.failure is not None]
        return min(bad, key=lambda each: each.load, default=None)

    @property
    def load(self) -> float | None:
        """What to probe next."""
        holds, fails = self.holds, self.fails
        if holds is None and fails is None:
            return min(max(self.start, self.floor), self.ceiling)
        if fails is None:
            assert holds is not None
            return self._upward(holds.load)
        if holds is None:
            return self._downward(fails.load)
        if fails.load <= holds.load * (1 + self.tolerance):
            return None
        return float((holds.load * fails.load) ** 0.5)

    def _upward(self, load: float) -> float | None:
        return min(load * self._factor(), self.ceiling) if load < self.ceiling else None

    def _downward(self, load: float) -> float | None:
        return max(load / self._factor(), self.floor) if load > self.floor else None

    def _factor(self) -> float:
        """Longer steps the longer the bracket stays open."""
        return float(STEP ** (1 + len(self.probes) // 2))

    def told(self) -> str:
        """The search in a line: which loads held, and which did not and why."""
        parts = []
        for each in sorted(self.probes, key=lambda each: each.load):
            said = "holds" if each.failure is None else each.failure["text"]
            parts.append(f"{each.load:.3g} req/s {said}")
        return "; ".join(parts)
