"""What ``blink validate`` says: figures side by side, as data and printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from blink.model.calibration import DIRECT, METADATA_BYTES
from blink.model.hardware import gpu as gpu_sku
from blink.model.hardware import link as link_sku
from blink.model.profile import Timing
from blink.model.scenario import judge
from blink.plan.profiling import AIMS, clocks_mhz, error_of, metrics_of, step_figures
from blink.plan.validate import Pair, Row

FACTOR_FROM: Final = 9.0

# --- figures ---------------------------------------------------------------------------------


def machine_rows(microbenchmarks: Mapping[str, Timing], board: str) -> list[Row]:
    """Single things: measured beside the catalogue, ns."""
    measured = {name: each["p50"] for name, each in microbenchmarks.items()}
    return [
        {
            "what": name,
            "metal": measured.get(name),
            "catalogue": stated,
            "error": error_of(stated, measured.get(name)),
        }
        for name, stated in catalogue_ns(board).items()
    ]


def catalogue_ns(board: str) -> dict[str, float | None]:
    """What the catalogues say of each microbenchmark, ns; None: no constant is that alone."""
    gpu, link = gpu_sku(board), link_sku(DIRECT)
    return {
        "launch_call_ns": gpu.device_launch_ns,
        "launch_to_seen_ns": gpu.device_launch_ns + gpu.completion_poll_ns,
        "tail_ns": gpu.tail_launch_ns,
        "scan_ns": gpu.scan_ns,
        "claim_ns": gpu.claim_ns,
        "claim_to_launch_ns": None,
        "host_launch_ns": gpu.host_launch_ns,
        "write_visible_ns": link.post_ns + link.write_latency_ns,
        "read_metadata_ns": link.read_latency_ns + METADATA_BYTES / link.bandwidth_bytes_s * 1e9,
    }


def pair_rows(pair: Pair) -> dict[str, Row]:
    """By figure: measured, predicted with the profile, and with the catalogue, with errors."""
    columns = {
        name: {**step_figures(each.record), **metrics_of(each.summary)}
        for name, each in (("metal", pair.metal), ("twin", pair.twin), ("plain", pair.catalogue))
    }
    rows = {}
    for name, metal in columns["metal"].items():
        twin, plain = columns["twin"].get(name), columns["plain"].get(name)
        rows[name] = {
            "metal": metal,
            "twin": twin,
            "error": error_of(twin, metal),
            "aim": AIMS.get(name),
            "catalogue": plain,
            "catalogue_error": error_of(plain, metal),
        }
    return rows


def document(pairs: Sequence[Pair]) -> dict[str, Any]:
    """All runs, what neighbours changed, verdicts and broken invariants, as JSON data."""
    return {
        "runs": [
            {
                "spec": str(pair.spec.path),
                "label": pair.metal.record.label,
                "system": pair.metal.record.system,
                "condition": pair.metal.record.condition,
                "point": pair.metal.planned.point,
                "requests": len(pair.metal.record.requests),
                "completed": pair.metal.summary["completed"],
                "steps_extrapolated": pair.twin.record.counters.get("steps_extrapolated", 0),
                "neighbours": list(pair.busy),
                "figures": pair_rows(pair),
            }
            for pair in pairs
        ],
        "interference": changes(pairs),
        "verdicts": _verdicts(pairs),
        "violations": [
            f"{where}, {each.record.label}: {text}"
            for pair in pairs
            for where, each in (("metal", pair.metal), ("twin", pair.twin))
            for text in each.record.violations
        ],
    }


def changes(pairs: Sequence[Pair]) -> list[Row]:
    """What each metric of each system did next to neighbours: isolated -> interfered."""
    by_run = {(*_key(pair), pair.metal.record.condition): pair for pair in pairs}
    rows = []
    for pair in pairs:
        alone = by_run.get((*_key(pair), "isolated"))
        if pair.metal.record.condition != "interfered" or alone is None:
            continue
        before, after = pair_rows(alone), pair_rows(pair)
        figures = {
            name: {
                "isolated": before[name]["metal"],
                "interfered": row["metal"],
                "change": error_of(row["metal"], before[name]["metal"]),
                "twin_change": error_of(row["twin"], before[name]["twin"]),
            }
            for name, row in after.items()
            if name in before
        }
        where = {"spec": str(pair.spec.path), "system": pair.metal.record.system}
        rows.append({**where, "neighbours": list(pair.busy), "figures": figures})
    return rows


def _key(pair: Pair) -> tuple[str, str, str]:
    return str(pair.spec.path), pair.metal.record.system, pair.metal.planned.point


def _verdicts(pairs: Sequence[Pair]) -> list[Row]:
    """The pages' expectations: those of the wall clock on the metal, the others on the twin."""
    found = []
    for path in dict.fromkeys(pair.spec.path for pair in pairs):
        mine = [pair for pair in pairs if pair.spec.path == path]
        expect = mine[0].spec.scenario.expect
        for where, verdicts in (
            ("metal", judge(expect, [pair.metal.summary for pair in mine], "wall")),
            ("twin", judge(expect, [pair.twin.summary for pair in mine], "virtual")),
        ):
            found += [
                {
                    "spec": str(path),
                    "where": where,
                    "text": str(verdict),
                    "holds": verdict.holds,
                    "value": verdict.number,
                }
                for verdict in verdicts
            ]
    return found


# --- printed ---------------------------------------------------------------------------------


def print_validation(found: Mapping[str, Any], console: Console | None = None) -> None:
    """Print what :func:`document` holds, and the machine's rows if they are there."""
    console = console or Console()
    print_machine(found["machine"], found["microbenchmarks"], console)
    for run in found["runs"]:
        ended = f"{run['completed']} of {run['requests']} completed"
        print_titled(console, f"{run['spec']}: {run['label']}, {ended}", _run_table(run))
        for line in _remarks(run):
            console.print(Text(line, style="yellow"), soft_wrap=True)
    for change in found["interference"]:
        heading = f"{change['spec']}: {change['system']} next to neighbours"
        print_titled(console, heading, _change_table(change))
    for verdict in found["verdicts"]:
        style = "red" if verdict["holds"] is False else ""
        console.print(Text(f"{verdict['where']}: {verdict['text']}", style=style))
    for text in found["violations"]:
        console.print(Text(f"invariant broken: {text}", style="bold red"))


def print_machine(machine: Mapping[str, Any], rows: Sequence[Row], console: Console) -> None:
    """Print the machine, and what single things cost on it beside the catalogue's constants."""
    console.print(describe(machine))
    table = figure_table("metal", "catalogue", "error")
    for row in rows:
        cells = (us(row["metal"]), us(row["catalogue"]), _percent(row["error"]))
        table.add_row(row["what"], *cells)
    print_titled(console, "Single things, us", table)


def print_titled(console: Console, title: str, table: Table) -> None:
    """Print a line, and a table below it; the line is never cut to the table's width."""
    console.print()
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(table)


def describe(machine: Mapping[str, Any]) -> Text:
    """One line of what the machine is."""
    clocks = [f"{name} {mhz} MHz" for name, mhz in clocks_mhz(machine).items()]
    said = (machine["gpu"], f"driver {machine['driver']}", f"CUDA {machine['cuda']}", *clocks)
    return Text(", ".join(said))


def _run_table(run: Row) -> Table:
    table = figure_table("metal", "twin", "error", "aim", "catalogue", "error")
    for name, row in run["figures"].items():
        missed = row["aim"] is not None and abs(row["error"] or 0) > row["aim"]
        table.add_row(
            name,
            _figure(row["metal"]),
            _figure(row["twin"]),
            _percent(row["error"]),
            "-" if row["aim"] is None else f"{row['aim']:.0%}",
            _figure(row["catalogue"]),
            _percent(row["catalogue_error"]),
            style="yellow" if missed else "",
        )
    return table


def _remarks(run: Row) -> list[str]:
    found = [
        f"{each['threads']} threads of neighbours took {each['cores']:.1f} cores: {each['what']}"
        for each in run["neighbours"]
    ]
    if run["steps_extrapolated"]:
        found.append(f"{run['steps_extrapolated']} steps of the twin are of shapes not measured")
    return found


def _change_table(change: Row) -> Table:
    table = figure_table("isolated", "interfered", "change", "twin's change")
    for name, row in change["figures"].items():
        table.add_row(
            name,
            _figure(row["isolated"]),
            _figure(row["interfered"]),
            _percent(row["change"]),
            _percent(row["twin_change"]),
        )
    return table


def figure_table(*columns: str) -> Table:
    """A table of names and figures."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def us(ns: float | None) -> str:
    """Nanoseconds as microseconds."""
    return "-" if ns is None else f"{ns / 1e3:.2f}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _percent(value: float | None) -> str:
    """A relative error; a large one as a factor."""
    if value is None:
        return "-"
    return f"{value:+.1%}" if value < FACTOR_FROM else f"x {value + 1:.3g}"
