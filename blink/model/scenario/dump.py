"""A scenario, or another page, with every default filled in; reading it gives the same page."""

from __future__ import annotations

import json
from typing import Any

from blink.model.scenario.base import Section


def resolved(scenario: Section) -> dict[str, Any]:
    """All keys as JSON values; a key that is None is left out, since TOML has no null."""
    return scenario.model_dump(mode="json", by_alias=True, exclude_none=True)


def resolved_toml(scenario: Section) -> str:
    """`resolved` as TOML. A relative trace path stays relative to the working directory."""
    lines: list[str] = []
    _table(resolved(scenario), "", lines)
    return "\n".join(lines).strip() + "\n"


def _table(table: dict[str, Any], name: str, lines: list[str]) -> None:
    below = {key: part for key, part in table.items() if isinstance(part, dict)}
    arrays = {key: part for key, part in table.items() if _is_array_of_tables(part)}
    for key, part in table.items():
        if key not in below and key not in arrays:
            lines.append(f"{_key(key)} = {_value(part)}")
    prefix = f"{name}." if name else ""
    for key, part in below.items():
        lines.extend(["", f"[{prefix}{_key(key)}]"])
        _table(part, prefix + _key(key), lines)
    for key, elements in arrays.items():
        for element in elements:
            lines.extend(["", f"[[{prefix}{_key(key)}]]"])
            _table(element, prefix + _key(key), lines)


def _is_array_of_tables(part: Any) -> bool:
    return isinstance(part, list) and bool(part) and all(isinstance(each, dict) for each in part)


def _value(part: Any) -> str:
    if isinstance(part, list):
        return f"[{', '.join(_value(each) for each in part)}]"
    if isinstance(part, str):
        return _text(part)
    if isinstance(part, float):
        return repr(part)
    return json.dumps(part)  # whole numbers and truth values look alike in both


def _key(key: str) -> str:
    bare = key and all(each.isascii() and (each.isalnum() or each in "-_") for each in key)
    return key if bare else _text(key)


def _text(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
