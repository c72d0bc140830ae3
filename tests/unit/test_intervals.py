"""Intervals hold what they say, and are not given where they would mislead."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from blink.plan.intervals import REQUESTS_MIN, block_interval, grows, mean, p50, p99


def width(values: npt.NDArray[np.float64]) -> float:
    low, high = block_interval(values, mean)
    assert low is not None
    assert high is not None
    return high - low


def test_nineteen_of_twenty_intervals_hold_the_mean() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(100):
        low, high = block_interval(rng.exponential(10, 400), mean)
        assert low is not None
        assert high is not None
        held += low <= 10 <= high
    assert 0.86 <= held / 100 <= 0.99  # of 20 blocks it is a little too narrow


def test_what_hangs_together_makes_the_interval_wider() -> None:
    rng = np.random.default_rng(6)
    alone = rng.normal(100, 10, 1000)
    together = np.repeat(rng.normal(100, 10, 100), 10)
    assert width(together) > 2 * width(alone)


def test_the_same_values_give_the_same_interval() -> None:
    values = np.random.default_rng(7).exponential(1, 300)
    assert block_interval(values, p99) == block_interval(values, p99)
    low, high = block_interval(values, p50)
    assert low is not None
    assert low <= np.median(values) <= (high or 0)


@pytest.mark.parametrize("values", [np.ones(REQUESTS_MIN - 1), np.linspace(1, 100, 400)])
def test_few_or_growing_values_have_none(values: npt.NDArray[np.float64]) -> None:
    assert block_interval(values, mean) == (None, None)


def test_a_flat_run_does_not_grow() -> None:
    rng = np.random.default_rng(8)
    assert not any(grows(rng.exponential(50, 300)) for _ in range(50))
    assert grows(np.concatenate([np.full(250, 40.0), np.linspace(40, 3000, 50)]))


def test_what_is_not_a_number_is_left_out() -> None:
    values = np.random.default_rng(9).normal(5, 1, 400)
    holes = np.insert(values, [3, 200], np.nan)
    assert block_interval(holes, mean) == block_interval(values, mean)
