"""Check the formal model: safety, liveness, and that every planted bug is found.

    python formal/check.py [--json] [--budget SECONDS] [--only WORD]

Exit status: 0 if everything is as expected, 1 if not, 2 if a tool is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from formal.verifier import MEMORY_MIB_MAX, MODEL, MissingTool, Search, require_tools, search

BUDGET_SECONDS = 240.0  # a cap for a busy machine: about 50 s on two idle cores
DEEP_MEMORY_MIB = 3000  # of a search that only a larger budget starts
JOBS = 2


@dataclass(frozen=True, slots=True)
class Check:
    """One search and what it must find.

    expected: None if the property must hold, else the names under which the bug may be found.
    budget: seconds that must be allowed for the whole run before this one is worth starting.
    """

    name: str
    defines: tuple[str, ...]
    liveness: bool = False
    expected: frozenset[str] | None = None
    budget: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """A check and its result; `good` if that is the expected one."""

    check: Check
    result: Search
    good: bool

    @property
    def verdict(self) -> str:
        violated = self.result.violated
        if self.check.expected is not None:
            kind = "found" if self.good else "NOT FOUND"
            return f"{kind}: {violated}" if violated else kind
        if violated:
            return f"VIOLATED: {violated}"
        return "holds, exhaustive" if self.result.finished else "NOT FINISHED"


def safety(name: str, *defines: str, budget: float = 0.0) -> Check:
    """Assertions and freedom from deadlock."""
    return Check(f"safety: {name}", defines, budget=budget)


def liveness(name: str, formula: str, *defines: str) -> Check:
    """An LTL property under weak fairness."""
    return Check(f"liveness: {name}", (f"LIVENESS_{formula}", *defines), liveness=True)


def bug(name: str, *expected: str, defines: Sequence[str] = (), formula: str = "") -> Check:
    """A planted bug that must be found, as one of `expected`."""
    extra = (f"LIVENESS_{formula}",) if formula else ()
    sizes = tuple(defines) or ("REQUESTS=2", "REQUESTS_OF_OTHERS=1", "CRASHES=1")
    return Check(
        f"bug: {name}", (f"BUG_{name}", *extra, *sizes), bool(formula), frozenset(expected)
    )


ONE_EACH = ("REQUESTS=1",)
ENDLESS = ("ENDLESS", "REQUESTS=1", "CRASHES=0", "CANCELS=0", "DEPTH=3")

CRASH = safety("2 front ends, 1 + 1 requests, cancel, crash", *ONE_EACH, "DEPTH=3")
REUSE = safety(
    "2 front ends, 2 + 1 requests, cancel", "REQUESTS_OF_OTHERS=1", "CRASHES=0", "FAILURES=0"
)

CHECKS = (
    safety("1 front end, 2 slots, 2 requests, crash", "FRONT_ENDS=1", "REQUESTS=2", "CANCELS=0"),
    REUSE,
    CRASH,
    safety(
        "1 slot, 3 requests, 2 cancels, 2 crashes",
        *("SLOTS=1", "FRONT_ENDS=1", "REQUESTS=3", "CRASHES=2", "CANCELS=2"),
    ),
    safety(
        "batch of 1, 2 requests",
        *("FRONT_ENDS=1", "REQUESTS=2", "CRASHES=0", "BATCH=1"),
    ),
    liveness("every request ends, others for ever", "REQUEST", *ENDLESS, "FAILURES=0"),
    liveness("every paused slot moves on, others for ever", "PAUSED", *ENDLESS, "TOKENS_MAX=3"),
    liveness("every paused slot moves on, cancel", "PAUSED", *ONE_EACH, "CRASHES=0"),
    liveness(
        *("every life ends, cancel, crash", "SLOT"),
        *("SLOTS=1", "FRONT_ENDS=1", "REQUESTS=2"),
    ),
    liveness(
        *("every request ends, cancel, crash", "REQUEST"),
        *("SLOTS=1", "FRONT_ENDS=1", "REQUESTS=2"),
    ),
    bug("FLAG_FIRST", "PAYLOAD"),
    bug("NO_FENCE", "OWNER", "SLOT"),
    bug("DOUBLE_RELEASE", "SLOT", "OWNER"),
    bug("NO_GENERATION", "CONSERVE", defines=("SLOTS=1", "FRONT_ENDS=1", "CRASHES=0")),
    bug("NO_FLAG_GENERATION", "OWNER", "CONSERVE"),
    bug("CAS_ALWAYS", "OWNER"),
    bug("WINDOW", "WINDOW"),
    bug("LOST_RELAUNCH", "deadlock"),
    bug("LOST_RELAUNCH", "fair cycle", defines=ENDLESS, formula="REQUEST"),
    bug("LOST_STEP", "ORDER"),
    bug("TOKEN_EARLY", "ORDER"),
    bug("ABORT_RUNNING", "ORDER"),
    bug("FORGETS_PAUSED", "fair cycle", defines=(*ENDLESS, "TOKENS_MAX=3"), formula="PAUSED"),
    bug("PAUSED_STARVES", "deadlock"),
    bug("PAUSED_STARVES", "fair cycle", defines=(*ONE_EACH, "CRASHES=0"), formula="PAUSED"),
    bug("BATCH_STARVES", "fair cycle", defines=ENDLESS, formula="REQUEST"),
    safety("2 front ends, 2 + 1 requests, cancel, crash", "REQUESTS_OF_OTHERS=1", budget=600.0),
    safety("1 front end, 2 requests, cancel, crash", "FRONT_ENDS=1", "REQUESTS=2", budget=600.0),
)


def run(check: Check, deadline: float) -> Row:
    """Search within what is left of the budget."""
    with tempfile.TemporaryDirectory(prefix="blink-formal-") as folder:
        left = max(1.0, deadline - time.monotonic())
        result = search(
            Path(folder),
            MODEL,
            check.defines,
            liveness=check.liveness,
            seconds_max=left,
            small=check.expected is not None,
            memory_mib_max=DEEP_MEMORY_MIB if check.budget else MEMORY_MIB_MAX,
        )
    if check.expected is None:
        return Row(check, result, result.finished and result.violated is None)
    return Row(check, result, result.violated in check.expected)


def never_executed(rows: Sequence[Row]) -> list[str]:
    """Statements that neither CRASH nor REUSE reached: what is never executed is not checked.

    The two differ in the values of limits only, so their statements have the same numbers.
    """
    sets = [row.result.unreached for row in rows if row.check in (CRASH, REUSE)]
    return [f"{process} {state}" for process, state in sorted(frozenset.intersection(*sets))]


def print_table(rows: Sequence[Row], skipped: Sequence[Check], seconds: float) -> None:
    """For a person."""
    width = max(len(row.check.name) for row in rows)
    print(f"{'property':{width}} {'states':>9} {'transitions':>11} {'depth':>6} {'s':>5}  verdict")
    for row in rows:
        found = row.result
        sizes = f"{found.states:>9} {found.transitions:>11} {found.depth:>6} {found.seconds:>5.1f}"
        print(f"{row.check.name:{width}} {sizes}  {row.verdict}")
    for check in skipped:
        print(f"{check.name:{width}} not run: needs --budget {check.budget:.0f}")
    bad = sum(not row.good for row in rows)
    print(f"{len(rows)} searches, {bad} not as expected, {seconds:.0f} s; no bitstate hashing")


def as_json(rows: Sequence[Row], skipped: Sequence[Check], missed: list[str], good: bool) -> str:
    """For a program."""
    listed = [
        {
            "property": row.check.name,
            "defines": row.check.defines,
            "states": row.result.states,
            "transitions": row.result.transitions,
            "depth": row.result.depth,
            "seconds": round(row.result.seconds, 2),
            "exhaustive": row.result.finished,
            "violated": row.result.violated,
            "verdict": row.verdict,
            "as_expected": row.good,
        }
        for row in rows
    ]
    skips = [check.name for check in skipped]
    summary = {"ok": good, "checks": listed, "not_run": skips, "never_executed": missed}
    return json.dumps(summary, indent=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks; returns the exit status."""
    parser = argparse.ArgumentParser(description="Check the formal model of the ring with Spin.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, help="seconds for all")
    parser.add_argument("--only", default="", help="run the checks whose name has this in it")
    options = parser.parse_args(arguments)
    try:
        require_tools()
    except MissingTool as missing:
        print(missing, file=sys.stderr)
        return 2
    wanted = [check for check in CHECKS if options.only in check.name]
    if not wanted:
        parser.error(f"no check has {options.only!r} in its name")
    chosen = [check for check in wanted if check.budget <= options.budget]
    skipped = [check for check in wanted if check.budget > options.budget]
    started = time.monotonic()
    deadline = started + options.budget
    with ThreadPoolExecutor(JOBS) as pool:
        rows = list(pool.map(lambda check: run(check, deadline), chosen))
    both = {CRASH, REUSE} <= {row.check for row in rows if row.result.finished}
    missed = never_executed(rows) if both else []
    good = all(row.good for row in rows) and not missed
    if options.json:
        print(as_json(rows, skipped, missed, good))
    else:
        print_table(rows, skipped, time.monotonic() - started)
        if both:
            print(f"statements never executed in '{CRASH.name}' or '{REUSE.name}': {missed or 0}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
