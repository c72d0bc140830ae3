"""docs/paper.md, made from the document of :mod:`reproduce` alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from blink.plan.paper.figures import FOLDER
from blink.plan.paper.orderings import OTHERWISE, SAME, TIED
from blink.plan.paper.verdict import NOT_PREDICTED, VERDICTS

Line = Mapping[str, Any]
PICTURES: Final = {
    "Figure 1": "figure1",
    "Figure 3": "figure3",
    "Figure 5": "figure5",
    "Figure 6": "figure6",
    "Figure 7": "figure7",
    "Figure 8": "figure8",
    "Figure C.1": "figureC1",
    "Figure D.1": "figureD1",
    "Figure D.2": "figureD2",
    "Figure D.3": "figureD3",
    "Figure D.4": "figureD4",
    "Figure E.1": "figureE1",
}
CAPTIONS: Final = {
    "Figure 1": "Throughput at 4 req/s, alone and beside neighbours",
    "Figure 3": "Makespan with the scheduler on the GPU and on the host",
    "Figure 5": "p99.9 latencies of Qwen3-32B over the load, alone",
    "Figure 6": "p99 TTFT and TPOT over the load, four models",
    "Figure 7": "Throughput over the load, four models",
    "Figure 8": "Wall energy a token at Blink's saturation point",
    "Figure C.1": "Serviceable load",
    "Figure D.1": "p99.9 TTFT and TPOT over the load",
    "Figure D.2": "p95 TTFT and TPOT over the load",
    "Figure D.3": "Median TTFT and TPOT over the load",
    "Figure D.4": "Mean TTFT and TPOT over the load",
    "Figure E.1": "Prompt and output tokens a second over the load",
}
ORDER: Final = (
    "Headline",
    "Table 1",
    "Table 2",
    "Table 3",
    "Table 4",
    "Section 3.2, host operations",
    "Section 4, scheduler and ring",
    "Figure 3",
    "Figure 4",
    "Other configuration",
    "Figure 1",
    "Table 6",
    "Figure 5",
    "Figure 6",
    "Figure 7",
    "Table 7",
    "Figure 8",
    "Table B.1",
    "Table B.2",
    "Figure C.1",
    "Figure D.1",
    "Figure D.2",
    "Figure D.3",
    "Figure D.4",
    "Figure E.1",
)
FURTHEST: Final = 15
INTRODUCTION: Final = """\
# The paper's evaluation, in the twin

`blink reproduce --out docs` made this page, its pictures and `docs/paper.json`: {runs} runs of
the twin, 416 of them the grid of 4 models, 4 systems, 13 loads and 2 conditions. Stated is what the
[paper](https://arxiv.org/abs/2604.07609) says, predicted what the twin says. No constant is fitted
per figure; where one of the twin's constants was fitted to a figure of the paper, that figure is
marked *fitted* and vouches for nothing. "Beside neighbours" is next to 45 threads of pbzip2 and 45
of a compiler, with six cores reserved for the server.
"""


def page_text(document: Mapping[str, Any]) -> str:
    """The page of a whole document."""
    entries = document["entries"]
    figures = [each for each in entries if each["part"] != "Orderings"]
    parts = [
        INTRODUCTION.format(runs=document["runs"]),
        "\n".join(_summary(document["summary"], figures)),
        "\n".join(_furthest(figures)),
        "\n".join(_orderings([each for each in entries if each["part"] == "Orderings"])),
        "\n".join(_contradictions(document["contradictions"])),
        "\n".join(_parts(figures, document["tables"])),
        "\n".join(_not_predicted(figures)),
    ]
    assumed = "\n".join(f"- {each}" for each in document["assumed"])
    parts.insert(3, f"## What the paper leaves open\n\nTaken for every run alike:\n\n{assumed}\n")
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _summary(summary: Mapping[str, Mapping[str, int]], figures: Sequence[Line]) -> Iterator[str]:
    yield "## Verdicts\n"
    yield (
        f"Of {len(figures)} stated figures {len(figures) - _count(figures, NOT_PREDICTED)} can be "
        "predicted. For a comparison (a ratio, a gain, a share kept) it is the effect that is held "
        'against the stated one: the distance from "no difference".\n'
    )
    yield "| verdict | rule | figures | of them fitted |"
    yield "|---|---|---|---|"
    for name, rule in VERDICTS.items():
        count = summary.get(name, {"figures": 0, "fitted": 0})
        yield f"| {name} | {rule} | {count['figures']} | {count['fitted'] or '-'} |"
    yield ""
    yield "| the paper puts one system before another, and the twin | comparisons |"
    yield "|---|---|"
    shown = {SAME: "orders them the same", TIED: "has them within 1 %", OTHERWISE: "does not"}
    for name, text in shown.items():
        yield f"| {text} | {summary.get(name, {'figures': 0})['figures']} |"
    yield ""


def _furthest(figures: Sequence[Line]) -> Iterator[str]:
    yield "## Furthest off\n"
    yield f"The {FURTHEST} figures with the largest factor between predicted and stated:\n"
    yield "| | stated | predicted | factor |"
    yield "|---|---|---|---|"
    found = [each for each in figures if each["verdict"] != NOT_PREDICTED]
    for each in sorted(found, key=_factor, reverse=True)[:FURTHEST]:
        factor = _factor(each)
        shown = "other side" if math.isinf(factor) else f"{factor:.3g}"
        yield (
            f"| {each['what']} `{each['id']}` | {shown_value(each['stated'])} {each['unit']} "
            f"| {shown_value(each['predicted'])} | {shown} |"
        )
    yield ""


def _factor(each: Line) -> float:
    """How far off a figure is, as a factor; infinite if it is on the other side of 0."""
    ratios = each["ratio"] if isinstance(each["ratio"], list) else [each["ratio"]]
    factors = (max(r, 1 / r) if r > 0 else math.inf for r in ratios if r)
    return max(factors, default=1.0)


def _count(entries: Sequence[Line], verdict: str) -> int:
    return sum(each["verdict"] == verdict for each in entries)


def _orderings(entries: Sequence[Line]) -> Iterator[str]:
    yield "## Who is better\n"
    yield (
        "Every comparison that the paper states, alone and beside neighbours: latencies over "
        "Blink's range, rates at the plateau or at Blink's saturation point. All of them are in "
        "`docs/paper.json`.\n"
    )
    yield "| | the same | tied | otherwise |"
    yield "|---|---|---|---|"
    counts: dict[str, Counter[str]] = {}
    for each in entries:
        counts.setdefault(_group(each["id"]), Counter())[each["verdict"]] += 1
    for group, found in counts.items():
        yield f"| {group} | {found[SAME]} | {found[TIED] or '-'} | {found[OTHERWISE] or '-'} |"
    yield (
        "\nTied or otherwise, with how many times better the system is that the paper puts first:\n"
    )
    reasons: dict[str, list[Line]] = {}
    for each in entries:
        if each["verdict"] != SAME:
            reasons.setdefault(each["suspected"], []).append(each)
    for reason, found_ in reasons.items():
        yield f"- **Suspected:** {reason}."
        yield from (f"  - {each['what']}: {each['predicted']:.3f}" for each in found_)
    yield ""


def _group(key: str) -> str:
    part = key.split(".")[1]
    names = {"t": "Table ", "fig": "Figure "}
    letters = part.rstrip("0123456789")
    number = part[len(letters) :]
    if letters == "tb":
        name = f"Table B.{number}"
    elif letters.startswith("fig") and len(letters) == 4:
        name = f"Figure {letters[3]}.{number}"
    else:
        name = names[letters] + number
    if ".alone." in key:
        return f"{name}, alone"
    return f"{name}, beside neighbours" if ".noisy." in key else name


def _contradictions(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Where the paper contradicts itself\n"
    yield "Shown, not fitted. Figures that one of these concerns are marked † below.\n"
    yield "| it says | the twin takes | figures |"
    yield "|---|---|---|"
    for each in found:
        ids = ", ".join(f"`{key}`" for key in each["ids"])
        yield f"| {each['text']} | {each['taken']} | {ids} |"
    yield ""


def _parts(figures: Sequence[Line], tables: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for part in ORDER:
        mine = [e for e in figures if e["part"] == part and e["verdict"] != NOT_PREDICTED]
        if not mine and part not in tables and part not in PICTURES:
            continue
        yield f"## {part}\n"
        if part in PICTURES:
            yield f"![{CAPTIONS[part]}]({FOLDER}/{PICTURES[part]}.png)\n"
        if mine:
            yield from _figures(mine)
        if part in tables:
            yield "The whole table, as the twin fills it:\n"
            yield from _grid(tables[part])


def _figures(entries: Sequence[Line]) -> Iterator[str]:
    yield "| | stated | predicted | ratio | verdict |"
    yield "|---|---|---|---|---|"
    notes: dict[str, int] = {}
    for each in entries:
        marks = "†" if each.get("contradicted") else ""
        about = " (second hand)" if each.get("second_hand") else ""
        fitted = ", *fitted*" if "fitted" in each else ""
        why = ""
        if "suspected" in each:
            number = notes.setdefault(each["suspected"], len(notes) + 1)
            why = f" ({number})"
        yield (
            f"| {each['what']}{about} `{each['id']}`{marks} | {shown_value(each['stated'])} "
            f"{each['unit']} | {shown_value(each['predicted'])} | {shown_value(each['ratio'])} "
            f"| {each['verdict']}{fitted}{why} |"
        )
    yield ""
    for each in entries:
        if "fitted" in each:
            yield f"- *fitted*: `{each['id']}` is what {each['fitted']} was fitted to."
    for reason, number in notes.items():
        yield f"- ({number}) suspected: {reason}."
    if notes or any("fitted" in each for each in entries):
        yield ""


def _grid(table: Mapping[str, Any]) -> Iterator[str]:
    yield f"| {' | '.join(table['columns'])} |"
    yield "|---" * len(table["columns"]) + "|"
    yield from (f"| {' | '.join(row)} |" for row in table["rows"])
    yield ""


def _not_predicted(figures: Sequence[Line]) -> Iterator[str]:
    yield "## What the twin does not predict\n"
    reasons: dict[str, list[Line]] = {}
    for each in figures:
        if each["verdict"] == NOT_PREDICTED:
            reasons.setdefault(each["not_predicted"], []).append(each)
    for reason, found in sorted(reasons.items(), key=lambda item: -len(item[1])):
        yield f"- **{reason[0].upper()}{reason[1:]}** ({len(found)}):"
        for each in found:
            value = f"{shown_value(each['stated'])} {each['unit']}".strip()
            yield f"  - {each['what']}: {value} `{each['id']}`"
    yield ""


def shown_value(value: Any) -> str:
    """A figure as tables show it: three digits, a range by its ends."""
    if isinstance(value, list):
        return " to ".join(map(shown_value, value))
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
