"""Arrival times, vectorised. Every function returns sorted float64 seconds of shape (count,).

A shorter draw from the same generator state is the beginning of a longer one, and a rate only
stretches time, so runs that differ in length or rate share their randomness.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from blink.model.scenario.traffic import BurstsWorkload
from blink.model.workload.tables import length_table

Seconds = npt.NDArray[np.float64]


def poisson_s(count: int, rate: float, rng: np.random.Generator) -> Seconds:
    """Exponential gaps of mean 1/rate; the first request comes after one gap."""
    return np.cumsum(rng.standard_exponential(count)) / rate


def constant_s(count: int, rate: float) -> Seconds:
    """Gaps of exactly 1/rate; the first request comes at 0."""
    return np.arange(count, dtype=np.float64) / rate


def gamma_s(count: int, rate: float, cv: float, rng: np.random.Generator) -> Seconds:
    """Gamma gaps of mean 1/rate and coefficient of variation `cv`; cv = 1 is Poisson."""
    shape = 1.0 / (cv * cv)
    return np.cumsum(rng.standard_gamma(shape, count)) / (shape * rate)


def on_off_s(
    count: int, rate: float, on_s: float, off_s: float, rng: np.random.Generator
) -> Seconds:
    """Poisson during on_s, silence during off_s, in turn; `rate` is the mean over both."""
    period_s = on_s + off_s
    busy_s = poisson_s(count, rate * period_s / on_s, rng)
    return busy_s + np.floor(busy_s / on_s) * off_s


def table_s(count: int, rate: float, table: str, rng: np.random.Generator) -> Seconds:
    """Independent gaps with the distribution of a table's gaps, scaled to mean 1/rate.

    Raises UnknownName for no such table.
    """
    gaps = length_table(table).gaps(rng.random(count))
    return np.cumsum(gaps) / rate


def bursts_s(spec: BurstsWorkload, count: int, rng: np.random.Generator) -> Seconds:
    """The arrivals of kind "bursts", whichever of its shapes is given."""
    if spec.table is not None:
        return table_s(count, spec.rate, spec.table, rng)
    if spec.cv is not None:
        return gamma_s(count, spec.rate, spec.cv, rng)
    assert spec.on_s is not None and spec.off_s is not None
    return on_off_s(count, spec.rate, spec.on_s, spec.off_s, rng)
