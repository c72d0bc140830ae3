"""What a user can get wrong. Every one of these is a single clear message and exit code 2.

A bug in this project is an assertion or a `ProtocolViolation`, never a `BadInput`: the command
line prints a `BadInput` without a traceback and treats everything else as a crash.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

EXIT_CODE_BAD_INPUT: Final = 2


class BadInput(Exception):
    """The input cannot be run as it stands; the message says where and what to change."""

    exit_code: int = EXIT_CODE_BAD_INPUT


class BackendUnavailable(Exception):
    """The environment lacks what a backend needs; the message says how to install it."""


class BackendFailed(Exception):
    """A backend broke down while it ran: a device that is lost, a scheduler that hangs."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a scenario.

    where: "path:line" for a file, the override's text for `--set`, or the path alone.
    key: dotted key, empty when the problem has none (a file that is not TOML).
    message: what is wrong and what would be right, without a full stop.
    """

    where: str
    key: str
    message: str

    def __str__(self) -> str:
        parts = [self.where, self.key, self.message]
        line = ": ".join(part for part in parts if part)
        return " ".join(line.splitlines())  # an override or a name may hold line ends


class ScenarioError(BadInput):
    """A scenario with every problem that it has, one line each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class TraceError(BadInput):
    """A trace file that cannot be read, with the line (from 1) where that shows; None: the file."""

    def __init__(self, path: object, line: int | None, message: str) -> None:
        self.path = str(path)
        self.line = line
        where = self.path if line is None else f"{self.path}:{line}"
        super().__init__(f"{where}: {message}")


class ModelDoesNotFit(BadInput):
    """The weights leave no room for a single request's KV cache on this GPU."""


class RequestDoesNotFit(BadInput):
    """A request that no slot of this ring, or no context of this engine, can ever hold."""


class UnknownName(BadInput):
    """A name that a catalogue lacks; the message offers the nearest one and lists the rest."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        self.what = what
        self.name = name
        self.known = tuple(sorted(known))
        super().__init__(f'unknown {what} "{name}"{suggestion(name, self.known)}')


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, or None when none is close enough to be meant."""
    names = list(known)
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    begun = [each for each in names if len(name) >= 3 and each.startswith(name)]
    return (*matches, *begun, None)[0]


def suggestion(name: str, known: Iterable[str]) -> str:
    """The tail of a message about an unknown name: the nearest one, else all of them."""
    names = list(known)
    match = nearest(name, names)
    if match is not None:
        return f'; did you mean "{match}"?'
    return f"; known: {', '.join(names)}"


def is_file(path: Path) -> bool:
    """Whether there is such a file; False also for a name that none can have."""
    try:
        return path.is_file()
    except OSError:
        return False
