"""A plan's answer as a page: loads with intervals, fleets, what binds, what is saved, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blink.model.scenario.dump import resolved_toml
from blink.plan.capacity.candidates import Builder, candidates_of, scenario_of
from blink.plan.capacity.page import Plan
from blink.plan.capacity.table import common_text, short_labels, slo_text
from blink.plan.explain import explanation
from blink.plan.report import (
    Bar,
    Column,
    Html,
    Interval,
    Limit,
    Page,
    Palette,
    Point,
    Row,
    Section,
    Series,
    bar_chart,
    details,
    line_chart,
    listing,
    paragraph,
    provenance,
    side_by_side,
    table,
)
from blink.plan.runner import PlannedRun

Document = dict[str, Any]


def plan_page(plan: Plan, document: Document) -> str:
    """The whole page as HTML; the same bytes for the same answer."""
    palette = Palette()
    rows = document["candidates"]
    labels = short_labels(rows)
    colours = [palette.of(row["system"]) for row in rows]
    answer = Section(
        "Answer",
        [
            paragraph(f"{common_text(rows)}. SLO: {slo_text(document['slo'])}"),
            *_bars(document, labels, colours),
        ],
        "Loads are means over replications with their 95 % intervals (Student's t). All candidates "
        "get the same requests in each replication.",
    )
    sections = [answer, _fleets(document, labels), _binding(document, labels)]
    if document["comparisons"]:
        short = {row["label"]: label for row, label in zip(rows, labels, strict=True)}
        sections.append(_comparisons(document, short))
    if document["sensitivity"]:
        sections.append(_sensitivity(plan, document, palette))
    sections += [_method(plan, document, labels), *_origins(plan)]
    footer = f"blink plan, commit {document['commit']}, seed {document['seed']}"
    return Page(document["title"], document["question"], sections, footer=footer).html()


def _bars(document: Document, labels: Sequence[str], colours: Sequence[int]) -> Iterator[Html]:
    rows = document["candidates"]
    loads = []
    for row, label, colour in zip(rows, labels, colours, strict=True):
        found = row["capacity_req_s"] or {"mean": None, "low": None, "high": None}
        low = None if found["low"] is None else max(0.0, found["low"])
        loads.append(Bar(label, found["mean"], low, found["high"], colour))
    charts = [bar_chart("Largest load within the SLO", loads, unit="req/s")]
    cost = [row["fleet"] and row["fleet"]["cost_per_mtok"] for row in rows]
    if any(each is not None for each in cost):
        bars = [Bar(*each) for each in zip(labels, cost, strict=True)]
        bars = [Bar(bar.label, bar.value, colour=at) for bar, at in zip(bars, colours, strict=True)]
        charts.append(
            bar_chart("Cost of a million output tokens", bars, unit=str(document["currency"]))
        )
    yield side_by_side(charts)


def _fleets(document: Document, labels: Sequence[str]) -> Section:
    demand, currency = document["demand_req_s"], document["currency"]
    columns = [
        Column("candidate", number=False),
        *(Column(name) for name in ("replicas", "GPUs", "DPUs")),
        Column("cores kept"),
        Column("cores busy"),
        Column("power", "W"),
        Column("energy", "mJ/token"),
    ]
    if currency:
        columns += [Column("cost", f"{currency}/h"), Column("cost", f"{currency}/Mtok")]
    rows = []
    for row, label in zip(document["candidates"], labels, strict=True):
        fleet = row["fleet"] or {}
        names = ["replicas", "gpus", "dpus", "host_cores_reserved", "host_cores_busy", "power_w"]
        names += ["energy_mj_per_tok"]
        names += ["cost_per_hour", "cost_per_mtok"] if currency else []
        rows.append(Row([label, *(fleet.get(name) for name in names)]))
    blocks = [table(columns, rows)]
    reasons = [
        f"{label}: {row['infeasible'] or row['fleet_infeasible']}"
        for row, label in zip(document["candidates"], labels, strict=True)
        if row["infeasible"] or row["fleet_infeasible"]
    ]
    if reasons:
        blocks.append(listing(reasons))
    what = "at its largest load" if demand is None else f"for {demand:g} requests a second"
    return Section(
        f"The fleet {what}",
        blocks,
        "Cores kept are pinned for the server and lost to others; cores busy are what it uses. "
        "Power is the whole servers', neighbours' cores and DPUs included. A size holds if every "
        "replication of the whole fleet, behind its router, meets the SLO.",
    )


def _binding(document: Document, labels: Sequence[str]) -> Section:
    columns = [
        Column("candidate", number=False),
        Column("more load breaks", number=False),
        Column("GPU busy", "%"),
        Column("sequences a step"),
    ]
    rows = []
    for row, label in zip(document["candidates"], labels, strict=True):
        figures, binding = row["figures"], row["binding"]
        rows.append(
            Row(
                [
                    label,
                    binding["text"] if binding else "nothing that was tried",
                    None if figures is None else 100 * figures["gpu_busy"],
                    None if figures is None else figures["batch_mean"],
                ]
            )
        )
    named = zip(document["candidates"], labels, strict=True)
    who = [f"{label}: {row['binding_request']}" for row, label in named if row["binding_request"]]
    blocks = [table(columns, rows)]
    if who:
        blocks.append(
            details("the request at that percentile, taken apart", listing(who), opened=True)
        )
    return Section("What binds", blocks)


def _comparisons(document: Document, short: Mapping[str, str]) -> Section:
    currency = document["currency"]
    columns = [
        Column("candidate", number=False),
        Column("against", number=False),
        Column("load", "times"),
        *(Column(name, "saved") for name in ("GPUs", "DPUs", "cores kept")),
        Column("power", "W saved"),
    ]
    if currency:
        columns.append(Column("cost", f"{currency}/h saved"))
    names = ["gpus", "dpus", "host_cores_reserved", "power_w"]
    names += ["cost_per_hour"] if currency else []
    rows = []
    for each in document["comparisons"]:
        ratio, saved = each["capacity_ratio"], each["saved"] or {}
        shown = None
        if ratio is not None:
            whole = ratio["low"] is not None
            shown = Interval(ratio["mean"], ratio["low"], ratio["high"]) if whole else ratio["mean"]
        who = [short[each["candidate"]], short[each["baseline"]]]
        cells = [*who, shown, *(saved.get(name) for name in names)]
        rows.append(Row(cells))
    return Section(
        "What is saved",
        [table(columns, rows)],
        "A ratio is taken replication by replication; negative savings are what is spent more.",
    )


def _sensitivity(plan: Plan, document: Document, palette: Palette) -> Section:
    asked = plan.sensitivity
    assert asked is not None
    charts = []
    for name in document["sensitivity"][0]["points"][0]["figures"]:
        series = []
        for curve in document["sensitivity"]:
            found = [(each["value"], each["figures"][name]) for each in curve["points"]]
            points = [_point(x, figure) for x, figure in found if figure is not None]
            series.append(Series(curve["label"], points, palette.of(curve["system"])))
        latency, _, statistic = name.partition(".")
        label = latency.removesuffix("_ms").upper()
        limit = plan.slo.limits(latency)[statistic]
        charts.append(
            line_chart(
                f"{label} {statistic}",
                series,
                x_label=asked.key,
                y_label="ms",
                limits=[Limit(limit, f"objective: {label} ≤ {limit:g} ms")],
            )
        )
    lost = [_lost(curve) for curve in document["sensitivity"]]
    return Section(
        "Where the SLO is lost",
        [listing(lost), side_by_side(charts)],
        f"One replica at {asked.rate:g} requests a second; intervals over replications.",
    )


def _point(x: float, figure: dict[str, Any]) -> Point:
    low = None if figure["low"] is None else max(0.0, figure["low"])
    return Point(x, figure["mean"], low, figure["high"])


def _lost(curve: dict[str, Any]) -> str:
    lost = curve["lost"]
    if lost is None:
        return f"{curve['label']}: holds up to {curve['points'][-1]['value']:g}"
    after = "at none of the values" if lost["after"] is None else f"up to {lost['after']:g}"
    return f"{curve['label']}: holds {after}, not at {lost['at']:g}: {lost['because']}"


def _method(plan: Plan, document: Document, labels: Sequence[str]) -> Section:
    """How each load was found, probe by probe."""
    blocks = [
        paragraph(
            f"Each probe runs {plan.search.requests} requests a replica. Its beginning is cut by "
            "MSER-5, and the requests that outlast the last arrival with it. A load is not taken "
            "if TTFT rises over the run (a line through twenty groups, p < 0.01, by half its mean "
            f"or more). The search ends when the next load that fails is within "
            f"{plan.search.tolerance:.1%}; it is repeated for {plan.search.seeds} replications."
        )
    ]
    for row, label in zip(document["candidates"], labels, strict=True):
        if row["searches"]:
            lines = [line for search in row["searches"] for line in search.split("; ")]
            blocks.append(details(label, listing(lines)))
    return Section("How the loads were found", blocks)


def _origins(plan: Plan) -> list[Section]:
    builder = Builder(plan)
    runs = []
    for candidate in candidates_of(plan):
        for gpu in dict.fromkeys(candidate.gpus):
            scenario = scenario_of(plan, candidate, gpu)
            runs.append(PlannedRun(scenario, "", builder.setup(candidate, gpu)))
    constants = explanation(runs[0].scenario, runs)["constants"]
    toml = details("every key, defaults included (TOML)", text=resolved_toml(plan))
    return [
        Section("Plan", [toml]),
        Section("Constants", [provenance(constants)], "Where each number comes from."),
    ]
