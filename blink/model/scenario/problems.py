"""Turns what pydantic says about a page into one plain line a problem, with its place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from blink.model.errors import Problem, nearest, suggestion
from blink.model.scenario.base import Section
from blink.model.scenario.locate import Path
from blink.model.scenario.schema import Scenario
from blink.model.scenario.vocabulary import homes_of, keys_at, kinds_at

Found = dict[Path, str]
"""Messages by the path of what they are about."""

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "dict": "a table",
    "tuple": "an array",
    "model": "a table",
}
_LIMITS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


Page = TypeVar("Page", bound=Section)


def validate(document: dict[str, Any]) -> tuple[Scenario | None, Found]:
    """Validate a scenario; see :func:`validate_page`."""
    return validate_page(document, Scenario)


def validate_page(document: dict[str, Any], page: type[Page]) -> tuple[Page | None, Found]:
    """Validate, and when a `kind` is misspelt go on as if it were not, to find the rest as well.

    Returns the page, or None with every problem. `document` is left as it is.
    """
    document = copy.deepcopy(document)
    found: Found = {}
    while True:
        try:
            made = page.model_validate(document)
        except ValidationError as errors:
            details = errors.errors(include_url=False)
            for error in details:
                path = _path(page, error, document)
                found.setdefault(path, _message(page, error, path, document))
            if not _mend_kinds(page, details, document):
                return None, found
        else:
            return (None if found else made), found


def to_problems(found: Found, where: Callable[[Path], str]) -> list[Problem]:
    """Attach its place to every message."""
    return [Problem(where(path), dotted(path), message) for path, message in found.items()]


def dotted(path: Path) -> str:
    """A path as the user would write it: `workload.rate`, `faults.0.kind`."""
    return ".".join(str(step) if _bare(step) else f'"{step}"' for step in path)


def _bare(step: str | int) -> bool:
    return isinstance(step, int) or step.replace("-", "").replace("_", "").isalnum()


def _path(page: type[Section], error: ErrorDetails, document: Any) -> Path:
    """The location without what pydantic adds: the kind of a union's member, `[key]`."""
    path: list[str | int] = []
    place = document
    steps = list(error["loc"])
    while steps:
        step = steps.pop(0)
        holds = step in place if isinstance(place, dict) else _has_index(place, step)
        if holds:
            place = place[step]
            path.append(step)
            if steps and kinds_at(page, document, tuple(path)) and steps[0] == place.get("kind"):
                steps.pop(0)  # the kind; a key may have the same name, as workload.trace has
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    elif error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path.append("kind")
    return tuple(path)


def _has_index(place: Any, step: str | int) -> bool:
    return isinstance(place, list) and isinstance(step, int) and step < len(place)


def _mend_kinds(page: type[Section], details: list[ErrorDetails], document: Any) -> bool:
    """Replace misspelt kinds by the nearest. True if there was one to replace."""
    mended = False
    for error in details:
        if error["type"] != "union_tag_invalid":
            continue
        *parents, _ = _path(page, error, document)
        place = document
        for step in parents:
            place = place[step]
        match = nearest(str(error["ctx"]["tag"]), _tags(error))
        if match is not None:
            place["kind"] = match
            mended = True
    return mended


def _tags(error: ErrorDetails) -> list[str]:
    return [tag.strip("' ") for tag in error["ctx"]["expected_tags"].split(",")]


def _message(page: type[Section], error: ErrorDetails, path: Path, document: Any) -> str:
    kind = error["type"]
    context: Mapping[str, Any] = error.get("ctx", {})
    value = error["input"]
    if kind == "extra_forbidden":
        return _unknown_key(page, path, document)
    if kind == "missing":
        return "missing"
    if kind == "union_tag_not_found":
        return f"missing: {', '.join(kinds_at(page, document, path[:-1]))}"
    if kind == "union_tag_invalid":
        return f'unknown kind "{context["tag"]}"{suggestion(context["tag"], _tags(error))}'
    if kind == "literal_error":
        return _not_a_choice(value, context["expected"])
    if kind in _LIMITS:
        name, word = _LIMITS[kind]
        return f"must be {word} {context[name]:g}, is {value}"
    if kind == "conflict":
        return str(context["message"])
    if kind == "string_pattern_mismatch":
        return _pattern(path, value)
    if kind in ("too_short", "string_too_short"):
        return "must not be empty"
    if kind == "finite_number":
        return f"must be finite, is {value}"
    return _wrong_type(error, path)


def _unknown_key(page: type[Section], path: Path, document: Any) -> str:
    name = str(path[-1])
    known = keys_at(page, document, path[:-1])
    match = nearest(name, known)
    homes = [] if match else homes_of(page, name)
    if homes and len(path) == 1:
        return f"unknown key; it belongs to [{homes[0]}]"
    return f"unknown key{suggestion(name, known)}"


def _not_a_choice(value: Any, expected: str) -> str:
    choices = [each.strip(" '") for each in expected.replace(" or ", ",").split(",")]
    if isinstance(value, str):
        return f'unknown value "{value}"{suggestion(value, choices)}'
    return f"must be one of {', '.join(choices)}, is {value}"


def _pattern(path: Path, value: str) -> str:
    if path[-1] == "question":
        return "must end with a question mark"
    if path[-1] == "metric":
        return f'unknown or unfit metric "{value}"; for example "ttft_ms.p99", "output_tok_s"'
    return f'"{value}" is not of the right form'


def _wrong_type(error: ErrorDetails, path: Path) -> str:
    wanted = _TYPES.get(error["type"].split("_")[0], "")
    scalars = len(error["loc"]) > len(path) and error["loc"][-1] in ("bool", "int", "float", "str")
    if scalars:
        wanted = "a number, text, true or false"
    if not wanted:
        return str(error["msg"])
    return f"must be {wanted}, is {_shown(error['input'])}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'the text "{value}"'
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "an array"
    return str(value)
