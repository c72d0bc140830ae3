"""The page and its plain blocks: tables, folds, lists, and where each constant comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from blink.plan.report.axes import NOTHING, number
from blink.plan.report.markup import Html, element, join


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it; the note is a sentence that says how to read it."""

    title: str
    blocks: Sequence[Html]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report: :meth:`html` is the file. ``footer`` says what made it, never when."""

    title: str
    question: str
    sections: Sequence[Section]
    footer: str = ""

    def html(self) -> str:
        """The page as one HTML document that loads nothing, ending in a newline."""
        css = files("blink.plan.report").joinpath("page.css").read_text("utf-8")
        head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("title", self.title),
            element("style", Html(css)),
        )
        header = element(
            "header", element("h1", self.title), element("p", self.question, class_="question")
        )
        body = [_section(section) for section in self.sections]
        footer = element("footer", element("p", self.footer, class_="note"))
        main = element("main", header, *body, footer if self.footer else None)
        page = element("html", head, element("body", main), lang="en")
        return f"<!doctype html>\n{page}\n"


def _section(section: Section) -> Html:
    note = element("p", section.note, class_="note") if section.note else None
    return element("section", element("h2", section.title), note, *section.blocks)


# --- tables ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the interval it lies in, shown below it; None where there is none."""

    value: float | None
    low: float | None
    high: float | None


Cell = str | float | int | Interval | None
"""Text, markup (:class:`Html`), a number (three significant digits; whole ones in full), or –."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading and unit; ``number`` aligns its cells to the right."""

    heading: str
    unit: str = ""
    number: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """A row's cells, the first its heading. ``kind``: "first" of a group, "derived" or "total"."""

    cells: Sequence[Cell]
    kind: str = ""


def table(
    columns: Sequence[Column], rows: Sequence[Row | Sequence[Cell]], *, caption: str = ""
) -> Html:
    """Rows under headings with units; it scrolls by itself where the page is too narrow."""
    head = [
        element(
            "th",
            column.heading,
            element("span", column.unit, class_="unit") if column.unit else None,
            scope="col",
            class_="number" if column.number else "",
        )
        for column in columns
    ]
    body = [_row(columns, row if isinstance(row, Row) else Row(row)) for row in rows]
    made = element(
        "table",
        element("caption", caption) if caption else None,
        element("thead", element("tr", *head)),
        element("tbody", *body),
    )
    return element("div", made, class_="scroll")


def _row(columns: Sequence[Column], row: Row) -> Html:
    assert len(row.cells) == len(columns), f"{len(row.cells)} cells under {len(columns)} columns"
    cells = [
        element(
            "td" if index else "th",
            _cell(cell),
            class_="number" if column.number else "",
            scope=None if index else "row",
        )
        for index, (column, cell) in enumerate(zip(columns, row.cells, strict=True))
    ]
    return element("tr", *cells, class_=row.kind)


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Interval):
        if cell.low is None or cell.high is None:
            return number(cell.value)
        between = element("span", f"{number(cell.low)} – {number(cell.high)}", class_="interval")
        return join(number(cell.value), between)
    if cell is None:
        return NOTHING
    return f"{cell:,}" if isinstance(cell, int) else number(cell)


# --- text ------------------------------------------------------------------------------------


def paragraph(text: str, *, note: bool = False) -> Html:
    """A paragraph; a note is smaller and quieter."""
    return element("p", text, class_="note" if note else "")


def listing(lines: Sequence[str]) -> Html:
    """A list of short lines, text or markup."""
    return element("ul", *(element("li", line) for line in lines), class_="plain")


def side_by_side(blocks: Sequence[Html]) -> Html:
    """Blocks side by side where the page is wide enough, below each other where not."""
    return element("div", *blocks, class_="columns")


def details(summary: str, *blocks: Html, text: str = "", opened: bool = False) -> Html:
    """A fold, shut unless ``opened`` (in print always open): blocks, or preformatted ``text``."""
    content = [*blocks, element("pre", text)] if text else list(blocks)
    return element(
        "details", element("summary", summary), *content, open="open" if opened else None
    )


# --- provenance ------------------------------------------------------------------------------


def provenance(constants: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Html:
    """A fold for each catalogue entry, with the value, unit and source of each of its constants.

    ``constants`` is what :func:`blink.plan.explain.explanation` returns under that name.
    """
    return join(*(_entry(name, each) for name, each in constants.items()))


def _is_unsure(source: str) -> bool:
    """Whether a source says of itself that nobody measured the value."""
    return "assum" in source.lower() or "not measured" in source.lower()


def _entry(name: str, constants: Mapping[str, Mapping[str, Any]]) -> Html:
    unsure = sum(_is_unsure(str(each["source"])) for each in constants.values())
    summary = f"{name}: {len(constants)} constants"
    if unsure:
        summary += f", {unsure} of them assumed or not measured"
    headings = (
        Column("constant", number=False),
        Column("value"),
        Column("unit", number=False),
        Column("source", number=False),
    )
    rows = [
        (
            constant,
            f"{each['value']:g}",
            str(each["unit"]),
            str(each["source"])
            + (f"; fitted to {each['fitted_to']}" if each.get("fitted_to") else ""),
        )
        for constant, each in constants.items()
    ]
    return details(summary, table(headings, rows))
