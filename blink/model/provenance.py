"""Constants that can say where they come from, and the TOML catalogues that hold them.

A catalogue file is a table of entries; an entry's numbers are inline tables
``{value = 4.8e12, unit = "bytes/s", source = "...", fitted_to = "..."}``, its texts and flags plain
values. ``fitted_to`` names the measurement a constant was fitted to; without it the constant was
read or measured directly.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from blink.model.errors import UnknownName


@dataclass(frozen=True, slots=True)
class Constant:
    """One number with its unit and origin."""

    value: float | int
    unit: str
    source: str
    fitted_to: str | None = None

    def __str__(self) -> str:
        fitted = f"; fitted to {self.fitted_to}" if self.fitted_to else ""
        return f"{self.value:g} {self.unit} ({self.source}{fitted})"


@dataclass(frozen=True, slots=True)
class Entry:
    """One catalogue entry: ``constants`` with provenance, ``labels`` (texts, flags) without."""

    name: str
    constants: Mapping[str, Constant]
    labels: Mapping[str, Any]

    def number(self, key: str) -> float:
        return float(self.constants[key].value)

    def integer(self, key: str) -> int:
        value = self.constants[key].value
        if value != int(value):
            raise ValueError(f"{self.name}.{key} = {value}: must be a whole number")
        return int(value)


@cache
def catalogue(file_name: str) -> Mapping[str, Entry]:
    """All entries of ``blink/model/data/<file_name>``, by name. Read once and kept."""
    path = resources.files("blink.model") / "data" / file_name
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return MappingProxyType({name: _entry(name, table) for name, table in tables.items()})


def entry(file_name: str, kind: str, name: str) -> Entry:
    """The entry ``name``, or the one whose ``aliases`` hold it; case and punctuation are ignored.

    Tables whose name begins with ``_`` hold shared constants and are no entries.

    Raises ``UnknownName`` with the nearest known names.
    """
    entries = {key: each for key, each in catalogue(file_name).items() if key[0] != "_"}
    wanted = _plain(name)
    for known, found in entries.items():
        names = (known, *found.labels.get("aliases", ()))
        if wanted in map(_plain, names):
            return found
    raise UnknownName(kind, name, list(entries))


def _plain(name: str) -> str:
    return "".join(character for character in name.casefold() if character.isalnum())


def _entry(name: str, table: Mapping[str, Any]) -> Entry:
    constants = {
        key: Constant(**value)
        for key, value in table.items()
        if isinstance(value, dict) and "value" in value
    }
    labels = {key: value for key, value in table.items() if key not in constants}
    return Entry(name, MappingProxyType(constants), MappingProxyType(labels))
