"""The statistics of a search: where a beginning ends, whether a run grows, how sure means are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import stats

FloatArray = npt.NDArray[np.float64]

BATCH: Final = 5
WARM_UP_SHARE_MAX: Final = 0.25
"""At most this share of a run's requests is taken for its beginning."""
TREND_BATCHES: Final = 20
TREND_P: Final = 0.01
TREND_RISE: Final = 0.5


def warm_up(values: FloatArray) -> int:
    """How many of the first ``values`` belong to the beginning, by MSER-5 (White, 1997).

    The cut that makes the standard error of what follows least, over means of five; at most a
    quarter of the run is cut.
    """
    means = values[: len(values) // BATCH * BATCH].reshape(-1, BATCH).mean(axis=1)
    last = int(len(means) * WARM_UP_SHARE_MAX)
    if last < 1:
        return 0
    backwards = means[::-1]
    counts = np.arange(1, len(means) + 1)
    sums, squares = np.cumsum(backwards), np.cumsum(backwards**2)
    spread = (squares - sums**2 / counts) / counts**2
    return int(np.argmin(spread[::-1][: last + 1])) * BATCH


@dataclass(frozen=True, slots=True)
class Trend:
    """Whether values rise over time: slope (units a second), its one-sided p, the whole rise."""

    slope: float
    p: float
    rise: float
    mean: float

    @property
    def grows(self) -> bool:
        """A rise that is no accident (p < 0.01) and not small (half the mean or more)."""
        return self.p < TREND_P and self.rise > TREND_RISE * self.mean


def trend(times_s: FloatArray, values: FloatArray) -> Trend:
    """A line through the means of twenty consecutive groups; both arrays of shape (n,), n >= 3.

    Groups, since neighbours in a queue are alike: a line through single values is far too sure.
    """
    groups = min(TREND_BATCHES, len(values))
    x = np.array([part.mean() for part in np.array_split(times_s, groups)])
    y = np.array([part.mean() for part in np.array_split(values, groups)])
    mean = float(y.mean())
    if groups < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Trend(0.0, 1.0, 0.0, mean)
    line = stats.linregress(x, y, alternative="greater")
    return Trend(float(line.slope), float(line.pvalue), float(line.slope * np.ptp(x)), mean)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % interval, by Student's t; low and high are None for a single value."""

    mean: float
    low: float | None
    high: float | None

    def as_dict(self) -> dict[str, float | None]:
        return {"mean": self.mean, "low": self.low, "high": self.high}


def interval(values: list[float], level: float = 0.95) -> Interval:
    """The interval of the mean of independent ``values`` (at least one)."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean, None, None)
    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1) * stats.sem(values))
    return Interval(mean, mean - half, mean + half)
