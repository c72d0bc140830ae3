"""Reads a scenario file and finds everything that is wrong with it in one pass."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

from blink.model.errors import Problem, ScenarioError, is_file
from blink.model.scenario.locate import Path, lines_of
from blink.model.scenario.overrides import TRACE, Override, parse_override, set_all
from blink.model.scenario.problems import Found, Page, dotted, to_problems, validate, validate_page
from blink.model.scenario.schema import Scenario
from blink.model.scenario.sweep import sweep_problems


def load_scenario(path: str | FilePath, overrides: Sequence[str] = ()) -> Scenario:
    """Read `path`, apply `--set` texts in order, validate.

    A relative `workload.trace` counts from the file's folder, or from the working directory when
    an override gives it.

    Raises ScenarioError with every problem, each with its line, its key and the nearest known key.
    """
    return load_page(path, overrides, Scenario, sweep_problems)


def load_page(
    path: str | FilePath,
    overrides: Sequence[str],
    page: type[Page],
    look: Callable[[dict[str, Any], Found], Found] = lambda document, found: {},
) -> Page:
    """Read a page of another kind as :func:`load_scenario` reads a scenario.

    ``look(document, found)`` finds what the model alone cannot.
    """
    file = FilePath(path)
    text, problems = _read(file)
    settings = list(_parsed(overrides, problems))
    document = _document(file, text, problems) if text is not None else None
    if document is None:
        raise ScenarioError(problems)
    assert text is not None
    _anchor_trace(document, file.parent)
    applied = _applied(document, settings, problems)
    places = _Places(str(file), lines_of(text), applied)
    made, found = validate_page(document, page)
    found |= look(document, found)
    problems += sorted(to_problems(found, places.of), key=_line)
    problems += _missing_trace(document, places)
    if problems or made is None:
        raise ScenarioError(problems)
    return made


def parse_scenario(document: Mapping[str, Any], name: str = "scenario") -> Scenario:
    """Validate a scenario that is data already, such as a record's. Raises ScenarioError."""
    scenario, found = validate(dict(document))
    found |= sweep_problems(dict(document), found)
    if found or scenario is None:
        raise ScenarioError(to_problems(found, lambda path: name))
    return scenario


def _read(file: FilePath) -> tuple[str | None, list[Problem]]:
    try:
        return file.read_text(encoding="utf-8-sig"), []
    except FileNotFoundError:
        return None, [Problem(str(file), "", "there is no such file")]
    except UnicodeDecodeError as error:
        return None, [Problem(str(file), "", f"not UTF-8 text: byte {error.start}")]
    except OSError as error:
        return None, [Problem(str(file), "", f"cannot be read: {error.strerror}")]


def _document(file: FilePath, text: str, problems: list[Problem]) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(_malformed(file, text, str(error)))
        return None


def _malformed(file: FilePath, text: str, message: str) -> Problem:
    at = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    line = int(at[1]) if at and at[1] else text.count("\n") + 1
    said = message[: at.start()] if at else message
    column = f" (column {at[2]})" if at and at[2] else ""
    return Problem(f"{file}:{line}", "", f"not TOML: {said[:1].lower()}{said[1:]}{column}")


def _parsed(texts: Iterable[str], problems: list[Problem]) -> Iterable[Override]:
    for text in texts:
        try:
            yield parse_override(text)
        except ValueError as error:
            problems.append(Problem(f"--set {text}", "", str(error)))


def _applied(
    document: dict[str, Any], overrides: list[Override], problems: list[Problem]
) -> list[Override]:
    """Set them all; a later one wins. Returns those that had a place."""
    if any(each.path == TRACE for each in overrides):
        set_all(document, [(each.path, each.value) for each in overrides if each.path == TRACE])
    applied = []
    for each in overrides:
        try:
            set_all(document, [(each.path, each.value)])
        except ValueError as error:
            problems.append(Problem(f"--set {each.text}", dotted(each.path), str(error)))
        else:
            applied.append(each)
    return applied


def _anchor_trace(document: dict[str, Any], folder: FilePath) -> None:
    workload = document.get("workload")
    if isinstance(workload, dict) and isinstance(workload.get("trace"), str):
        workload["trace"] = str(folder / workload["trace"])


def _missing_trace(document: dict[str, Any], places: _Places) -> list[Problem]:
    workload = document.get("workload")
    trace = workload.get("trace") if isinstance(workload, dict) else None
    if isinstance(trace, str) and trace and not is_file(FilePath(trace)):
        message = f"there is no trace file {trace}"
        return [Problem(places.of(TRACE), dotted(TRACE), message)]
    return []


def _line(problem: Problem) -> int:
    number = problem.where.rpartition(":")[2]
    return int(number) if number.isdigit() else 0


class _Places:
    """Where a path of the document was written: a line of the file, or an override."""

    def __init__(self, file: str, lines: dict[Path, int], overrides: list[Override]) -> None:
        self.file = file
        self.lines = lines
        self.overrides = {each.path: each.text for each in overrides}

    def of(self, path: Path) -> str:
        """The override that wrote it, else the nearest enclosing line of the file."""
        enclosing = [path[:length] for length in range(len(path), 0, -1)]
        for each in enclosing:
            if each in self.overrides:
                return f"--set {self.overrides[each]}"
        for each in enclosing:
            if each in self.lines:
                return f"{self.file}:{self.lines[each]}"
        return self.file
