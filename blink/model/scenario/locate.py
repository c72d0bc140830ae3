"""Which line of a TOML document each of its keys is on, so that an error can point at it.

`tomllib` keeps no positions. This scanner walks a document that `tomllib` has accepted, so it may
take its grammar for granted: it needs to tell keys, strings, brackets and line ends apart.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]


def lines_of(text: str) -> dict[Path, int]:
    """Map every key, table and array element of a valid TOML document to its line (from 1).

    A path is the way into `tomllib.loads(text)`: names for tables, numbers for array elements.
    """
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n") + "\n"
        self.at = 0
        self.line = 1
        self.lines: dict[Path, int] = {}
        self.table: Path = ()
        self.lengths: dict[Path, int] = {}

    def scan(self) -> dict[Path, int]:
        while self._skip_blank():
            if self.text.startswith("[[", self.at):
                self._header("[[", "]]")
            elif self.text[self.at] == "[":
                self._header("[", "]")
            else:
                self._key_value(self.table)
        return self.lines

    def _header(self, opening: str, closing: str) -> None:
        line = self.line
        self._advance(len(opening))
        names = self._key()
        self._skip_blank()
        self._advance(len(closing))
        parent = self._inside(names[:-1], line)
        self.table = (*parent, names[-1])
        self.lines.setdefault(self.table, line)
        if opening == "[[":
            index = self.lengths.get(self.table, 0)
            self.lengths[self.table] = index + 1
            self.table = (*self.table, index)
            self.lines[self.table] = line
        elif self.table in self.lengths:  # [a.b] below [[a.b]] cannot be: tomllib refused it
            raise AssertionError(self.table)

    def _inside(self, names: list[str], line: int) -> Path:
        """The table that a header's leading names mean: the last element of an array of tables."""
        path: Path = ()
        for name in names:
            path = (*path, name)
            self.lines.setdefault(path, line)
            if path in self.lengths:
                path = (*path, self.lengths[path] - 1)
        return path

    def _key_value(self, table: Path) -> None:
        line = self.line
        path = table
        for name in self._key():
            path = (*path, name)
            self.lines.setdefault(path, line)
        self._skip_blank()
        self._advance(1)  # the equals sign
        self._value(path)

    def _key(self) -> list[str]:
        names: list[str] = []
        while True:
            self._skip_blank()
            start = self.at
            if self.text[start] in "\"'":
                self._string()
                names.append(_unquote(self.text[start : self.at]))
            else:
                while self.text[self.at].isalnum() or self.text[self.at] in "-_":
                    self._advance(1)
                names.append(self.text[start : self.at])
            self._skip_blank()
            if self.text[self.at] != ".":
                return names
            self._advance(1)

    def _value(self, path: Path) -> None:
        self._skip_blank()
        mark = self.text[self.at]
        if mark == "[":
            for index in self._items("]"):
                self.lines[(*path, index)] = self.line
                self._value((*path, index))
        elif mark == "{":
            for _ in self._items("}"):
                self._key_value(path)
        elif mark in "\"'":
            self._string()
        else:
            while self.text[self.at] not in ",]}#\n":
                self._advance(1)

    def _items(self, closing: str) -> Iterator[int]:
        """Step into a bracket and yield at the start of every item; end behind `closing`."""
        self._advance(1)
        index = 0
        while True:
            self._skip_blank()
            if self.text[self.at] == closing:
                self._advance(1)
                return
            yield index
            index += 1
            self._skip_blank()
            if self.text[self.at] == ",":
                self._advance(1)

    def _string(self) -> None:
        quote = self.text[self.at]
        triple = quote * 3
        closing = triple if self.text.startswith(triple, self.at) else quote
        self._advance(len(closing))
        while not self.text.startswith(closing, self.at):
            self._advance(2 if quote == '"' and self.text[self.at] == "\\" else 1)
        self._advance(len(closing))
        if len(closing) == 3:  # """""" may end with up to two quotes of its own
            while self.text[self.at] == quote:
                self._advance(1)

    def _skip_blank(self) -> bool:
        """Skip white space, line ends and comments. False at the end of the document."""
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                while self.text[self.at] != "\n":
                    self._advance(1)
            elif not self.text[self.at].isspace():
                return True
            self._advance(1)
        return False

    def _advance(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count


def _unquote(text: str) -> str:
    document: dict[str, Any] = tomllib.loads(f"key = {text}")
    return str(document["key"])
