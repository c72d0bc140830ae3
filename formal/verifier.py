"""Spin as a function: a model and its macros go in, what an exhaustive search found comes out.

Spin translates Promela to a C program, gcc compiles that, and the program searches. Nothing here
uses bitstate hashing or hash compaction: a search that ended without an error has seen every state.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FORMAL = Path(__file__).resolve().parent
MODEL = FORMAL / "ring.pml"
DEPTH_MAX = 100_000  # steps of one path; a longer one is reported, not cut off in silence
ACCEPT_SECONDS_MAX = 120.0
TABLE_BITS = 22  # of the table of states; it affects speed alone
MEMORY_MIB_MAX = 900  # of one search; two run at once


class MissingTool(Exception):
    """Spin or gcc is not installed; the message says what to do."""


class BrokenModel(Exception):
    """Spin or gcc refused the model; the message is theirs."""


@dataclass(frozen=True, slots=True)
class Search:
    """What one search found.

    states: stored, each once (under fairness the search visits a state several times).
    finished: every reachable state was seen, within the limits on depth, memory and time.
    violated: None, or what was: the name of an invariant, "deadlock" or "fair cycle".
    unreached: statements that the search never executed, as (process, state number).
    """

    states: int
    transitions: int
    depth: int
    seconds: float
    finished: bool
    violated: str | None
    unreached: frozenset[tuple[str, str]]
    output: str


def require_tools() -> None:
    """Raise MissingTool, in one line, unless spin and gcc are there."""
    for tool, package in (("spin", "spin"), ("gcc", "spin gcc libc6-dev")):
        if shutil.which(tool) is None:
            raise MissingTool(f"{tool} is missing: apt-get install {package}")


def search(
    folder: Path,
    model: Path,
    defines: Sequence[str],
    *,
    liveness: bool,
    seconds_max: float,
    small: bool,
    memory_mib_max: int,
) -> Search:
    """Search every state of `model` under `defines`, with its files in `folder`.

    liveness: look for a weakly fair cycle that breaks the model's LTL property; otherwise for a
    failed assertion or a deadlock. small: the search is short, so let gcc not optimise.
    Raises BrokenModel.
    """
    started = time.monotonic()
    macros = [f"-D{define}" for define in defines]
    _call(["spin", *macros, "-a", str(model)], folder)
    kind = ["-DNFAIR=3"] if liveness else ["-DSAFETY"]
    compiler = ["gcc", "-O0" if small else "-O1", "-w", f"-DMEMLIM={memory_mib_max}"]
    _call([*compiler, *kind, "-o", "pan", "pan.c"], folder)
    how = ["-a", "-f"] if liveness else []
    output, in_time = _run_search(
        ["./pan", f"-m{DEPTH_MAX}", f"-w{TABLE_BITS}", *how], folder, seconds_max
    )
    violated = _violated(output, folder, model, macros)
    cut = "Search not completed" in output or "max search depth" in output
    states, transitions, depth = _sizes(output)
    return Search(
        states=states,
        transitions=transitions,
        depth=depth,
        seconds=time.monotonic() - started,
        finished=in_time and not cut,
        violated=violated,
        unreached=_unreached(output),
        output=output,
    )


def _call(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BrokenModel(f"{command[0]} refused the model:\n{done.stdout}{done.stderr}")
    return done.stdout


def _run_search(command: Sequence[str], folder: Path, seconds_max: float) -> tuple[str, bool]:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=seconds_max
        )
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(), False  # bytes, whatever `text` says
    return done.stdout, "errors:" in done.stdout


def _sizes(output: str) -> tuple[int, int, int]:
    """States, transitions and depth; of a search that was stopped, as far as it told."""
    patterns = (
        (r"([\d.e+]+) states, stored", r"States=\s*([\d.e+]+)"),
        (r"([\d.e+]+) transitions \(", r"Transitions=\s*([\d.e+]+)"),
        (r"depth reached (\d+)", r"Depth=\s*(\d+)"),
    )
    found = []
    for final, interim in patterns:
        numbers = re.findall(final, output) or re.findall(interim, output)
        found.append(int(float(numbers[-1])) if numbers else 0)
    return found[0], found[1], found[2]


def _violated(output: str, folder: Path, model: Path, macros: Sequence[str]) -> str | None:
    if "acceptance cycle" in output:
        return "fair cycle"
    if "invalid end state" in output and "pan:1: invalid end state" in output:
        return "deadlock"
    if "assertion violated" not in output:
        return None
    replay = _replay(folder, model, macros)
    place = re.search(r"spin: (\S+):(\d+), Error: assertion violated", replay)
    if place is None:
        return "an assertion"
    line = Path(place[1]).read_text(encoding="utf-8").splitlines()[int(place[2]) - 1]
    name = re.search(r"/\* ([A-Z]{2,})\b", line)
    return name[1] if name else "an assertion"


def _replay(folder: Path, model: Path, macros: Sequence[str]) -> str:
    """Walk the path that the search left behind; Spin then says which assertion failed."""
    trail = folder / f"{model.name}.trail"
    command = ["spin", *macros, "-t", "-k", str(trail), str(model)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _unreached(output: str) -> frozenset[tuple[str, str]]:
    found = set()
    process = ""
    for line in output.splitlines():
        if line.startswith("unreached in"):
            process = line.split()[-1]
        elif (state := re.search(r", state (\d+), ", line)) and '"-end-"' not in line:
            found.add((process, state[1]))
    return frozenset(found)


def run_acceptor(folder: Path, model: Path, rows: int) -> list[tuple[int, int]]:
    """Run the acceptor over `rows` rows of `folder`/trace.h.

    Returns the rows it refused, each with the state in which the model was. Raises BrokenModel if
    the search did not come to the end: silence must not look like acceptance.
    """
    _call(["spin", f"-DROWS={rows}", "-a", str(model)], folder)
    _call(["gcc", "-O0", "-w", "-DSAFETY", "-DNOREDUCE", "-o", "pan", "pan.c"], folder)
    depth = f"-m{4 * rows + 100}"
    output, in_time = _run_search(["./pan", depth], folder, ACCEPT_SECONDS_MAX)
    if not in_time or "accepted to the end" not in output or "errors: 0" not in output:
        raise BrokenModel(f"the acceptor did not come to the end:\n{output}")
    found = re.findall(r"^refused row (\d+) in state (\d+)$", output, flags=re.MULTILINE)
    return [(int(row), int(state)) for row, state in found]
