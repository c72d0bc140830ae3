"""Which code ran."""

from __future__ import annotations

import subprocess
from pathlib import Path

from blink import __version__


def commit_id() -> str:
    """Name the code that ran: the git commit, ``-dirty`` if changed, or the package's version."""
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():
        return f"v{__version__}"
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return f"v{__version__}"
    return found.stdout.strip()
