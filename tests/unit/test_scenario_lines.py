"""The line of every key of a TOML document."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from blink.model.scenario.locate import lines_of

ROOT = Path(__file__).resolve().parents[2]

TRICKY = '''\
# a = 0
a.b."c.d" = 1 # not = a key
'q"' = """
x = 1 \\"""
[not.a.table]
"""
text = """a quote at the end""""
raw = \'\'\'
[[nor.this]]\'\'\'
list = [
  "]", # ]
  { k = [1, 2], l.m = { n = "}" } },

  3, ]
[t]
x = 2020-01-01 00:00:00
[t.u]
[[rows]]
y = -1.5e3
[rows.sub]
z = true
[[rows]]
  [[rows.deep]]
  w = ''
'''

LINES = {
    ("a",): 2,
    ("a", "b"): 2,
    ("a", "b", "c.d"): 2,
    ('q"',): 3,
    ("text",): 7,
    ("raw",): 8,
    ("list",): 10,
    ("list", 0): 11,
    ("list", 1): 12,
    ("list", 1, "k"): 12,
    ("list", 1, "k", 0): 12,
    ("list", 1, "k", 1): 12,
    ("list", 1, "l"): 12,
    ("list", 1, "l", "m"): 12,
    ("list", 1, "l", "m", "n"): 12,
    ("list", 2): 14,
    ("t",): 15,
    ("t", "x"): 16,
    ("t", "u"): 17,
    ("rows",): 18,
    ("rows", 0): 18,
    ("rows", 0, "y"): 19,
    ("rows", 0, "sub"): 20,
    ("rows", 0, "sub", "z"): 21,
    ("rows", 1): 22,
    ("rows", 1, "deep"): 23,
    ("rows", 1, "deep", 0): 23,
    ("rows", 1, "deep", 0, "w"): 24,
}


def paths_in(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    """All paths of a document, that of the document itself left out."""
    found = {path} if path else set()
    children: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for step, child in children:
        found |= paths_in(child, (*path, step))
    return found


def test_every_form_of_key() -> None:
    assert lines_of(TRICKY) == LINES


def test_windows_line_ends() -> None:
    assert lines_of(TRICKY.replace("\n", "\r\n")) == LINES


@pytest.mark.parametrize("text", ["", "# only a comment", "a=1", "[a]", "a = [ # x\n]"])
def test_short_documents(text: str) -> None:
    assert set(lines_of(text)) == paths_in(tomllib.loads(text))


@pytest.mark.parametrize(
    "path",
    [
        *sorted((ROOT / "specs").rglob("*.toml")),
        *sorted((ROOT / "blink").rglob("*.toml")),
        ROOT / "pyproject.toml",
    ],
    ids=lambda path: path.name,
)
def test_every_key_of_a_real_file_has_a_line_that_shows_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines, rows = lines_of(text), text.splitlines()
    assert set(lines) == paths_in(tomllib.loads(text))
    for key, line in lines.items():
        if isinstance(key[-1], str):
            assert key[-1] in rows[line - 1]
