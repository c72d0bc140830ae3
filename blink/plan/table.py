"""The comparison: one row a run, a system's conditions next to each other, and their ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from blink.model.record import RunRecord
from blink.model.scenario import Scenario, Verdict
from blink.plan.runner import Result
from blink.plan.why import explain

Summary = Mapping[str, Any]
"""What :func:`blink.model.metrics.summarise` returns."""

BASELINE: Final = "isolated"
NOTHING: Final = "-"


def print_comparison(
    console: Console, summaries: Sequence[Summary], records: Sequence[RunRecord]
) -> None:
    """Print the table, what did not complete, and why the systems differ.

    The table needs 80 columns; without a terminal rich assumes as many.
    """
    console.print(comparison_table(summaries))
    for line in (*unfinished_lines(summaries), *extrapolated_lines(records)):
        console.print(Text(line), style="yellow")
    if why := explain(records):
        console.print()
        console.print(Text.assemble(("Why: ", "bold"), why))


def comparison_table(summaries: Sequence[Summary]) -> Table:
    """Return a table of the runs, grouped by system; ``-`` is a figure that is None."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("", overflow="fold")  # narrow terminals wrap names, never figures
    for column in _COLUMNS:
        table.add_column(column.heading, justify="right", no_wrap=True)
    table.add_column("\n\ndone", justify="right", no_wrap=True)
    groups = group_runs(summaries)
    for name, runs in groups.items():
        for index, run in enumerate(runs):
            heading = Text(name, style="bold") if index == 0 else Text(f"  {run['condition']}")
            table.add_row(heading, *(_figure(c.value(run)) for c in _COLUMNS), _completed(run))
            if index > 0 and runs[0]["condition"] == BASELINE:
                table.add_row(*_ratio_row(runs[0], run), style="cyan")
        if len(runs) > 1:
            table.add_section()
    return table


def group_runs(summaries: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Return the runs by system, first the isolated one.

    Where a system ran several times under one condition (a sweep), by label instead.
    """
    seen = [(run["system"], run["condition"]) for run in summaries]
    by_label = len(set(seen)) < len(seen)
    groups: dict[str, list[Summary]] = {}
    for run in summaries:
        name = run["system"]
        if by_label:
            name = run["label"].removesuffix(run["condition"]).rstrip(" /,:-") or name
            name = name.replace("workload.", "")
        groups.setdefault(name, []).append(run)
    for runs in groups.values():
        runs.sort(key=lambda run: run["condition"] != BASELINE)
    return groups


def unfinished_lines(summaries: Sequence[Summary]) -> list[str]:
    """Return a line for each run in which not every request completed: how they ended."""
    return [
        f"{run['system']} ({run['condition']}): "
        + ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in run["outcomes"].items())
        for run in summaries
        if run["completed"] != run["requests"]
    ]


def extrapolated_lines(records: Sequence[RunRecord]) -> list[str]:
    """Return a line for each thing in which a run lies outside what its profile was made of."""
    return [
        f"{record.system} ({record.condition}): EXTRAPOLATED beyond profile "
        f"{record.assumptions['profile']}: {what}"
        for record in records
        for what in record.assumptions.get("extrapolated", ())
    ]


# --- Cells -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Column:
    """A figure: three lines of heading, and where it is in a summary."""

    heading: str
    path: tuple[str, ...]

    def value(self, run: Summary) -> float | None:
        found: Any = run
        for key in self.path:
            found = found[key]
        return None if found is None else float(found)


_COLUMNS: Final = (
    _Column("TTFT\np50\nms", ("ttft_ms", "p50")),
    _Column("TTFT\np99\nms", ("ttft_ms", "p99")),
    _Column("TPOT\nmean\nms", ("tpot_ms", "mean")),
    _Column("ITL\np50\nms", ("itl_ms", "p50")),
    _Column("ITL\np99\nms", ("itl_ms", "p99")),
    _Column("good-\nput\nreq/s", ("goodput_req_s",)),
    _Column("\noutput\ntok/s", ("output_tok_s",)),
    _Column("\nenergy\nmJ/tok", ("energy_mj_per_tok",)),
    _Column("host\nCPU\ns", ("host_cpu_on_token_path_s",)),
)


def _ratio_row(base: Summary, run: Summary) -> list[str]:
    cells = ["  ratio"]
    for column in _COLUMNS:
        below, above = column.value(base), column.value(run)
        cells.append(NOTHING if not below or above is None else _ratio(above / below))
    return [*cells, ""]


def _completed(run: Summary) -> str:
    return f"{run['completed']}/{run['requests']}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _figure(value: float | None) -> str:
    """At most five characters up to 99,999: three significant digits, never in exponent form."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    digits = 2 - floor(log10(abs(value)))
    if digits < -2:
        return f"{value / 1000:.0f}k"
    return f"{value:.{min(max(digits, 0), 3)}f}"


def print_run(
    scenario: Scenario,
    results: Sequence[Result],
    verdicts: Sequence[Verdict],
    broken: Sequence[str],
) -> None:
    """Print a scenario's question, the comparison, and what was expected of it."""
    console = Console()
    console.print(Text(scenario.title, style="bold"))
    console.print(Text(scenario.question, style="italic"))
    print_comparison(
        console, [result.summary for result in results], [result.record for result in results]
    )
    if verdicts:
        console.print()
    for verdict in verdicts:
        console.print(Text(str(verdict), style="red" if verdict.holds is False else ""))
    for text in broken:
        console.print(Text(f"invariant broken: {text}", style="bold red"))
