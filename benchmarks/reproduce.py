"""What the paper's whole evaluation costs, and whether docs/ has what it makes.

    .venv/bin/python benchmarks/reproduce.py

Runs ``blink reproduce`` into an empty folder, with its processes' memory added up from /proc four
times a second, and compares every file with the committed one. Exits with 1 if it takes 4 minutes
or 1 GB, or if a file differs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
WALL_S_MAX, PEAK_MB_MAX = 240.0, 1000.0


def resident_mb(session: int) -> float:
    """Memory of all processes of a session, what they share counted once each process."""
    pages = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
            if int(fields[3]) == session:
                pages += int((process / "statm").read_text(encoding="ascii").split()[1])
        except OSError:
            continue  # it ended meanwhile
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "blink.cli", "reproduce", "--out", folder]
        begun, peak = time.perf_counter(), 0.0
        with subprocess.Popen(command, start_new_session=True) as process:
            while process.poll() is None:
                peak = max(peak, resident_mb(process.pid))
                time.sleep(0.25)
        wall = time.perf_counter() - begun
        if process.returncode:
            return 1
        made = [path for path in Path(folder).rglob("*") if path.is_file()]
        differ = [
            str(path.relative_to(folder))
            for path in sorted(made)
            if path.read_bytes() != _committed(path.relative_to(folder))
        ]
    print(f"wall {wall:.1f} s of {WALL_S_MAX:.0f}, peak {peak:.0f} MB of {PEAK_MB_MAX:.0f}")
    print(f"{len(made)} files; not as committed: {', '.join(differ) or 'none'}")
    return int(wall > WALL_S_MAX or peak > PEAK_MB_MAX or bool(differ))


def _committed(name: Path) -> bytes | None:
    path = DOCS / name
    return path.read_bytes() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
