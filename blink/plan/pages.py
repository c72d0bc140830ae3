"""Which kind of page a file is: a scenario's or a plan's."""

from __future__ import annotations

import tomllib
from pathlib import Path


def is_plan(path: Path) -> bool:
    """Whether a file is a plan's page, by its [candidates]; False for what cannot be read."""
    try:
        return "candidates" in tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return False
