"""`--set key=value`: one key of a scenario replaced, as if the file had said so."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Any, Final

from blink.model.scenario.locate import Path

TRACE: Final[Path] = ("workload", "trace")
_LISTS_OF_NAMES: Final[frozenset[Path]] = frozenset({("systems",), ("conditions",), ("requires",)})


@dataclass(frozen=True, slots=True)
class Override:
    """A parsed `--set`. `text` is what the user wrote, for messages."""

    text: str
    path: Path
    value: Any


def parse_override(text: str) -> Override:
    """Parse `dotted.key=value`; a number in the key is a place in an array.

    The value is TOML where that parses (7, 2.5, true, "text", [1, 2], { a = 1 }), else text as it
    stands, so that paths and names need no quotes. `systems`, `conditions` and `requires` take
    names separated by commas.

    Raises ValueError saying what is wrong.
    """
    key, equals, written = text.partition("=")
    if not equals:
        raise ValueError("must be KEY=VALUE")
    path = parse_key(key)
    value = _value(written.strip())
    if path in _LISTS_OF_NAMES and isinstance(value, str):
        value = [name.strip() for name in value.split(",")]
    return Override(text, path, value)


def parse_key(key: str) -> Path:
    """Split a dotted TOML key; whole numbers become places in arrays. Raises ValueError."""
    try:
        table: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f'"{key.strip()}" is not a dotted key') from error
    path: list[str | int] = []
    while isinstance(table, dict):
        [(name, table)] = table.items()
        path.append(int(name) if name.isascii() and name.isdigit() else name)
    return tuple(path)


def _value(written: str) -> Any:
    try:
        return tomllib.loads(f"value = {written}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return written


def switches_to_trace(document: dict[str, Any], paths: list[Path]) -> bool:
    """Whether setting `paths` turns a synthetic workload into a trace."""
    workload = document.get("workload")
    synthetic = isinstance(workload, dict) and workload.get("kind") != "trace"
    return TRACE in paths and (synthetic or workload is None)


def set_all(document: dict[str, Any], settings: list[tuple[Path, Any]]) -> None:
    """Replace keys in place.

    `workload.trace` also replaces a synthetic workload altogether: of `[workload]`, only what
    `settings` say remains. Raises ValueError for a path through a value.
    """
    if switches_to_trace(document, [path for path, _ in settings]):
        document["workload"] = {"kind": "trace"}
    for path, value in settings:
        _set(document, path, value)


def _set(document: dict[str, Any], path: Path, value: Any) -> None:
    place: Any = document
    for depth, step in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(place, list):
            if not isinstance(step, int) or step >= len(place):
                raise ValueError(f"there is no element {step} of {len(place)}")
            following = place[step]
        elif isinstance(place, dict):
            step = str(step)
            following = place.setdefault(step, {}) if not last else None
        else:
            raise ValueError(f'"{path[depth - 1]}" is a value, not a table')
        if last:
            place[step] = value
        place = following
