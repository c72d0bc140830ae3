"""A plan's answer for people: a line a candidate, then what binds, what is saved, what is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

ROWS_TOLD_MAX: Final = 8
"""Of more candidates than this only those are told of that serve nothing."""
Document = dict[str, Any]
Row = dict[str, Any]


def print_plan(document: Document, console: Console | None = None) -> None:
    """Print the answer; wide content wraps, nothing is cut."""
    console = console or Console()
    console.print(f"[bold]{document['question']}[/bold]")
    console.print(f"{common_text(document['candidates'])}. SLO: {slo_text(document['slo'])}")
    console.print(_loads(document))
    console.print(_fleets(document))
    for line in sentences(document):
        console.print(line, highlight=False)


def common_text(rows: Sequence[Row]) -> str:
    """What all candidates have in common: models and GPUs, once."""
    models = ", ".join(dict.fromkeys(row["model"] for row in rows))
    gpus = ", ".join(dict.fromkeys(gpu for row in rows for gpu in row["gpus"]))
    return f"{models} on {gpus}"


def short_labels(rows: Sequence[Row]) -> list[str]:
    """Labels without the models and GPUs that all rows share."""
    alike = [name for name in ("model", "gpus") if len({str(row[name]) for row in rows}) == 1]
    found = []
    for row in rows:
        system, model, gpus, *rest = row["label"].split(" ")
        kept = [] if "model" in alike else [model]
        kept += [] if "gpus" in alike else [gpus]
        found.append(" ".join([system, *kept, *rest]))
    return found


def slo_text(slo: Row) -> str:
    """The SLO in a line."""
    parts = []
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        limits = slo.get(name)
        if limits is None:
            continue
        label = name.removesuffix("_ms").upper()
        if slo.get("goodput_fraction") is not None:
            parts.append(f"{label} ≤ {limits:g} ms")
            continue
        by_statistic = limits if isinstance(limits, dict) else {slo["percentile"]: limits}
        parts += [f"{label} {key} ≤ {limit:g} ms" for key, limit in by_statistic.items()]
    if slo.get("goodput_fraction") is not None:
        parts.append(f"together for {slo['goodput_fraction']:.4g} of requests")
    if slo.get("served_fraction") is not None:
        parts.append(f"completions ≥ {slo['served_fraction']:g} of arrivals")
    return ", ".join(parts)


def _loads(document: Document) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    single = all(len(row["gpus"]) == 1 for row in document["candidates"])
    table.add_column("one replica" if single else "candidate")
    table.add_column("req/s", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("more load breaks")
    rows = document["candidates"]
    for row, label in zip(rows, short_labels(rows), strict=True):
        binding = row["binding"]["text"] if row["binding"] else "nothing that was tried"
        why = binding if row["infeasible"] is None else "infeasible: see below"
        table.add_row(label, *capacity_texts(row), why)
    return table


def _fleets(document: Document) -> Table:
    demand, currency = document["demand_req_s"], document["currency"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("at that load" if demand is None else f"for {demand:g} req/s")
    for name in ("repli-\ncas", "GPUs", "DPUs", "cores\nkept", "cores\nbusy", "mJ/\ntoken"):
        table.add_column(name, justify="right")
    if currency:
        table.add_column(f"{currency}\n/hour", justify="right")
        table.add_column(f"{currency}\n/Mtok", justify="right")
    rows = document["candidates"]
    for row, label in zip(rows, short_labels(rows), strict=True):
        table.add_row(label, *fleet_texts(row, priced=bool(currency)))
    return table


def capacity_texts(row: Row) -> tuple[str, str]:
    """The capacity and its interval."""
    found = row["capacity_req_s"]
    if found is None:
        return "none", "-"
    if found["low"] is None:
        return f"{found['mean']:.3g}", "-"
    return f"{found['mean']:.3g}", f"{max(0.0, found['low']):.3g} to {found['high']:.3g}"


def fleet_texts(row: Row, *, priced: bool) -> list[str]:
    """What the fleet takes: replicas, GPUs, DPUs, cores kept and busy, energy; and its price."""
    fleet = row["fleet"]
    if fleet is None:
        return ["-"] * (8 if priced else 6)
    counts = ("replicas", "gpus", "dpus", "host_cores_reserved")
    found = [str(fleet[name]) for name in counts]
    found += [f"{fleet['host_cores_busy']:.2g}", number(fleet["energy_mj_per_tok"])]
    if priced:
        found += [number(fleet["cost_per_hour"]), number(fleet["cost_per_mtok"])]
    return found


def number(value: float | None) -> str:
    """Three figures, without an exponent."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def sentences(document: Document) -> Iterator[str]:
    """What the table has no room for, a line each."""
    rows = document["candidates"]
    for row, label in zip(rows, short_labels(rows), strict=True):
        if len(rows) <= ROWS_TOLD_MAX or row["infeasible"] or row["fleet_infeasible"]:
            yield from _about(row, label)
    if len(rows) > ROWS_TOLD_MAX:
        yield "What broke each, request by request: plan.json and the report of --out DIR"
    short = {row["label"]: label for row, label in zip(rows, short_labels(rows), strict=True)}
    for each in document["comparisons"]:
        yield _compared(each, document["currency"], short)
    for curve in document["sensitivity"]:
        yield _lost(curve)


def _about(row: Row, label: str) -> Iterator[str]:
    if row["infeasible"] is not None:
        yield f"{label}: infeasible: {row['infeasible']}"
        return
    binding, figures = row["binding"], row["figures"]
    if binding is not None:
        who = f"; at that percentile: {row['binding_request']}" if row["binding_request"] else ""
        yield (
            f"{label}: more load breaks {binding['text']}{who}. Just below, the GPU is busy "
            f"{figures['gpu_busy']:.0%} of the time, {figures['batch_mean']:.1f} sequences a step "
            f"({figures['measured']} requests measured, {figures['warm_up']} before them cut)"
        )
    if row["fleet_infeasible"] is not None:
        yield f"{label}: the demand is not met: {row['fleet_infeasible']}"
    if row["fleet"] is not None and "tried" in row["fleet"]:
        yield f"{label}: {_tried(row['fleet'])}"


def _tried(fleet: Row) -> str:
    tried = [f"{n} {'hold' if held else 'do not'}" for n, held in fleet["tried"].items()]
    said = f"replicas tried as a whole fleet: {', '.join(tried)}"
    hours = fleet["gpu_hours_a_day"]
    if hours:
        said += (
            f"; a day takes {hours['fixed']:.0f} GPU-hours, {hours['hourly']:.0f} if the fleet "
            "follows the hours (by capacity: only the peak was simulated)"
        )
    return said


def _compared(each: Row, currency: str | None, short: Mapping[str, str]) -> str:
    ratio, saved = each["capacity_ratio"], each["saved"]
    said = f"{short[each['candidate']]} against {short[each['baseline']]}: "
    if ratio is None:
        return said + "no ratio, one of them meets the SLO at no load"
    said += f"{ratio['mean']:.2f} times the load"
    if ratio["low"] is not None:
        said += f" ({max(0.0, ratio['low']):.2f} to {ratio['high']:.2f})"
    if saved is None:
        return said
    parts = [
        f"{saved['gpus']:+.0f} GPUs",
        f"{saved['host_cores_reserved']:+.0f} reserved cores",
        f"{saved['dpus']:+.0f} DPUs",
        f"{saved['power_w']:+.0f} W",
    ]
    if saved["cost_per_hour"] is not None:
        parts.append(f"{saved['cost_per_hour']:+.2f} {currency} an hour")
    return f"{said}; saved: {', '.join(parts)}"


def _lost(curve: Row) -> str:
    lost, points = curve["lost"], curve["points"]
    if lost is None:
        return f"{curve['label']}: holds its SLO up to {points[-1]['value']:g}"
    if lost["after"] is None:
        return f"{curve['label']}: holds its SLO at none of the values: {lost['because']}"
    return (
        f"{curve['label']}: loses its SLO between {lost['after']:g} and {lost['at']:g}: "
        f"{lost['because']}"
    )
