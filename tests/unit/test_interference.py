"""The interference mechanism: quiet is neutral, neighbours never help, mitigations never hurt."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.model.control_plane import profile
from blink.model.errors import UnknownName
from blink.model.hardware import host
from blink.model.interference import QUIET, Interference, Neighbour, host_pressure

PAPER, OURS, VLLM = host("paper"), host("h200-vm"), profile("vllm")
KINDS = st.sampled_from(["pbzip2", "ninja", "memory_thrash"])


def noisy(threads: int = 45, **mitigation: int) -> Interference:
    both = (Neighbour("pbzip2", threads), Neighbour("ninja", threads))
    return Interference(both, **mitigation)  # type: ignore[arg-type]


def test_a_quiet_host_changes_nothing() -> None:
    pressure = host_pressure(PAPER, VLLM, QUIET)
    assert pressure.inflation_mean == 1.0
    assert pressure.stall_probability(1e9) == 0.0


def test_blink_feels_no_stall() -> None:
    """It has no host work: whatever the factor, nothing is multiplied by it."""
    plane = profile("blink")
    assert plane.launch_host_ns(1, True) * host_pressure(PAPER, plane, noisy()).inflation_mean == 0


@given(kind=KINDS, threads=st.integers(1, 200), more=st.integers(1, 100))
def test_a_neighbour_never_helps(kind: str, threads: int, more: int) -> None:
    few = host_pressure(OURS, VLLM, Interference((Neighbour(kind, threads),)))
    many = host_pressure(OURS, VLLM, Interference((Neighbour(kind, threads + more),)))
    assert 1.0 <= few.inflation_mean <= many.inflation_mean
    assert few.llc_miss_rate <= many.llc_miss_rate < 1


@given(ways=st.integers(1, 11))
def test_cache_ways_restore_the_miss_rate_and_little_else(ways: int) -> None:
    fewer = host_pressure(PAPER, VLLM, noisy(pinned_cores=6, llc_ways=ways))
    more = host_pressure(PAPER, VLLM, noisy(pinned_cores=6, llc_ways=ways + 1))
    assert more.llc_miss_rate <= fewer.llc_miss_rate
    assert more.inflation_mean <= fewer.inflation_mean
    assert more.inflation_mean > 1.2, "translation and traffic stay (paper Table 4)"


def test_seven_ways_reach_the_quiet_miss_rate() -> None:
    """Paper Table 4: 7.0 % at 7 ways, about 58 % at one."""
    at = [
        host_pressure(PAPER, VLLM, noisy(pinned_cores=6, llc_ways=ways)).llc_miss_rate
        for ways in (1, 7)
    ]
    assert at == [pytest.approx(0.58, abs=0.06), pytest.approx(0.07, abs=0.005)]


def test_fewer_cores_queue_the_servers_own_threads() -> None:
    six = host_pressure(PAPER, VLLM, noisy(pinned_cores=6))
    many = host_pressure(PAPER, VLLM, noisy(pinned_cores=40))
    assert six.runnable_per_cpu > many.runnable_per_cpu == 1.0


@given(work=st.integers(1, 20_000_000), seed=st.integers(0, 100))
def test_phases_are_long_and_repeatable(work: int, seed: int) -> None:
    pressure = host_pressure(OURS, VLLM, noisy(24))
    drawn = pressure.phases_ns(float(work), 5, np.random.default_rng(seed))
    again = pressure.phases_ns(float(work), 5, np.random.default_rng(seed))
    assert drawn.dtype == np.int64 and (drawn >= 0).all()
    assert np.array_equal(drawn, again)


def test_phases_have_the_stated_mean() -> None:
    pressure = host_pressure(OURS, VLLM, noisy(24, pinned_cores=6))
    drawn = pressure.phases_ns(2e6, 40_000, np.random.default_rng(1))
    assert drawn.mean() == pytest.approx(2e6 * pressure.inflation_mean, rel=0.03)


def test_an_unknown_neighbour_is_refused() -> None:
    with pytest.raises(UnknownName, match="pbzip2"):
        host_pressure(PAPER, VLLM, Interference((Neighbour("pbzip", 3),)))
