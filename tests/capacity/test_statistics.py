"""Warm-up, trend and interval against what is known of made-up series."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from blink.plan.capacity.statistics import interval, trend, warm_up


def noise(count: int, seed: int = 1) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).exponential(1.0, count)


def test_a_cold_beginning_is_cut_and_nothing_else() -> None:
    values = noise(400)
    values[:50] += 20
    assert 45 <= warm_up(values) <= 75
    assert warm_up(noise(400)) <= 40


def test_at_most_a_quarter_is_cut_and_a_short_run_is_left_alone() -> None:
    assert warm_up(np.linspace(100, 0, 200)) <= 50
    assert warm_up(np.arange(9.0)) == 0
    assert warm_up(np.empty(0)) == 0


@pytest.mark.parametrize("seed", range(20))
def test_what_does_not_grow_is_not_said_to(seed: int) -> None:
    values = noise(300, seed)
    assert not trend(np.arange(300.0), values).grows


def test_a_queue_that_grows_is_found_with_its_slope() -> None:
    times = np.arange(300.0)
    found = trend(times, noise(300) + 0.05 * times)
    assert found.grows
    assert found.slope == pytest.approx(0.05, rel=0.1)


def test_a_rise_that_is_sure_and_small_is_no_growth() -> None:
    times = np.arange(300.0)
    found = trend(times, 10 + 0.003 * times)
    assert found.p < 0.01 and not found.grows


def test_constant_values_have_no_trend() -> None:
    assert trend(np.arange(9.0), np.ones(9)).p == 1.0
    assert trend(np.zeros(9), np.arange(9.0)).p == 1.0


def test_the_interval_is_students() -> None:
    found = interval([9.0, 10.0, 11.0])
    half = stats.t.ppf(0.975, 2) * 1.0 / np.sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx((10, 10 - half, 10 + half))
    assert interval([4.0]).low is None
