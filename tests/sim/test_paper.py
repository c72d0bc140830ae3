"""The paper's figures: each has an answer, and the ones the twin should get right are near."""

from __future__ import annotations

import pytest

from blink.model.errors import UnknownName
from blink.model.provenance import catalogue
from blink.plan.paper import PREDICTIONS, compare_paper, print_paper


def test_every_stated_figure_has_a_prediction() -> None:
    assert set(catalogue("paper.toml")) <= set(PREDICTIONS)


@pytest.mark.parametrize(
    ("figure", "low", "high"),
    [
        ("t1.ttft_p99_iso", 0.8, 1.2),
        ("t1.p99_itl_iso", 0.8, 1.2),
        ("t1.p99_tpot_iso", 0.8, 1.2),
        ("t1.tput_iso", 0.8, 1.2),
        ("t2.tpot_mean_iso", 0.85, 1.15),
        ("t3.decode_tput", 0.7, 1.4),
        ("derived.t4_llc_1way", 0.9, 1.1),
    ],
)
def test_quiet_figures_are_near(figure: str, low: float, high: float) -> None:
    row = compare_paper(figure)[0]
    assert low <= row["ratio"] <= high, row


def test_cache_ways_restore_the_miss_rate_but_not_the_tail() -> None:
    low, high = compare_paper("t4.itl_p99")[0]["predicted"]
    assert high / low < 1.2


def test_an_unknown_figure_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r'did you mean "t1\.tput_iso"'):
        compare_paper("t1.tput_isolated")


def test_the_table_prints(capsys: pytest.CaptureFixture[str]) -> None:
    print_paper(compare_paper("launch"))
    assert "launch.ff" in capsys.readouterr().out


def test_what_is_far_off_says_what_is_suspected(capsys: pytest.CaptureFixture[str]) -> None:
    print_paper(compare_paper("t1.tput_int"))
    assert "t1.tput_int: far off. Suspected: " in capsys.readouterr().out
