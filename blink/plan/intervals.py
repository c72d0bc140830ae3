"""How far a figure of one run would move with other arrivals of the same kind.

Requests that follow each other are not independent: they share queues and steps. So whole *blocks*
of consecutive requests are drawn, with replacement, and the figure is computed again of each draw
(the block bootstrap; Künsch 1989). It says nothing of how right the model is.

Where a figure grows from the run's begin to its end, as latency does under overload, no draw of
its blocks is another such run: the figure depends on the run's length, and gets no interval.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

BLOCKS: Final = 20
DRAWS: Final = 400
LEVEL: Final = 0.95
REQUESTS_MIN: Final = 5 * BLOCKS
"""Below so many requests a block is too short to hold what neighbours share: no interval."""

GROWTH_MIN: Final = 2.0

_SEED: Final = 20260409
"""The draws are the same for every run and every time: intervals are part of a report's bytes."""

Floats = npt.NDArray[np.float64]
Statistic = Callable[[Floats], float]


def block_interval(
    values: npt.NDArray[Any], statistic: Statistic
) -> tuple[float, float] | tuple[None, None]:
    """The 95 % interval of ``statistic`` over ``values``, in order of arrival, shape (n,).

    (None, None) of fewer than REQUESTS_MIN values, or of values that grow. NaN is left out first.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    if len(known) < REQUESTS_MIN or grows(known):
        return None, None
    blocks = np.array_split(known, BLOCKS)
    rng = np.random.default_rng(_SEED)
    drawn = [
        statistic(np.concatenate([blocks[index] for index in rng.integers(0, BLOCKS, BLOCKS)]))
        for _ in range(DRAWS)
    ]
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def grows(values: Floats) -> bool:
    """Whether ``values``, in order of arrival, grow over a run: whether it is not stationary.

    They do if the last quarter's mean is GROWTH_MIN times the first half's, or more.
    """
    count = len(values)
    if count < REQUESTS_MIN:
        return False
    return bool(values[-(count // 4) :].mean() >= GROWTH_MIN * values[: count // 2].mean())


def mean(values: Floats) -> float:
    """The mean."""
    return float(values.mean())


def p50(values: Floats) -> float:
    """The median."""
    return float(np.quantile(values, 0.5))


def p99(values: Floats) -> float:
    """The 99th percentile, interpolated as in the figures."""
    return float(np.quantile(values, 0.99))
