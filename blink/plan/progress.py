"""Progress on stderr: a bar on a terminal, one line a run elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final

from blink.plan.runner import PlannedRun, Result

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


def announce(what: str) -> None:
    """Say on stderr what begins now."""
    sys.stderr.write(f"{what}\n")


UPDATES: Final = 100
"""How often, at most, a run's bar moves."""


class Progress:
    """Use as a context manager around the runs of a plan."""

    def __init__(self, plan: Sequence[PlannedRun]) -> None:
        self._plan = plan
        self._begun_s = time.monotonic()
        self._done = 0
        self._bar = _bar() if sys.stderr.isatty() else None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, run: PlannedRun, ended: int) -> None:
        """``ended`` requests of ``run`` have ended."""
        if self._bar is None:
            return
        total = len(run.setup.workload.arrival_ns)
        if ended % max(1, total // UPDATES) and ended != total:
            return
        label = run.setup.label
        if label not in self._tasks:
            self._tasks[label] = self._bar.add_task(label, total=total)
        self._bar.update(self._tasks[label], completed=ended)

    def prepare(self, what: str, done: int, of: int) -> None:
        """A backend gets ready: ``done`` of ``of`` things are."""
        if self._bar is None:
            if done == of:
                sys.stderr.write(f"{what}: {of}\n")
            return
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what)
        self._bar.update(self._tasks[what], completed=done, total=of)

    def finish(self, result: Result) -> None:
        """A run is complete."""
        self._done += 1
        if self._bar is None:
            seconds = time.monotonic() - self._begun_s
            sys.stderr.write(
                f"[{self._done}/{len(self._plan)}] {result.record.label}: "
                f"{len(result.record.requests)} requests ({seconds:.1f} s)\n"
            )


def _bar() -> Bar:
    """A bar for terminals. Imported only there: nobody else should wait for it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
