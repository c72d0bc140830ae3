"""Wall power and energy per token."""

from __future__ import annotations

import pytest

from blink.model.energy import energy_mj_per_token, wall_power_w
from blink.model.hardware import dpu, gpu, host

H100, PAPER, BF3 = gpu("H100 96GB"), host("paper"), dpu("bluefield-3")


def test_power_rises_with_work_and_stays_in_the_papers_band() -> None:
    """Paper sec 6.3 (fig8.wall): 1.1-1.4 kW at saturation, neighbours or not."""
    idle = wall_power_w(H100, PAPER, None, gpu_busy=0, cores_busy=0)
    busy = wall_power_w(H100, PAPER, None, gpu_busy=1, cores_busy=6)
    noisy = wall_power_w(H100, PAPER, BF3, gpu_busy=1, cores_busy=48)
    assert idle < busy < noisy
    assert 950 < busy < noisy < 1450


def test_a_host_has_no_more_cores_than_it_has() -> None:
    powers = [wall_power_w(H100, PAPER, None, gpu_busy=1, cores_busy=n) for n in (48, 500)]
    assert powers[0] == powers[1]


def test_energy_is_power_times_time_over_tokens() -> None:
    assert energy_mj_per_token(1408.0, 10.0, 38_800) == pytest.approx(362.9, abs=0.1)
    assert energy_mj_per_token(1408.0, 10.0, 0) is None


def test_a_share_beyond_one_is_refused() -> None:
    with pytest.raises(ValueError, match="gpu_busy"):
        wall_power_w(H100, PAPER, None, gpu_busy=1.5, cores_busy=0)
