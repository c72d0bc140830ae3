"""The evaluation's runs reduced as the paper reduces them: ranges, saturation points, plateaus."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from blink.model.interference import QUIET, Interference
from blink.plan.paper.evaluation import BASELINES, RATES, Run, offered
from blink.plan.paper.runs import Runs
from blink.plan.paper.window import Figures

SERVED_MIN: Final = 0.95
"""Share of what is asked that a system must serve to be below saturation (paper App. C)."""


class Results:
    """What the evaluation says; every method may raise MissingRuns.

    A ``metric`` is a name of :func:`blink.plan.paper.window.measure`.
    """

    def __init__(self, runs: Runs) -> None:
        self.runs = runs

    def of(self, run: Run, metric: str) -> float:
        """One figure of one run. Asserts that the run has it."""
        return _number(self.runs([run])[0], metric)

    def curve(
        self, system: str, model: str, metric: str, noise: Interference = QUIET
    ) -> list[float]:
        """A figure at each of RATES."""
        runs = [Run(system, model, offered(rate), noise) for rate in RATES]
        return [_number(figures, metric) for figures in self.runs(runs)]

    def serviceable(self, system: str, model: str, noise: Interference = QUIET) -> float:
        """The load up to which ``system`` serves SERVED_MIN of what it is asked, req/s.

        Linear between the last of RATES that it serves and the first that it does not.
        """
        below, share = 0.0, 1.0
        for rate, served in zip(RATES, self.curve(system, model, "served", noise), strict=True):
            if served < SERVED_MIN:
                return below + (rate - below) * (share - SERVED_MIN) / (share - served)
            below, share = rate, served
        return below

    def blink_range(self, model: str) -> list[float]:
        """The rates below Blink's saturation, over which Tables 6, 7 and B.1 average."""
        limit = self.serviceable("blink", model)
        return [rate for rate in RATES if rate <= limit]

    def saturation(self, model: str) -> float:
        """Blink's saturation point, req/s: the first rate that it does not serve."""
        return next((rate for rate in RATES if rate > self.serviceable("blink", model)), RATES[-1])

    def over_range(
        self, system: str, model: str, metric: str, noise: Interference = QUIET
    ) -> float:
        """Geometric mean of a figure over Blink's range."""
        curve = self.curve(system, model, metric, noise)
        values = curve[: len(self.blink_range(model))]
        return math.exp(math.fsum(map(math.log, values)) / len(values))

    def saturated(self, system: str, model: str, metric: str, noise: Interference = QUIET) -> float:
        """A figure at Blink's saturation point."""
        return self.of(Run(system, model, offered(self.saturation(model)), noise), metric)

    def plateau(self, system: str, model: str, metric: str, noise: Interference = QUIET) -> float:
        """A figure at the highest load."""
        return self.of(Run(system, model, offered(RATES[-1]), noise), metric)

    def energy(self, system: str, model: str, noise: Interference = QUIET) -> float:
        """Wall energy at Blink's saturation point, mJ for each token streamed."""
        power_w = self.saturated(system, model, "power_w", noise)
        return 1e3 * power_w / self.saturated(system, model, "decode_tok_s", noise)

    def over_blink(self, model: str, metric: str) -> list[float]:
        """Of each baseline: its figure over Blink's, over Blink's range, alone."""
        blink = self.over_range("blink", model, metric)
        return [self.over_range(each, model, metric) / blink for each in BASELINES]

    def inflation(self, system: str, model: str, metric: str, noise: Interference) -> float:
        """A figure beside neighbours over the same alone, over Blink's range."""
        quiet = self.over_range(system, model, metric)
        return self.over_range(system, model, metric, noise) / quiet


def ends(values: Sequence[float]) -> tuple[float, float]:
    """The least and the largest."""
    return min(values), max(values)


def _number(figures: Figures, metric: str) -> float:
    value = figures[metric]
    assert value is not None, f"no {metric} in this run"
    return value
