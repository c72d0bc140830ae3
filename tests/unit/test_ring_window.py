"""The launch window counts; it never lets the device find out."""

from __future__ import annotations

import pytest

from blink.ring_protocol.errors import WindowExhausted
from blink.ring_protocol.window import LaunchWindow


def test_the_121st_launch_is_refused_and_not_counted() -> None:
    window = LaunchWindow()
    window.launch(119)
    with pytest.raises(WindowExhausted, match="2 launches wanted, 1 of 120 left"):
        window.launch(2)
    assert (window.launches, window.headroom) == (119, 1)
    window.launch()
    with pytest.raises(WindowExhausted):
        window.launch()


def test_a_relaunch_gives_a_full_window_and_forgets_nothing() -> None:
    window = LaunchWindow(3)
    window.launch(3)
    window.relaunch()
    window.launch(2)
    assert (window.launches, window.headroom) == (2, 1)
    assert (window.launches_total, window.relaunches) == (5, 1)


def test_the_execs_of_each_graph_take_turns_across_a_relaunch() -> None:
    window = LaunchWindow()
    assert [window.alternate("decode") for _ in range(3)] == [0, 1, 0]
    assert window.alternate("prefill") == 0
    window.relaunch()
    assert window.alternate("decode") == 1


@pytest.mark.parametrize("max_launches", [0, 121])
def test_a_window_has_1_to_120_launches(max_launches: int) -> None:
    with pytest.raises(ValueError, match=str(max_launches)):
        LaunchWindow(max_launches)


def test_a_launch_of_nothing_is_a_bug() -> None:
    with pytest.raises(ValueError, match="0 graphs"):
        LaunchWindow().launch(0)
