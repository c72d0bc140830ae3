"""What scenarios and plans there are: every page below a directory, with its title and question."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from blink.model.errors import BadInput
from blink.model.scenario import load_scenario
from blink.model.scenario.loader import load_page
from blink.plan.capacity.page import Plan
from blink.plan.pages import is_plan


def list_specs(directory: Path) -> list[dict[str, str]]:
    """Return path, title, question and command of every ``*.toml`` below ``directory``, in order.

    Raises BadInput if there is none, ScenarioError for one that cannot be read.
    """
    paths = sorted(directory.rglob("*.toml")) if directory.is_dir() else []
    if not paths:
        raise BadInput(f"no specs below {directory}: run blink in a clone, or name a directory")
    found = []
    for path in paths:
        page = load_page(path, [], Plan) if is_plan(path) else load_scenario(path)
        command = "plan" if isinstance(page, Plan) else "run"
        found.append(
            {
                "path": str(path),
                "title": page.title,
                "question": page.question,
                "command": f"blink {command} {path}",
            }
        )
    return found


def print_specs(found: list[dict[str, str]]) -> None:
    """Print a table of specs on stdout."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for spec in found:
        table.add_row(spec["path"], spec["question"])
    Console().print(table)
