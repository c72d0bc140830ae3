"""Bars beside their names and numbers: tables, so that text keeps its size on every page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blink.plan.report.axes import number
from blink.plan.report.markup import Html, element


@dataclass(frozen=True, slots=True)
class Bar:
    """A value from 0, and the interval in which it lies, if that is known."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a whole, which begins where the part before it ended; it may be negative."""

    label: str
    value: float
    colour: int = 0
    note: str = ""


def bar_chart(
    title: str, bars: Sequence[Bar], *, unit: str, scale: float | None = None, caption: str = ""
) -> Html:
    """One bar a row, its number beside it. ``scale``: the value of the full width."""
    reach = [each for bar in bars for each in (bar.value, bar.high) if each is not None]
    full = scale or max(reach, default=0.0) or 1.0
    rows = [
        element(
            "tr",
            element("th", bar.label, scope="row"),
            element("td", _bar(0.0, bar.value or 0.0, full, bar), class_="bar"),
            element("td", number(bar.value), _range(bar), class_="number"),
        )
        for bar in bars
    ]
    return _figure(title, ("", "", unit), rows, caption)


def waterfall(
    title: str,
    stages: Sequence[Stage],
    *,
    unit: str,
    total_label: str = "total",
    scale: float | None = None,
    caption: str = "",
) -> Html:
    """The parts of a whole, one after the other, and their sum. ``scale`` as in bar_chart."""
    total = sum(stage.value for stage in stages)
    begins, reach = 0.0, [total]
    places: list[float] = []
    for stage in stages:
        places.append(begins)
        begins += stage.value
        reach.append(begins)
    full = scale or max(reach) or 1.0
    rows = [
        element(
            "tr",
            element("th", stage.label, scope="row", title=stage.note),
            element("td", _bar(place, stage.value, full, stage), class_="bar"),
            element("td", _aligned(stage.value, total), class_="number"),
            element("td", _share(stage.value, total), class_="number"),
        )
        for stage, place in zip(stages, places, strict=True)
    ]
    whole = Stage(total_label, total)
    rows.append(
        element(
            "tr",
            element("th", total_label, scope="row"),
            element("td", _bar(0.0, total, full, whole), class_="bar"),
            element("td", _aligned(total, total), class_="number"),
            element("td", "100 %", class_="number"),
            class_="total",
        )
    )
    return _figure(title, ("", "", unit, "share"), rows, caption)


def _figure(title: str, headings: Sequence[str], rows: Sequence[Html], caption: str) -> Html:
    head = [
        element("th", text, scope="col" if text else None, class_="number" if text else "")
        for text in headings
    ]
    return element(
        "figure",
        element("h3", title),
        element(
            "table",
            element("thead", element("tr", *head)),
            element("tbody", *rows),
            class_="bars",
        ),
        element("figcaption", caption) if caption else None,
    )


def _bar(begins: float, value: float, full: float, drawn: Bar | Stage) -> Html:
    """A bar in per cent of its cell, at least a hair wide, with a whisker for its interval."""
    low, high = sorted((begins, begins + value))
    width = max(100 * (high - low) / full, 0.4 if value else 0.0)
    rect = element(
        "rect", x=f"{100 * low / full:.2f}%", y="15%", width=f"{width:.2f}%", height="70%"
    )
    whisker = None
    if isinstance(drawn, Bar) and drawn.low is not None and drawn.high is not None:
        ends = {
            "x1": f"{100 * drawn.low / full:.2f}%",
            "x2": f"{100 * drawn.high / full:.2f}%",
            "y1": "50%",
            "y2": "50%",
        }
        whisker = element("line", class_="whisker", **ends)
    return element("svg", rect, whisker, class_=f"c{drawn.colour}", aria_hidden="true")


def _range(bar: Bar) -> Html | None:
    if bar.low is None or bar.high is None:
        return None
    return element("span", f"{number(bar.low)} – {number(bar.high)}", class_="interval")


def _aligned(value: float, total: float) -> str:
    """A part with as many decimals as its whole has, so that points stand below each other."""
    decimals = 1 if total >= 100 else 2 if total >= 10 else 3
    smallest = 10.0**-decimals
    if 0 < abs(value) < smallest / 2:
        return f"{'<' if value > 0 else '>−'}{smallest:.{decimals}f}"
    return f"{value:,.{decimals}f}".replace("-", "−")


def _share(value: float, total: float) -> str:
    if not total:
        return ""
    share = round(100 * value / total, 1) or 0.0  # never a negative nought
    return f"{share:.1f} %".replace("-", "−")
