"""The whole stack, driven by Hypothesis and by seeds; and that both would notice."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings

from blink.testing.explorer.fuzz import walk
from blink.testing.explorer.machine import Broken
from blink.testing.explorer.planted import planted
from blink.testing.explorer.search import replay
from blink.testing.stack import check_stack, default_settings

QUICK = settings(
    default_settings(),
    max_examples=300,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    database=None,
    derandomize=True,
)


def test_the_stack_holds() -> None:
    check_stack()


@pytest.mark.canary
@pytest.mark.parametrize("bug", ["paused_request_starved", "stale_block_table", "slot_freed_twice"])
def test_hypothesis_finds_a_planted_bug(bug: str) -> None:
    with planted(bug), pytest.raises(Broken):
        check_stack(settings=QUICK)


def test_walks_hold() -> None:
    assert [found for seed in range(60) if (found := walk(seed)) is not None] == []


@pytest.mark.canary
@pytest.mark.parametrize("bug", ["kv_block_leaked_on_abort", "orphans_forgotten", "relaunch_lost"])
def test_a_walk_finds_a_planted_bug_and_tells_a_short_way(bug: str) -> None:
    with planted(bug):
        found = next(found for seed in range(200) if (found := walk(seed)) is not None)
        again = walk(found.seed)
        assert again == found, "the same seed is the same walk"
        steps = replay(found.config, found.path)
    assert len(steps) <= len(found.path)
