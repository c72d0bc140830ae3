"""Runs the stress program (``csrc/stress.cpp``): the core on real threads, under load.

Every token, outcome, prompt and block table is looked at while front ends, scanners and the engine
race. ``benchmarks/stress.py`` measures with it; ``make tsan`` and ``make asan`` run it under
sanitizers.
"""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from blink.hw.host.build import build
from blink.ring_protocol.events import SlotMoved
from blink.ring_protocol.slot import explain, unpack
from blink.ring_protocol.states import Writer

PLANTS: Final = ("none", "cas_always_wins", "relaxed_store", "lost_output", "flag_before_payload")
"""``enum class Plant``: bugs that the program can be given."""

_LOGGED: Final = struct.Struct("<IIQ")  # struct Logged: slot, writer, word


class StressFailed(Exception):
    """A run that ended otherwise than by its own report: what it wrote to stderr."""


def run(
    options: Mapping[str, int | str] = {},
    *,
    sanitizer: str = "plain",
    plant: str = "none",
) -> dict[str, Any]:
    """One run; returns what it reports.

    options: as in stress.cpp, without dashes, such as ``{"lifecycles": 10_000_000}``. The report
    has ``lifecycles``, ``lifecycles_per_s``, ``seconds``, ``violations``, ``violation`` (the first,
    beginning with its invariant) and counts. Raises StressFailed if a sanitizer ends the run or the
    program dies, BackendUnavailable without g++.
    """
    arguments = {**options, "plant": PLANTS.index(plant)}
    command = [str(build("stress", sanitizer))]
    command += [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout:
        raise StressFailed(done.stderr or f"{command[0]} ended with status {done.returncode}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def moves(log: Path) -> Iterator[SlotMoved]:
    """What a run with the options ``log`` and ``log-path`` saw at its flag words, in their order.

    Raises ValueError at a word that no event of its writer explains: SLOT.
    """
    words: dict[int, int] = {}
    for slot, writer, word in _LOGGED.iter_unpack(log.read_bytes()):
        if word == 0:
            continue  # a compare-and-swap that lost
        event = explain(words.get(slot, 0), word)
        if event is None:
            raise ValueError(f"SLOT: slot {slot}: {words.get(slot, 0):#x} became {word:#x}")
        state, outcome, generation, tokens = unpack(word, slot=slot)
        yield SlotMoved(slot, generation, event, Writer(writer), state, tokens, outcome)
        words[slot] = word
