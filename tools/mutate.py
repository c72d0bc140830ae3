"""Breaks one line at a time and asks whether a test notices.

    python tools/mutate.py --count 20 --seed 1
    python tools/mutate.py blink/ring_protocol/slot.py --count 10

Draws lines of the protocol's files, changes each a little (an operator, a number, a name of the
protocol, a line left out), and runs the tests that know that file in a copy of the tree until the
first failure. Prints what was changed and the test that failed, with its message. Exits 1 if a
change survives; one that changes nothing for anybody (an equivalent one) has to be judged by eye.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CSRC = "blink/hw/kernel/csrc"
PROTOCOL_TESTS = ["tests/unit", "tests/property", "tests/conformance", "tests/differential"]
CORE_TESTS = ["tests/differential", "tests/hw"]
TESTS = {
    "blink/ring_protocol/slot.py": PROTOCOL_TESTS,
    "blink/ring_protocol/layout.py": PROTOCOL_TESTS,
    f"{CSRC}/ring.h": CORE_TESTS,
    f"{CSRC}/policy.h": CORE_TESTS,
    f"{CSRC}/scheduler.h": CORE_TESTS,
    f"{CSRC}/team.h": CORE_TESTS,
}
SWAPS = [
    *((" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > ")),
    *((" == ", " != "), (" != ", " == "), (" + ", " - "), (" - ", " + "), (" * ", " + ")),
    *((" && ", " || "), (" || ", " && "), (" and ", " or "), (" or ", " and ")),
    *((" is not ", " is "), (" is ", " is not "), (" not ", " "), ("(!", "("), ("++", "--")),
    *((" % ", " * "), (" & ", " | "), (" | ", " & "), (" << ", " >> "), ("true", "false")),
    *(("acquire", "relaxed"), ("SCHEDULER", "FRONT_END"), (" 0", " 1"), (" 1", " 2")),
    *(
        ("_PROCESSING", "_PAUSED"),
        ("LENGTH", "STOP"),
        ("min(", "max("),
        ("return count", "return 0"),
    ),
]


NOT_CODE = re.compile(r"\s+//|\s+#|^\s*(?://|#|from |import |def |static_assert|assert |template)")


class Mutation(NamedTuple):
    """One line, and what it becomes."""

    path: str
    line: int  # from 1
    before: str
    after: str


def main() -> int:
    """Try the mutations that were asked for; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="*", metavar="FILE", default=list(TESTS))
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    possible = {path: list(mutations_of(path)) for path in asked.files}
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="blink-mutate-") as folder:
        for number in range(asked.count):
            path = asked.files[number % len(asked.files)]
            mutation = rng.choice(possible[path])
            found = judge(mutation, Path(folder))
            survivors += found is None
            print(f"{mutation.path}:{mutation.line}")
            print(f"  - {mutation.before.strip()}\n  + {mutation.after.strip()}")
            print(f"  {found or 'SURVIVES'}", flush=True)
    print(f"{asked.count - survivors} of {asked.count} found")
    return int(survivors > 0)


def mutations_of(path: str) -> Iterator[Mutation]:
    """Every change of a line of code that is tried; no comments, docstrings or assertions."""
    text = (ROOT / path).read_text(encoding="utf-8")
    code = re.sub(r'"""(.*?)"""', lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    lines = text.splitlines()
    for number, line in enumerate(code.splitlines(), 1):
        bare = NOT_CODE.split(line)[0]
        for old, new in SWAPS:
            for found in re.finditer(re.escape(old), bare):
                after = bare[: found.start()] + new + bare[found.end() :]
                yield Mutation(path, number, lines[number - 1], after)


def judge(mutation: Mutation, folder: Path) -> str | None:
    """The first test that fails with this change, and why; None if none does."""
    tree = folder / "tree"
    if not tree.exists():
        copied = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis")
        shutil.copytree(ROOT, tree, ignore=copied)
        (folder / "shared").symlink_to(ROOT.parent / "shared")
    target = tree / mutation.path
    kept = target.read_text(encoding="utf-8")
    lines = kept.splitlines()
    lines[mutation.line - 1] = mutation.after
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=short"]
            + TESTS[mutation.path],
            cwd=tree,
            # CI: what does not compile any more fails; without it, its tests would be skipped.
            env={
                "CI": "true",
                "PYTHONPATH": str(tree),
                "PATH": "/usr/bin:/bin",
                "HOME": str(folder),
            },
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        target.write_text(kept, encoding="utf-8")
    return reason_of(done.stdout + done.stderr) if done.returncode else None


def reason_of(output: str) -> str:
    """The message of the failure in one line, and the test's name."""
    lines = output.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    error = [line[1:].strip() for line in lines if line.startswith("E ")]
    compiler = [line for line in lines if re.search(r"error: ", line)]
    message = (compiler or error or lines[-3:] or ["?"])[0]
    return f"{' '.join(failed[:1])[:110]}\n    {message[:160]}"


if __name__ == "__main__":
    sys.exit(main())
