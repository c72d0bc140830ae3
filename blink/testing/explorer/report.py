"""An exploration for people: a table, a numbered trace, and the trace as a timeline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from blink.ring_protocol.slot import SlotWord, unpack
from blink.testing.explorer.parts import Action, Config
from blink.testing.explorer.search import Report, Violation, replay
from blink.testing.explorer.world import World

STEP_US = 1000
"""A step has no duration: on a timeline each takes a millisecond."""


def document(report: Report) -> dict[str, Any]:
    """What ``blink check --json`` prints."""
    return {
        "states": report.states,
        "transitions": report.transitions,
        "depth": report.depth,
        "frontier": report.frontier,
        "ended": report.ended,
        "complete": report.complete,
        "edges_missing": report.edges_missing,
        "violations": [_violation(report.config, each) for each in report.violations],
        "seconds": round(report.seconds, 2),
    }


def print_report(report: Report, command: str, console: Console | None = None) -> None:
    """Print what was explored and, numbered, the way to a violation.

    ``command`` is the command line without ``--replay``, to be given again.
    """
    console = console or Console()
    seen = f"{report.states:,} states, {report.transitions:,} transitions, depth {report.depth}"
    console.print(f"{seen}, {report.ended:,} of them ends, in {report.seconds:.1f} s")
    if report.violations:
        for each in report.violations:
            console.print(f"[bold red]violated[/]: {each.what}", highlight=False)
            print_trace(report.config, each.path, console)
            way = ".".join(map(str, each.path))
            console.print(f"again: {command} --replay {way}", soft_wrap=True, highlight=False)
    elif report.complete:
        missing = ", ".join(sorted(report.edges_missing)) or "none"
        console.print(f"transitions of the table not taken: {missing}")
        console.print(
            "complete: no invariant is broken, nothing gets stuck, and from every state every "
            "request can still end"
        )
    else:
        least = report.states + report.frontier
        console.print(f"not complete: explored {report.states - report.frontier:,} of >= {least:,}")


def print_trace(config: Config, path: tuple[int, ...], console: Console | None = None) -> None:
    """Print a way, one numbered line a step, with what each slot holds then."""
    console = console or Console()
    for number, step in enumerate(replay(config, path), start=1):
        slots = "  ".join(_word(word) for word in _words(step.world))
        console.print(f"{number:4}  {step.said:<58} {slots}", soft_wrap=True, highlight=False)


def write_timeline(config: Config, path: tuple[int, ...], out: Path) -> None:
    """Write a way as Chrome trace events: a track a slot, one a front end, one the scheduler."""
    steps = replay(config, path)
    events = [_named(track, name) for track, name in enumerate(_tracks(config))]
    for number, step in enumerate(steps):
        track = _track_of(config, step.action)
        events.append(_event(track, number, 1, step.said, {"step": number + 1}))
    for slot in range(config.slots):
        events += _slot_events(slot, [_words(step.world)[slot] for step in steps])
    out.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")


def _violation(config: Config, violation: Violation) -> dict[str, Any]:
    return {
        "what": violation.what,
        "invariant": violation.what.partition(":")[0],
        "replay": ".".join(map(str, violation.path)),
        "trace": [step.said for step in replay(config, violation.path)],
    }


def _words(world: World) -> list[SlotWord]:
    geometry = world.config.geometry
    flags = [geometry.metadata_offset(slot) for slot in range(world.config.slots)]
    return [unpack(world.memory.words.get(flag, 0)) for flag in flags]


def _word(word: SlotWord) -> str:
    outcome = f" {word.outcome.name}" if word.outcome else ""
    return f"{word.state.name}{outcome} g{word.generation} t{word.tokens}"


def _tracks(config: Config) -> list[str]:
    slots = [f"slot {slot}" for slot in range(config.slots)]
    return [*slots, *(f"front end {n}" for n in range(config.front_ends)), "scheduler"]


def _track_of(config: Config, action: Action) -> int:
    of_front_end = action[0] in ("submit", "cancel", "land", "sample", "answer", "repeat", "crash")
    return config.slots + (action[1] if of_front_end else config.front_ends)


def _slot_events(slot: int, words: Sequence[SlotWord]) -> list[dict[str, Any]]:
    events, since = [], 0
    for number, word in enumerate(words):
        last = number == len(words) - 1
        if last or words[number + 1] != word:
            events.append(_event(slot, since, number + 1 - since, _word(word), {}))
            since = number + 1
    return events


def _event(track: int, at: int, steps: int, name: str, args: dict[str, Any]) -> dict[str, Any]:
    when = {"ts": at * STEP_US, "dur": steps * STEP_US}
    return {"ph": "X", "pid": 1, "tid": track, "name": name, **when, "args": args}


def _named(track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": {"name": name}}
