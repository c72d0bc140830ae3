"""``blink bench gpu``: what single things cost on this GPU, beside everything they should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from blink.model.profile import MICROBENCHMARKS, Timing
from blink.plan.validate_report import catalogue_ns, describe, figure_table, print_titled, us

LIMITS_NS: Final = {
    "launch_call_ns": 2_500,
    "launch_to_seen_ns": 3_500,
    "tail_ns": 6_000,
    "scan_ns": 3_500,
    "claim_to_launch_ns": 10_000,
}
"""What the p50 of each must not pass."""

FACTS: Final = {
    "launch_call_ns": "2.0-2.2 us",
    "launch_to_seen_ns": "2.9-3.1 us",
    "tail_ns": "3.9-5.3 us",
    "scan_ns": "2.6-3.4 us",
    "claim_ns": "10.8 us for all",
    "host_launch_ns": "10.8 us",
    "write_visible_ns": "5.7 us",
    "read_metadata_ns": "7.7 us",
}
"""Measured on an H200 on 2026-11-30, by small programs of one purpose each."""


def rows_of(microbenchmarks: Mapping[str, Timing], board: str) -> list[dict[str, Any]]:
    """A row each: ``what``, p50, p99, mean, count, catalogue, fact, limit and ``holds``.

    Times in ns. ``holds`` is None where there is no limit, and False for one that was not measured.
    """
    stated = catalogue_ns(board)
    names = [*MICROBENCHMARKS, *(name for name in microbenchmarks if name not in MICROBENCHMARKS)]
    return [
        {
            "what": name,
            "meaning": MICROBENCHMARKS.get(name),
            **(microbenchmarks.get(name) or dict.fromkeys(("p50", "p99", "mean", "count"))),
            "catalogue": stated.get(name),
            "fact": FACTS.get(name),
            "limit": LIMITS_NS.get(name),
            "holds": _holds(name, microbenchmarks.get(name)),
        }
        for name in names
    ]


def _holds(name: str, timing: Timing | None) -> bool | None:
    limit = LIMITS_NS.get(name)
    if limit is None:
        return None
    return timing is not None and timing["p50"] <= limit


def print_bench(
    machine: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], console: Console | None = None
) -> None:
    """Print the table, and a line for each limit that is missed."""
    console = console or Console()
    console.print(describe(machine))
    columns = ("p50", "p99", "n", "catalogue", "2026-11-30", "limit")
    table = figure_table(*columns)
    for row in rows:
        table.add_row(
            row["what"].removesuffix("_ns"),
            *(us(row[part]) for part in ("p50", "p99")),
            "-" if row["count"] is None else str(row["count"]),
            us(row["catalogue"]),
            row["fact"] or "-",
            us(row["limit"]),
            style="red" if row["holds"] is False else "",
        )
    print_titled(console, "Single things, us", table)
    for row in rows:
        if row["holds"] is False:
            found = "was not measured" if row["p50"] is None else f"is {us(row['p50'])} us"
            line = f"{row['what']} {found}, of {us(row['limit'])}: {row['meaning']}"
            console.print(Text(line, style="red"))
