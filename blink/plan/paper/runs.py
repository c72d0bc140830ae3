"""Runs by name, their figures on demand: whoever asks for a run that is missing is asked again.

A question (a figure of the paper, a curve of a picture) is a function of :class:`Runs`. It asks for
what it needs; what is missing is gathered over all questions, executed on all cores, and the
questions are asked again. So no list of runs is kept beside the questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from blink.plan.executor import Progress, execute_jobs
from blink.plan.paper.evaluation import SEED, Run, job_of
from blink.plan.paper.window import Figures, measure

Answer = TypeVar("Answer")


class MissingRuns(Exception):
    """A question needs runs that have not been executed."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = tuple(runs)
        super().__init__(f"{len(runs)} runs are missing")


class Runs:
    """Figures of the runs that have been executed, with the requests that ``seed`` draws."""

    def __init__(self, seed: int = SEED) -> None:
        self.seed = seed
        self._found: dict[Run, Figures] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __call__(self, runs: Sequence[Run]) -> list[Figures]:
        """The figures of each of ``runs``. Raises MissingRuns with all that are not there."""
        missing = [run for run in runs if run not in self._found]
        if missing:
            raise MissingRuns(missing)
        return [self._found[run] for run in runs]

    def execute(
        self, runs: Sequence[Run], *, workers: int | None = None, progress: Progress
    ) -> None:
        """Execute ``runs`` on all cores (``workers``: on so many) and keep their figures."""
        jobs = [job_of(run, self.seed) for run in runs]
        found = execute_jobs(jobs, measure=measure, workers=workers, progress=progress)
        self._found.update(zip(runs, found, strict=True))


def ask(
    questions: Mapping[str, Callable[[Runs], Answer]],
    runs: Runs,
    *,
    workers: int | None = None,
    progress: Callable[[int], Progress] = lambda round_: lambda done, total: None,
) -> dict[str, Answer]:
    """The answer to each of ``questions``, in their order.

    ``progress(n)`` is asked for what follows the n-th round of runs, from 1.
    """
    answers: dict[str, Answer] = {}
    round_ = 0
    while len(answers) < len(questions):
        missing: dict[Run, None] = {}
        for name, question in questions.items():
            if name not in answers:
                try:
                    answers[name] = question(runs)
                except MissingRuns as needs:
                    missing.update(dict.fromkeys(needs.runs))
        if missing:
            round_ += 1
            runs.execute(list(missing), workers=workers, progress=progress(round_))
    return {name: answers[name] for name in questions}
