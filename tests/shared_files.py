"""Public traces that are too large for the repository: where they are, if they are here.

They lie in `shared/` beside the repository's folder. A machine with CI set must have them; on any
other, the tests that need one are skipped, and say what was missing.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[1].parent / "shared"


def shared_file(name: str) -> Path:
    """The file `name` of the shared folder; skips the test without it, or fails it under CI."""
    path = SHARED / name
    if path.is_file():
        return path
    reason = f"needs {name} in {SHARED}"
    if os.environ.get("CI"):
        pytest.fail(f"{reason}, and CI is set")
    pytest.skip(reason)
