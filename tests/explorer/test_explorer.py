"""The explorer explores: all of a ring, the same whatever the number of processes, and replays."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink.cli import main
from blink.ring_protocol.states import TRANSITIONS
from blink.testing.explorer.copies import dump, key, load
from blink.testing.explorer.parts import FAULTS, Config
from blink.testing.explorer.planted import planted
from blink.testing.explorer.search import Search
from blink.testing.explorer.world import World

SMALL = ("--slots", "1", "--front-ends", "1", "--requests", "1")
NONE = frozenset[str]()


def test_a_small_ring_is_explored_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["complete"] is True
    assert found["violations"] == []
    assert found["states"] > 100 and found["transitions"] > found["states"]


def test_every_transition_of_the_table_is_taken() -> None:
    """Random walks through the default ring, few clients leaving, until nothing is missing."""
    rng = np.random.default_rng(1)
    missing = set(TRANSITIONS)
    for _ in range(2000):
        world = World(Config(faults=frozenset({"cancel"})))
        while (actions := world.actions()) and not world.done and missing:
            stay = [each for each in actions if each[0] != "cancel"]
            actions = actions if rng.random() < 0.1 or not stay else stay
            world.do(actions[rng.integers(len(actions))])
            missing -= set(world.edges)
    assert missing == set()


def test_processes_change_nothing() -> None:
    config = Config(requests=2, faults=NONE)
    alone, together = (Search(config, jobs=jobs).run() for jobs in (1, 2))
    assert alone.states == together.states
    assert alone.transitions == together.transitions
    assert alone.depth == together.depth


def test_a_budget_ends_a_search_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--slots", "4", "--budget", "0.001", "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    assert "not complete: explored " in said and "of >= " in said


def test_a_copy_is_the_same_world() -> None:
    world = World(Config())
    while actions := world.actions():
        world.do(actions[0])
        if world.done:
            break
        assert key(load(dump(world))) == key(world)


def test_a_violation_is_replayed_by_the_command_that_it_prints(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plant = ("--plant", "slot_freed_twice", "--faults", "none")
    assert main(["check", *SMALL, *plant]) == 1
    printed = capsys.readouterr().out
    assert "violated: SLOT:" in printed
    again = next(line for line in printed.splitlines() if line.startswith("again: blink "))
    timeline = tmp_path / "timeline.json"
    assert main([*again.split()[2:], "--timeline", str(timeline)]) == 1
    assert "cannot become" in capsys.readouterr().out.splitlines()[-1]
    events = json.loads(timeline.read_text(encoding="utf-8"))["traceEvents"]
    assert {"slot 0", "front end 0", "scheduler"} <= {
        event["args"].get("name") for event in events if event["ph"] == "M"
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--slots", "3"], "--slots: must be a multiple of --front-ends"),
        (["--window", "121"], "--window: must be 1 to 120"),
        (["--window", "1"], "--window: must be at least 2"),
        (["--requests", "0"], "--requests: must be 1 to 16"),
        (["--faults", "crsh"], 'did you mean "crash"'),
        (["--plant", "slot_freed"], 'did you mean "slot_freed_twice"'),
        (["--budget", "-1"], "--budget: must be above 0"),
        (["--replay", "0.x"], "is not numbers"),
        (["--replay", "0.9999"], "this ring has no such way"),
        (["--timeline", "x.json"], "goes with --replay"),
    ],
)
def test_bad_options(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(["check", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.out == ""


def test_all_faults_are_named() -> None:
    assert set(FAULTS) == {"cancel", "crash", "relaunch", "farewell", "repeat"}


@pytest.mark.parametrize(
    ("shape", "faults"),
    [
        ({"slots": 1, "front_ends": 1, "requests": 1, "threads": 1}, set(FAULTS)),
        ({"slots": 1, "front_ends": 1, "requests": 2, "threads": 1}, {"cancel", "farewell"}),
        ({"requests": 2, "threads": 2, "output_tokens": 2}, set[str]()),
    ],
    ids=["one", "two in turn", "two at once"],
)
def test_what_is_left_out_leads_nowhere_else(shape: dict[str, Any], faults: set[str]) -> None:
    """With and without reduction: the same ways to end, the same transitions of the table."""
    config = Config(**shape, faults=frozenset(faults), endings=True)
    reduced, whole = (Search(replace(config, reduced=each)).run() for each in (True, False))
    assert reduced.complete and whole.complete
    assert reduced.states < whole.states
    assert reduced.endings == whole.endings
    assert reduced.edges == whole.edges
    assert reduced.violations == whole.violations == []


def test_fuzz_says_how_many_walks_held(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "--walks", "100", "--seed", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["walks"], found["first_seed"], found["violations"]) == (100, 1, [])


def test_fuzz_tells_seed_commit_and_the_command_that_goes_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["fuzz", "--seed", "1", "--plant", "stale_block_table"]) == 1
    said = capsys.readouterr().out
    assert "violated: KV:" in said and "commit " in said and "seed " in said
    again = next(line for line in said.splitlines() if line.startswith("again: blink "))
    assert main(again.split()[2:]) == 1
    assert "KV: slot" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments", [["--for", "10"], ["--for", "0s"], ["--walks", "0"], ["--plant", "x"]]
)
def test_bad_options_of_fuzz(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(["fuzz", *arguments]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("bug", "more"), [("orphans_forgotten", ["--faults", "crash"]), ("urgent_slot_forgotten", [])]
)
def test_what_breaks_only_in_the_end_is_shown_by_its_replay(
    capsys: pytest.CaptureFixture[str], bug: str, more: list[str]
) -> None:
    assert main(["check", *SMALL, "--plant", bug, *more, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    way = found["violations"][0]["replay"]
    assert main(["check", *SMALL, "--plant", bug, *more, "--replay", way]) == 1
    assert "and then, without any fault: " in capsys.readouterr().err
    assert main(["check", *SMALL, *more, "--replay", "0"]) == 0


def test_a_search_that_a_violation_ends_is_not_complete() -> None:
    with planted("slot_freed_twice"):
        report = Search(Config(requests=2, faults=NONE)).run()
    assert report.violations and not report.complete
