"""The C++ core on real threads: how many slot lifecycles a second, and whether anything breaks.

    python benchmarks/stress.py                                    ten million, two ways; minutes
    python benchmarks/stress.py --lifecycles 200000 --sanitizer tsan
    python benchmarks/stress.py --json

A lifecycle is one request: written, claimed, prefilled, decoded, some cancelled, every token looked
at, the slot released. Exits 1 if an invariant does not hold, and says which.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from blink.hw.host import stress
from blink.hw.host.build import SANITIZERS
from blink.model.errors import BackendUnavailable

WAYS: dict[str, dict[str, int]] = {
    # The scanners race for every slot; ThreadSanitizer sees only one process.
    "threads": {"processes": 0, "contested": 1},
    "processes": {"processes": 1, "contested": 1},
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lifecycles", type=int, default=10_000_000, help="a way (10000000)")
    parser.add_argument("--front-ends", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sanitizer", choices=SANITIZERS, default="plain")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    shape = {"lifecycles": asked.lifecycles, "front-ends": asked.front_ends, "seed": asked.seed}
    reports: dict[str, Any] = {}
    for way, how in WAYS.items():
        if asked.sanitizer == "tsan" and how["processes"]:
            continue
        if not asked.json:
            print(f"{way:10} {asked.lifecycles:,} lifecycles ...", end=" ", flush=True)
        try:
            reports[way] = report = stress.run({**shape, **how}, sanitizer=asked.sanitizer)
        except (BackendUnavailable, stress.StressFailed) as failed:
            print(failed, file=sys.stderr)
            return 2 if isinstance(failed, BackendUnavailable) else 1
        if not asked.json:
            print(sentence(report), flush=True)
    if asked.json:
        print(json.dumps(reports))
    return int(any(report["violations"] for report in reports.values()))


def sentence(report: dict[str, Any]) -> str:
    """One run in a line."""
    return (
        f"{report['seconds']:.1f} s, {report['lifecycles_per_s']:,.0f} a second; "
        f"{report['tokens']:,} tokens, {report['claims_lost']:,} claims lost, "
        f"{report['cancelled']:,} cancelled, {report['relaunches']:,} relaunches: "
        + (report["violation"] or "no violation")
    )


if __name__ == "__main__":
    sys.exit(main())
