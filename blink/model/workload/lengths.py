"""Prompt and output lengths, vectorised."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from blink.model.scenario.traffic import ConstantLengths, LognormalLengths, TableLengths
from blink.model.workload.tables import length_table

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def draw_lengths(
    spec: ConstantLengths | LognormalLengths | TableLengths,
    count: int,
    rng_for: Callable[[str], np.random.Generator],
) -> tuple[Int64Array, Int64Array]:
    """Input and output tokens, int64 of shape (count,), at least 1 each.

    Raises UnknownName for a table that is not there.
    """
    if isinstance(spec, ConstantLengths):
        return (
            np.full(count, spec.input_tokens, dtype=np.int64),
            np.full(count, spec.output_tokens, dtype=np.int64),
        )
    first = rng_for("workload.input_tokens").standard_normal(count)
    second = rng_for("workload.output_tokens").standard_normal(count)
    if isinstance(spec, LognormalLengths):
        return _lognormal(spec, first, second)
    table = length_table(spec.table)
    correlated = _correlate(first, second, table.rank_correlation)
    inputs = table.input_tokens(_normal_cdf(first))
    outputs = table.output_tokens(_normal_cdf(correlated))
    return np.minimum(inputs, spec.input_tokens_max), np.minimum(outputs, spec.output_tokens_max)


def _lognormal(
    spec: LognormalLengths, first: FloatArray, second: FloatArray
) -> tuple[Int64Array, Int64Array]:
    def scale(z: FloatArray, mean: float, sigma: float, low: int, high: int) -> Int64Array:
        # exp(mu + sigma z) has the mean exp(mu + sigma^2 / 2).
        values = np.exp(np.log(mean) - sigma * sigma / 2 + sigma * z)
        tokens: Int64Array = np.clip(np.rint(values), low, high).astype(np.int64)
        return tokens

    return (
        scale(
            first,
            spec.input_tokens_mean,
            spec.input_sigma,
            spec.input_tokens_min,
            spec.input_tokens_max,
        ),
        scale(
            second,
            spec.output_tokens_mean,
            spec.output_sigma,
            spec.output_tokens_min,
            spec.output_tokens_max,
        ),
    )


def _correlate(first: FloatArray, second: FloatArray, rank_correlation: float) -> FloatArray:
    """Make `second` depend on `first` (a Gaussian copula with that rank correlation)."""
    rho = 2.0 * np.sin(np.pi * rank_correlation / 6.0)
    dependent: FloatArray = rho * first + np.sqrt(1.0 - rho * rho) * second
    return dependent


def _normal_cdf(z: FloatArray) -> FloatArray:
    """The standard normal distribution function, to 1e-7 (Abramowitz and Stegun 26.2.17)."""
    size = np.abs(z)
    t = 1.0 / (1.0 + 0.2316419 * size)
    series = t * (
        0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    )
    tail: FloatArray = np.exp(-0.5 * size * size) / np.sqrt(2.0 * np.pi) * series
    return np.where(z < 0, tail, 1.0 - tail)
