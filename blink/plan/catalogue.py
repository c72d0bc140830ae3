"""What scenarios there are: every spec below a directory, with its title and question."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from blink.model.errors import BadInput
from blink.model.scenario import load_scenario


def list_specs(directory: Path) -> list[dict[str, str]]:
    """Return path, title and question of every ``*.toml`` below ``directory``, in order.

    Raises BadInput if there is none, ScenarioError for one that cannot be read.
    """
    paths = sorted(directory.rglob("*.toml")) if directory.is_dir() else []
    if not paths:
        raise BadInput(f"no specs below {directory}: run blink in a clone, or name a directory")
    found = []
    for path in paths:
        scenario = load_scenario(path)
        found.append({"path": str(path), "title": scenario.title, "question": scenario.question})
    return found


def print_specs(found: list[dict[str, str]]) -> None:
    """Print a table of specs on stdout."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for spec in found:
        table.add_row(spec["path"], spec["question"])
    Console().print(table)
