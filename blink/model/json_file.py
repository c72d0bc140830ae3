"""Reads a JSON document into a strict shape, or says in one line what is wrong; writes one, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from blink.model.errors import BadInput
from blink.model.workload.traces import shown

Shape = TypeVar("Shape", bound=BaseModel)
LINE_MAX: Final = 110
_TELL_THEMSELVES = ("missing", "order", "tokens", "conflict", "extra_forbidden")
"""Kinds of error whose message needs no value beside it."""


def parse(kind: type[Shape], where: Path | str, text: str) -> Shape:
    """Read one JSON object. Raises BadInput with ``where``, and a line for each bad key."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as errors:
        details = errors.errors(include_url=False)
        told = [each for each in details if len(details) == 1 or each["type"] != "too_short"]
        found = [f"{where}: {_line(each)}" for each in told]
        raise BadInput("\n".join(found)) from None


def read_text(path: Path) -> str:
    """The text of a file. Raises BadInput if it cannot be read, or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 text: byte {error.start}") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None


def laid_out(part: Any, margin: str = "") -> str:
    """JSON in which whatever fits on a line is on one, and so is a list of numbers.

    ``margin`` stands before every line but the first.
    """
    plain = json.dumps(part, ensure_ascii=False, allow_nan=False)
    numbers = isinstance(part, list) and not any(isinstance(each, dict | list) for each in part)
    if not isinstance(part, dict | list) or numbers or len(margin + plain) <= LINE_MAX:
        return plain
    inner = margin + "  "
    if isinstance(part, list):
        lines = [inner + laid_out(each, inner) for each in part]
        return "[\n" + ",\n".join(lines) + f"\n{margin}]"
    lines = [f"{inner}{json.dumps(key)}: {laid_out(each, inner)}" for key, each in part.items()]
    return "{\n" + ",\n".join(lines) + f"\n{margin}}}"


def _line(error: ErrorDetails) -> str:
    if error["type"] == "json_invalid":
        return f"not JSON: {error['ctx']['error']}"
    key = ".".join(str(step) for step in error["loc"])
    said = error["msg"].replace("Input should be", "must be").replace("Field required", "missing")
    said = said.replace("Extra inputs are not permitted", "unknown key")
    value = "" if error["type"] in _TELL_THEMSELVES else _value(error["input"])
    return f"{key}: {said}{value}" if key else f"{said}{value}"


def _value(value: object) -> str:
    if isinstance(value, dict | list | tuple):
        return ""
    return f", is {shown(repr(value) if isinstance(value, str) else value)}"
