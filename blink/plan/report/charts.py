"""Line charts as inline SVG: intervals as bands, names at the lines' ends, one colour a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from blink.plan.report.axes import Axis, axis, tick_text
from blink.plan.report.markup import Html, element, join

WIDTH: Final = 470
HEIGHT: Final = 296
LEFT: Final = 46
TOP: Final = 32
BOTTOM: Final = 40
RIGHT: Final = 24
CHARACTER: Final = 6.4
"""Width of a character of a chart's text, in its units: it reserves room, nothing more."""
LINE: Final = 14.0
"""Height of a line of a chart's text."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a line, and the interval in which its ``y`` lies, if that is known."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """A line: its name, its points by rising ``x``, a colour of the style sheet (0 to 8)."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Marker:
    """Something that happens at ``x``, such as a knee: a ring at ``y``, or a vertical line."""

    x: float
    label: str = ""
    colour: int = 0
    y: float | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """A value of ``y`` not to be exceeded: a horizontal line."""

    y: float
    label: str


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    stairs: bool = False,
    legend: bool = False,
    dots: bool = True,
    markers: Sequence[Marker] = (),
    limits: Sequence[Limit] = (),
    x_names: Sequence[str] = (),
    caption: str = "",
) -> Html:
    """Lines over ``x``, with their intervals, names at their ends (or a ``legend`` above).

    Labels say the unit. ``stairs``: a value holds until the next. ``x_names`` are the names of
    x = 0, 1, ... where x is not a number. A line without points is left out, and said.
    """
    drawn = [each for each in series if each.points]
    empty = [each.label for each in series if not each.points]
    if empty:
        caption = f"{caption} No value: {', '.join(empty)}.".strip()
    if not drawn:
        return element("figure", element("h3", title), element("figcaption", caption))
    longest = 0 if legend else max(len(each.label) for each in drawn)
    right = WIDTH - RIGHT - longest * CHARACTER
    across = axis([p.x for s in drawn for p in s.points], LEFT, right, log=log_x, zero=False)
    heights = [h for s in drawn for p in s.points for h in (p.y, p.low, p.high) if h is not None]
    heights += [limit.y for limit in limits if log_y or limit.y <= 4 * max(heights)]
    up = axis(heights, HEIGHT - BOTTOM, TOP, log=log_y, zero=True)
    svg = element(
        "svg",
        _grid(across, up, x_names),
        element("text", y_label, x=0, y=12, class_="tick"),
        element("text", x_label, x=right, y=HEIGHT - 4, class_="tick", text_anchor="end"),
        *(_limit(limit, across, up) for limit in limits if limit.y <= up.high),
        *(_line(each, across, up, stairs=stairs, dots=dots) for each in drawn),
        *(_marker(marker, across, up) for marker in markers),
        None if legend else _names(drawn, across, up),
        class_="chart",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{title}: {y_label} over {x_label}",
    )
    return element(
        "figure",
        element("h3", title),
        chart_legend(drawn) if legend else None,
        svg,
        element("figcaption", caption) if caption else None,
    )


def chart_legend(series: Sequence[Series]) -> Html:
    """The names of lines with a piece of each, where their ends leave no room for names."""
    items = []
    for each in series:
        line = element("line", x1=1, x2=26, y1=5, y2=5, class_=_line_class(each))
        items.append(
            element("li", element("svg", line, viewBox="0 0 27 10", aria_hidden="true"), each.label)
        )
    return element("ul", *items, class_="legend")


def _line_class(series: Series) -> str:
    return f"line c{series.colour}" + (" dashed" if series.dashed else "")


def _grid(across: Axis, up: Axis, x_names: Sequence[str]) -> Html:
    """Horizontal lines with their values, ticks below, and the line of y's lower end."""
    parts: list[Html] = []
    for tick in up.ticks():
        y = up.at(tick)
        parts.append(element("line", x1=LEFT, x2=across.end, y1=y, y2=y, class_="grid"))
        parts.append(
            element("text", tick_text(tick), x=LEFT - 6, y=y + 4, text_anchor="end", class_="tick")
        )
    floor_y = up.begin
    parts.append(element("line", x1=LEFT, x2=across.end, y1=floor_y, y2=floor_y, class_="axis"))
    named = list(enumerate(x_names)) if x_names else [(t, tick_text(t)) for t in across.ticks()]
    for place, text in _without_overlap([(across.at(at), text) for at, text in named]):
        parts.append(element("line", x1=place, x2=place, y1=floor_y, y2=floor_y + 4, class_="axis"))
        parts.append(
            element("text", text, x=place, y=floor_y + 17, text_anchor="middle", class_="tick")
        )
    return join(*parts)


def _without_overlap(places: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Leave out the tick texts that would touch the one before."""
    kept: list[tuple[float, str]] = []
    for place, text in places:
        half = len(text) * CHARACTER / 2
        if not kept or place - half > kept[-1][0] + len(kept[-1][1]) * CHARACTER / 2 + 5:
            kept.append((place, text))
    return kept


def _limit(limit: Limit, across: Axis, up: Axis) -> Html:
    y = up.at(limit.y)
    return join(
        element("line", x1=LEFT, x2=across.end, y1=y, y2=y, class_="limit"),
        element("text", limit.label, x=LEFT + 4, y=y - 4, class_="limit-name"),
    )


def _line(series: Series, across: Axis, up: Axis, *, stairs: bool, dots: bool) -> Html:
    """The band or whiskers of a line's intervals, the line, and a dot for each of few points."""
    places = [(across.at(point.x), up.at(point.y)) for point in series.points]
    name = f"c{series.colour}"
    parts = [_intervals(series, across, up)]
    if stairs:
        steps = [
            (x, y)
            for (x, _), (_, y) in zip(places[1:], places[:-1], strict=True)
        ]  # fmt: skip
        places = [p for pair in zip(places, [*steps, places[-1]], strict=True) for p in pair]
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts.append(element("polyline", points=text, class_=_line_class(series)))
    if dots and not stairs:
        parts += [element("circle", cx=x, cy=y, r=2.6, class_=f"dot {name}") for x, y in places]
    return join(*parts)


def _intervals(series: Series, across: Axis, up: Axis) -> Html:
    known = [
        (across.at(p.x), up.at(p.low), up.at(p.high))
        for p in series.points
        if p.low is not None and p.high is not None
    ]
    name = f"c{series.colour}"
    if len(known) == 1:
        [(x, low, high)] = known
        return element("line", x1=x, x2=x, y1=low, y2=high, class_=f"whisker {name}")
    there = [f"{x:.1f},{high:.1f}" for x, _, high in known]
    back = [f"{x:.1f},{low:.1f}" for x, low, _ in reversed(known)]
    if not known:
        return Html("")
    return element("polygon", points=" ".join([*there, *back]), class_=f"band {name}")


def _marker(marker: Marker, across: Axis, up: Axis) -> Html:
    x, name = across.at(marker.x), f"c{marker.colour}"
    if marker.y is not None:
        y = up.at(marker.y)
        text = element(
            "text", marker.label, x=x, y=y - 9, class_=f"named {name}", text_anchor="middle"
        )
        ring = element("circle", cx=x, cy=y, r=6, class_=f"ring {name}")
        return join(ring, text if marker.label else None)
    late = x > (across.begin + across.end) / 2
    text = element(
        "text",
        marker.label,
        x=x - 4 if late else x + 4,
        y=TOP + 10,
        class_=f"named {name}",
        text_anchor="end" if late else "start",
    )
    return join(element("line", x1=x, x2=x, y1=up.begin, y2=up.end, class_=f"marker {name}"), text)


def _names(series: Sequence[Series], across: Axis, up: Axis) -> Html:
    """The lines' names at their ends, moved apart where they would touch."""
    ends = sorted((up.at(each.points[-1].y), index) for index, each in enumerate(series))
    places = _apart([y for y, _ in ends], up.end, up.begin)
    parts: list[Html] = []
    for (y, index), place in zip(ends, places, strict=True):
        each = series[index]
        x, name = across.at(each.points[-1].x), f"c{each.colour}"
        at = across.end + 8
        if abs(place - y) > 3 or at - x > 12:
            parts.append(
                element("line", x1=x + 4, x2=at - 2, y1=y, y2=place, class_=f"leader {name}")
            )
        parts.append(element("text", each.label, x=at, y=place + 4, class_=f"named {name}"))
    return join(*parts)


def _apart(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Places near ``wanted``, both ascending, a line of text apart if there is room for that."""
    height = min(LINE, (bottom - top) / max(len(wanted) - 1, 1))
    places: list[float] = []
    for each in wanted:
        places.append(max(each, places[-1] + height) if places else each)
    below = bottom
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], below)
        below = places[index] - height
    return places
