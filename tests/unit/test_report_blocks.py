"""Blocks make pages that are well formed, load nothing, and show what they were given."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.plan.report import (
    Bar,
    Column,
    Html,
    Interval,
    Limit,
    Marker,
    Page,
    Palette,
    Point,
    Row,
    Section,
    Series,
    Stage,
    bar_chart,
    details,
    element,
    line_chart,
    listing,
    number,
    paragraph,
    provenance,
    side_by_side,
    table,
    waterfall,
)
from blink.plan.report.axes import axis, tick_text
from tests.pages import PageReader

NASTY = "<script>alert('&')</script> \" http://elsewhere"


def page_of(*blocks: Html) -> PageReader:
    return PageReader(Page("A title", "A question?", [Section("A section", blocks)]).html())


def lines(count: int = 3, **look: object) -> Html:
    series = [
        Series(f"line {n}", [Point(x, 10 * x + n, 9 * x, 12 * x) for x in (1, 2, 4)], n)
        for n in range(count)
    ]
    return line_chart("Curves", series, x_label="load, req/s", y_label="ms", **look)  # type: ignore[arg-type]


def test_text_is_text_whatever_it_holds() -> None:
    nasty_bar, nasty_line = Bar(NASTY, 1.0), Series(NASTY, [Point(0, 1)])
    page = PageReader(
        Page(
            NASTY,
            NASTY,
            [
                Section(
                    NASTY,
                    [
                        paragraph(NASTY),
                        listing([NASTY]),
                        table([Column(NASTY, NASTY)], [[NASTY]], caption=NASTY),
                        details(NASTY, text=NASTY),
                        bar_chart(NASTY, [nasty_bar], unit=NASTY, caption=NASTY),
                        waterfall(NASTY, [Stage(NASTY, 1, note=NASTY)], unit=NASTY),
                        line_chart(NASTY, [nasty_line], x_label=NASTY, y_label=NASTY),
                        provenance({NASTY: {NASTY: _constant(NASTY)}}),
                    ],
                    note=NASTY,
                )
            ],
            footer=NASTY,
        ).html()
    )
    assert page.problems == []
    assert page.text.count("<script>") >= 15


def _constant(source: str) -> dict[str, object]:
    return {"value": 2.5, "unit": "ns", "source": source, "fitted_to": "Table 3"}


def test_the_reader_of_these_tests_finds_what_is_wrong() -> None:
    assert PageReader('<p><img src="http://a/b.png"></p>').problems
    assert PageReader("<p><b></p></b>").problems
    assert PageReader("<div>").problems
    assert PageReader("<style>@import 'x';</style>").problems


@given(st.text(), st.text())
def test_any_text_makes_a_whole_page(title: str, cell: str) -> None:
    made = Page(title, cell, [Section(title, [table([Column("a")], [[cell]])])]).html()
    assert PageReader(made).problems == []


def test_a_table_shows_numbers_with_units_and_intervals() -> None:
    made = table(
        [Column("run", number=False), Column("TTFT", "ms"), Column("requests")],
        [Row(["vllm", Interval(97.53, 90.04, 105.6), 12_345], "first"), ["blink", None, 0.5]],
    )
    page = page_of(made)
    assert page.problems == []
    assert "TTFT ms" in page.text
    assert "97.5 90.0 – 106" in page.text
    assert "12,345" in page.text
    assert "blink – 0.500" in page.text
    assert 'class="first"' in made
    with pytest.raises(AssertionError, match="2 cells under 1 columns"):
        table([Column("a")], [["b", "c"]])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (None, "–"), (float("inf"), "–"), (0.00123, "0.0012"), (0.9998, "1.00")),
        *((9.999, "10.0"), (99.95, "100"), (1234.5, "1,234"), (-3.14159, "−3.14")),
    ],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_line_chart_names_its_lines_and_marks() -> None:
    made = lines(
        markers=[Marker(2, "knee", 1), Marker(4, "", 2, y=41)],
        limits=[Limit(30, "objective: 30 ms")],
        caption="How it went.",
    )
    page = page_of(made)
    assert page.problems == []
    for text in ("line 0", "line 2", "knee", "objective: 30 ms", "load, req/s", "How it went."):
        assert text in page.text
    assert made.count("<polygon") == 3  # the intervals
    assert made.count('class="ring') == 1


def test_names_at_the_ends_of_lines_do_not_touch() -> None:
    series = [Series(f"s{n}", [Point(0, 1), Point(1, 1 + n / 1e6)], n) for n in range(8)]
    made = line_chart("Close", series, x_label="x", y_label="y")
    places = sorted(
        float(y) for y in re.findall(r'<text x="[\d.]+" y="([\d.]+)" class="named', made)
    )
    assert len(places) == 8
    assert min(b - a for a, b in pairwise(places)) >= 13.9


def test_every_point_lies_in_the_picture() -> None:
    for log in (False, True):
        made = lines(log_x=log, log_y=log)
        [_, _, width, height] = map(float, re.findall(r'viewBox="([^"]+)"', made)[-1].split())
        for text in re.findall(r'points="([^"]+)"', made):
            for x, y in (map(float, pair.split(",")) for pair in text.split()):
                assert 0 <= x <= width
                assert 0 <= y <= height


def test_a_line_without_a_value_is_said() -> None:
    made = line_chart("T", [Series("gone", [])], x_label="x", y_label="y")
    assert "No value: gone." in page_of(made).text
    some = line_chart("T", [Series("gone", []), Series("a", [Point(0, 1)])], x_label="", y_label="")
    assert "No value: gone." in page_of(some).text


@pytest.mark.parametrize("log", [False, True])
@given(values=st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=5))
def test_axes_hold_their_values_and_have_ticks(log: bool, values: list[float]) -> None:
    made = axis(values, 0, 100, log=log, zero=not log)
    assert made.low <= min(values) * 1.000001
    assert made.high >= max(values) * 0.999999
    assert 1 <= len(made.ticks()) <= 12
    assert all(-1e-6 <= made.at(tick) <= 100.000001 for tick in made.ticks())
    assert all("e" not in tick_text(tick) for tick in made.ticks() if 1e-4 < tick < 1e9)


def test_a_waterfall_ends_at_its_sum() -> None:
    made = waterfall(
        "TTFT", [Stage("queue", 3.0), Stage("step", 9.5), Stage("drift", -0.5)], unit="ms"
    )
    assert "total 12.00 100 %" in page_of(made).text
    begins = [float(x) for x in re.findall(r'<rect x="([\d.]+)%', made)]
    widths = [float(w) for w in re.findall(r'width="([\d.]+)%', made)]
    assert begins == pytest.approx([0, 24, 96, 0])  # of 12.5, the furthest that it reaches
    assert widths == pytest.approx([24, 76, 4, 96])


def test_bars_show_their_intervals() -> None:
    made = bar_chart("Energy", [Bar("blink", 50, 40, 60), Bar("vllm", None)], unit="mJ/tok")
    text = page_of(made).text
    assert "blink 50.0 40.0 – 60.0" in text
    assert "vllm –" in text
    assert 'x1="66.67%"' in made


def test_a_fold_of_constants_counts_what_nobody_measured() -> None:
    entry = {
        "a_ns": _constant("measured"),
        "b_ns": _constant("assumed"),
        "c": _constant("as x: not measured"),
    }
    text = page_of(provenance({"gpu x": entry})).text
    assert "gpu x: 3 constants, 2 of them assumed or not measured" in text
    assert "2.5 ns measured; fitted to Table 3" in text


def test_a_system_keeps_its_colour() -> None:
    one, other = Palette(), Palette()
    assert other.of("sglang") == one.of("sglang")
    assert one.of("vllm-0.13") not in {one.of(name) for name in ("blink", "vllm", "trtllm")}
    many = [one.of(f"system {n}") for n in range(20)]
    assert set(many) <= set(range(1, 9))


def test_a_page_is_the_same_bytes_and_has_no_script() -> None:
    page = Page("T", "Q?", [Section("S", [side_by_side([lines()])])])
    assert page.html() == page.html()
    reader = PageReader(page.html())
    assert "script" not in reader.tags
    assert "prefers-color-scheme: dark" in reader.css
    assert "@media print" in reader.css
    assert element("p", None, "a", class_="") == "<p>a</p>"
