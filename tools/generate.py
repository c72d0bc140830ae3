"""Writes the files that are made from code, or says which of them are stale.

    python tools/generate.py            write them (`make gen`)
    python tools/generate.py --check    write nothing; exit 1 and show the difference (`make check`)

Each file is what a module of the package prints. A module that fails leaves the file as it was.
"""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# file -> the module that prints it
GENERATED = {
    "blink.plan.schema.json": "blink.plan.capacity.schema_json",
    "blink.schema.json": "blink.model.scenario.schema_json",
    "blink/hw/kernel/csrc/generated/protocol.h": "blink.hw.kernel.protocol_h",
    "docs/hardware.md": "blink.plan.hardware_page",
    "docs/state_machine.md": "blink.ring_protocol.diagram",
}


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 when every file is now as its module prints it, else 1."""
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    stale = [path for path in GENERATED if not _is_current(path)]
    if arguments == ["--check"]:
        for path in stale:
            print(f"{path} is not what {GENERATED[path]} prints; run `make gen`:")
            print(_difference(path))
        return 1 if stale else 0
    for path in stale:
        (ROOT / path).write_text(_printed_by(GENERATED[path]), encoding="utf-8")
        print(f"wrote {path}")
    return 0


def _is_current(path: str) -> bool:
    return _on_disk(path) == _printed_by(GENERATED[path])


def _on_disk(path: str) -> str:
    file = ROOT / path
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _printed_by(module: str) -> str:
    command = [sys.executable, "-m", module]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, encoding="utf-8")
    return done.stdout


def _difference(path: str) -> str:
    want = _printed_by(GENERATED[path]).splitlines(keepends=True)
    have = _on_disk(path).splitlines(keepends=True)
    return "".join(difflib.unified_diff(have, want, path, f"{path} (generated)"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
