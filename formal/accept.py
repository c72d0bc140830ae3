"""Does the formal model accept a recorded trace?

    python formal/accept.py TRACE.jsonl...

A trace has one JSON object a line, with the fields of `SlotMoved` (blink/ring_protocol/events.py):

    {"slot": 0, "generation": 1, "event": "SUBMIT", "writer": "FRONT_END",
     "state": "PREFILL_PENDING", "tokens": 0, "outcome": "NONE"}

in the order in which each slot's flag words were published; lines of other kinds of event, which
have no "state", are passed over. Each slot's events must be a behaviour of the model's slot. What
the model says about several slots together (window, batch, claims by two threads) is not asked.

A trace is cut into lives: from a SUBMIT up to and including the next SUBMIT of its slot.
Generations count from the one before; so equal lives are equal rows, and each is checked once,
however long the trace. A trace may end in the middle of a life, not begin there.

Exit status: 0 if all are accepted, 1 if not, 2 if a tool is missing or a trace cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from formal.verifier import FORMAL, MissingTool, require_tools, run_acceptor

# The numbers of slot.pml.
STATES: Final = [
    "EMPTY",
    "PREFILL_PENDING",
    "PREFILL_PROCESSING",
    "DECODE_PROCESSING",
    "DECODE_PAUSED",
    "DECODE_COMPLETED",
]
EVENTS: Final = [
    "SUBMIT",
    "CLAIM",
    "FIRST_TOKEN",
    "TOKENS",
    "PAUSE",
    "RESUME",
    "COMPLETE",
    "ABORT",
    "RELEASE",
]
WRITERS: Final = ["FRONT_END", "SCHEDULER"]
OUTCOMES: Final = ["NONE", "STOP", "LENGTH", "CANCELLED", "TIMED_OUT", "FAILED", "REJECTED"]
GENERATION_MIN: Final = -(1 << 30)


class BadTrace(Exception):
    """A line that is no event; the message says which, and why."""


class Step(NamedTuple):
    """One event, as numbers; the generation counts from the life before."""

    event: int
    writer: int
    state: int
    outcome: int
    generation: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Move:
    """One line of a trace."""

    place: str  # "file:line"
    slot: int
    generation: int
    step: Step


@dataclass(frozen=True, slots=True)
class Refusal:
    """The first event of a life that the model does not allow, and how many lives are like it."""

    move: Move
    state: str
    alike: int

    def __str__(self) -> str:
        event = EVENTS[self.move.step.event]
        writer = WRITERS[self.move.step.writer]
        target = STATES[self.move.step.state]
        more = f" (and {self.alike - 1} lives like it)" if self.alike > 1 else ""
        return (
            f"{self.move.place}: slot {self.move.slot}, generation {self.move.generation}: "
            f"{event} by {writer} in {self.state}, to {target} with "
            f"{self.move.step.tokens} tokens and {OUTCOMES[self.move.step.outcome]}, "
            f"is no step of the model{more}"
        )


def read_trace(path: Path) -> list[Move]:
    """The moves of a trace, in its order. Raises BadTrace."""
    moves = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrace(f"{path}: {error}") from error
    for number, line in enumerate(lines, 1):
        place = f"{path}:{number}"
        try:
            fields = json.loads(line) if line.strip() else {}
            if "state" in fields:
                moves.append(_move(place, fields))
        except (ValueError, KeyError, TypeError) as error:
            raise BadTrace(f"{place}: not an event of a trace: {error!r}") from error
    return moves


def _move(place: str, fields: dict[str, Any]) -> Move:
    generation = int(fields["generation"])
    step = Step(
        EVENTS.index(fields["event"]),
        WRITERS.index(fields["writer"]),
        STATES.index(fields["state"]),
        OUTCOMES.index(fields["outcome"]),
        generation,
        int(fields["tokens"]),
    )
    return Move(place, int(fields["slot"]), generation, step)


def lives_of(moves: Iterable[Move]) -> list[list[Move]]:
    """One trace, cut at each slot's SUBMITs; a life ends with the SUBMIT that follows it."""
    open_lives: dict[int, list[Move]] = {}
    lives = []
    submit = EVENTS.index("SUBMIT")
    for move in moves:
        life = open_lives.get(move.slot)
        if life is not None:
            life.append(move)
        if life is None or move.step.event == submit:
            open_lives[move.slot] = [move]
            lives.append(open_lives[move.slot])
    return lives


def relative(life: Sequence[Move]) -> tuple[Step, ...]:
    """The steps of a life, with generations that count from the one before it."""
    before = life[0].generation - 1
    return tuple(
        move.step._replace(generation=max(move.generation - before, GENERATION_MIN))
        for move in life
    )


def refusals(lives: Sequence[Sequence[Move]]) -> list[Refusal]:
    """What the model does not allow, one for each distinct life that it refuses."""
    alike: dict[tuple[Step, ...], list[Sequence[Move]]] = {}
    for life in lives:
        alike.setdefault(relative(life), []).append(life)
    if not alike:
        return []
    owners: list[tuple[tuple[Step, ...], int]] = [
        (steps, index) for steps in alike for index in range(len(steps))
    ]
    with tempfile.TemporaryDirectory(prefix="blink-accept-") as name:
        folder = Path(name)
        (folder / "trace.h").write_text(_rows(owners), encoding="utf-8")
        found = run_acceptor(folder, FORMAL / "accept.pml", len(owners))
    return [
        Refusal(alike[steps][0][index], STATES[state], len(alike[steps]))
        for (steps, index), state in ((owners[row], state) for row, state in found)
    ]


def _rows(owners: Sequence[tuple[tuple[Step, ...], int]]) -> str:
    """The steps as an array in C, which is no part of a state and so costs nothing."""
    rows = ",\n".join(
        "{" + ", ".join(str(value) for value in (int(index == 0), *steps[index])) + "}"
        for steps, index in owners
    )
    fields = "int begins, event, writer, state, outcome, generation, tokens;"
    return f"static const struct {{ {fields} }} trace[] = {{\n{rows}\n}};\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the traces named; returns the exit status."""
    parser = argparse.ArgumentParser(description="Ask the formal model about recorded traces.")
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE.jsonl")
    options = parser.parse_args(arguments)
    try:
        require_tools()
        lives = []
        moves = 0
        for path in options.traces:
            trace = read_trace(path)
            moves += len(trace)
            lives += lives_of(trace)
    except (MissingTool, BadTrace) as error:
        print(error, file=sys.stderr)
        return 2
    refused = refusals(lives)
    for refusal in refused:
        print(refusal)
    distinct = len({relative(life) for life in lives})
    verdict = f"refused: {len(refused)} distinct lives" if refused else "accepted"
    print(f"{verdict}; {moves} events, {len(lives)} lives, {distinct} distinct")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
