"""Asks the C++ core and the Python reference the same questions, a million times.

    python benchmarks/differential.py                       a million generated cases, some minutes
    python benchmarks/differential.py --cases 20000 --json

Hypothesis generates the cases (with --seed, others); the first that the two answer differently
ends the run with a shortest one. A case is one flag-word step, one cancel word, one layout, one
decision, one operation on a ring, or one step of a whole scheduler.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.differential import cases

KINDS: dict[str, tuple[float, Any, Callable[[Any], int | None]]] = {
    # kind: (its share of the cases, how they are drawn, how one is judged)
    "step": (0.10, st.lists(cases.STEPS, min_size=30, max_size=60), cases.same_step),
    "cancel word": (0.02, st.lists(cases.ASKED, min_size=30, max_size=60), cases.same_asked),
    "layout": (0.01, st.lists(cases.OFFSETS, min_size=30, max_size=60), cases.same_offsets),
    "decision": (0.07, st.lists(cases.DECISIONS, min_size=15, max_size=30), cases.same_decision),
    "ring operation": (0.20, st.lists(cases.RINGS, min_size=5, max_size=10), cases.same_ring),
    "scheduler step": (0.60, st.lists(cases.WALKS, min_size=5, max_size=10), cases.same_walk),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=1_000_000, help="how many at least (1000000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = {}
    for kind, (share, drawn, same) in KINDS.items():
        started = time.monotonic()
        count = ask(drawn, same, int(options.cases * share) or 1, options.seed)
        rows[kind] = {"cases": count, "seconds": round(time.monotonic() - started, 1)}
        if not options.json:
            print(f"{kind:15} {count:>9,} cases equal, {rows[kind]['seconds']:7.1f} s", flush=True)
    total = sum(row["cases"] for row in rows.values())
    if options.json:
        print(json.dumps({"cases": total, "different": 0, "seed": options.seed, "kinds": rows}))
    else:
        print(f"{'all':15} {total:>9,} cases equal")
    return 0


def ask(drawn: Any, same: Callable[[Any], int | None], wanted: int, seed_: int) -> int:
    """Judge at least ``wanted`` cases; returns how many. Raises AssertionError at a difference."""
    count = 0

    def judge(batch: list[Any]) -> None:
        nonlocal count
        if count < wanted:
            for case in batch:
                count += same(case) or 1

    round_ = 0
    while count < wanted:
        profile = settings(
            max_examples=50,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        seed(seed_ * 1_000_003 + round_)(profile(given(drawn)(judge)))()
        round_ += 1
    return count


if __name__ == "__main__":
    sys.exit(main())
