"""Planted bugs: every one must be found, by an exploration of the ring that is just large enough.

A bug that is not found fails here, and so does a search that finds something without one.
"""

from __future__ import annotations

from typing import Any

import pytest

from blink.model.errors import UnknownName
from blink.testing.explorer.parts import Config
from blink.testing.explorer.planted import BUGS, planted
from blink.testing.explorer.search import Search

ONE: dict[str, Any] = {"slots": 1, "front_ends": 1, "requests": 1, "threads": 1}
TWO_IN_TURN = {**ONE, "requests": 2}
FOUND_BY: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "flag_before_payload": ("CAUSAL", ONE, set()),
    "missing_generation": ("SLOT", TWO_IN_TURN, set()),
    "cas_always_wins": ("SLOT", {"requests": 2, "threads": 2}, set()),
    "claim_whatever_cas_says": ("OWNER", {"requests": 2, "threads": 2}, set()),
    "window_of_one_more": ("WINDOW", {**ONE, "window": 2}, set()),
    "exec_reused_while_running": ("WINDOW", ONE, set()),
    "relaunch_adopts_nothing": ("SLOT", {**ONE, "window": 2}, set()),
    "relaunch_lost": ("WORK", {**ONE, "window": 2}, set()),
    "token_published_before_written": ("ORDER", ONE, set()),
    "slot_freed_twice": ("SLOT", ONE, set()),
    "cancel_lost_in_prefill": ("WORK", ONE, {"cancel"}),
    "cancel_of_any_generation": ("CONSERVE", TWO_IN_TURN, {"farewell"}),
    "kv_block_leaked_on_abort": ("KV", ONE, {"cancel"}),
    "paused_request_starved": ("WORK", {"requests": 2}, set()),
    "prompt_without_a_pause": ("SLOT", {"requests": 2}, set()),
    "stale_block_table": ("KV", ONE, set()),
    "block_of_two_owners": ("KV", {"requests": 2}, set()),
    "late_completion_of_a_reused_slot": ("ORDER", TWO_IN_TURN, {"repeat"}),
    "urgent_slot_forgotten": ("WORK", ONE, set()),
    "orphans_forgotten": ("SLOT", ONE, {"crash"}),
}
"""Which invariant each bug breaks first, on which ring, with which faults."""


@pytest.mark.canary
@pytest.mark.parametrize("name", FOUND_BY)
def test_a_planted_bug_is_found(name: str) -> None:
    invariant, shape, faults = FOUND_BY[name]
    with planted(name):
        report = Search(Config(**shape, faults=frozenset(faults)), budget_s=30).run()
    assert report.violations, f"{name} survives {report.states} states"
    assert report.violations[0].what.startswith(f"{invariant}:"), report.violations[0].what


@pytest.mark.parametrize("faults", [set[str](), {"cancel", "crash", "relaunch"}])
@pytest.mark.parametrize("shape", [ONE, TWO_IN_TURN], ids=["one", "two in turn"])
def test_without_a_bug_nothing_is_found(shape: dict[str, Any], faults: set[str]) -> None:
    report = Search(Config(**shape, faults=frozenset(faults))).run()
    assert report.complete and report.violations == []


def test_every_planted_bug_has_its_test() -> None:
    assert set(FOUND_BY) == set(BUGS)
    assert len(BUGS) >= 15


def test_an_unknown_bug_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="slot_freed_twice"), planted("slot_freed"):
        raise AssertionError("nothing was planted")
