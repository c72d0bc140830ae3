"""The report of a run: one HTML file with the answer, the curves, where the time went, and why.

The same results give the same bytes. :func:`run_report` is the page; its sections are functions of
their own, for other reports to take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from blink import __version__
from blink.model.metrics import NS_PER_MS, Objectives, inter_token_gaps, per_request_ns
from blink.model.scenario import Scenario, Verdict
from blink.plan.account import Account
from blink.plan.critical_path import (
    CONTROL,
    FRONT_END,
    OTHERS_PROMPTS,
    PREEMPTED,
    QUEUE,
    READER,
    STEP,
    label_of,
)
from blink.plan.explain import explanation
from blink.plan.intervals import block_interval, grows, mean, p50, p99
from blink.plan.misses import reason, tally
from blink.plan.picture import cumulative
from blink.plan.report import (
    Column,
    Html,
    Interval,
    Page,
    Palette,
    Point,
    Row,
    Section,
    Series,
    Stage,
    details,
    element,
    line_chart,
    listing,
    paragraph,
    provenance,
    side_by_side,
    table,
    waterfall,
)
from blink.plan.run_sweep import sweep_section
from blink.plan.runner import Result
from blink.plan.table import extrapolated_lines, group_runs, unfinished_lines
from blink.plan.why import step_shares

LINES_MAX: Final = 10
"""Runs in a chart of distributions; beyond that lines cannot be told apart."""

MISSES_MAX: Final = 20
"""Misses that are listed for each run, the worst first."""

CURVE_POINTS: Final = 160
SCALE_RATIO_MAX: Final = 8.0
"""Waterfalls share a scale unless the longest would leave others too short to be read."""


def run_report(
    scenario: Scenario, results: Sequence[Result], verdicts: Sequence[Verdict] = ()
) -> str:
    """The report of ``results``, at least one, as one HTML document.

    ``verdicts`` are those of the scenario's expectations; broken invariants are in the records.
    """
    told = [Account.of(result) for result in results]
    palette = Palette()
    sections = [
        verdict_section(verdicts, [text for each in told for text in _broken(each)]),
        figures_section(told),
        sweep_section(scenario, told, palette),
        distribution_section(told, palette),
        waterfall_section(told),
        misses_section(told),
        *origin_sections(scenario, results),
    ]
    first = results[0].record
    return Page(
        scenario.title,
        scenario.question,
        [section for section in sections if section is not None],
        footer=f"blink {__version__}, commit {first.commit}, seed {first.seed}, backend "
        f"{first.backend}. Figures are defined in docs/metrics.md, parts and intervals in "
        "docs/reports.md.",
    ).html()


def _broken(told: Account) -> list[str]:
    return [f"invariant broken: {told.name}: {text}" for text in told.result.record.violations]


# --- verdicts and figures --------------------------------------------------------------------


def verdict_section(verdicts: Sequence[Verdict], broken: Sequence[str]) -> Section | None:
    """What was expected, and whether it holds; nothing if nothing was expected or broken."""
    if not verdicts and not broken:
        return None
    lines: list[Html] = [element("span", text, class_="bad") for text in broken]
    for verdict in verdicts:
        kind = {True: "good", False: "bad", None: ""}[verdict.holds]
        before, _, word = str(verdict).rpartition(": ")
        lines.append(element("span", f"{before}: ", element("span", word, class_=kind)))
    return Section("Verdicts", [listing(lines)])


_HEADINGS: Final = (
    Column("run", number=False),
    Column("TTFT p50", "ms"),
    Column("TTFT p99", "ms"),
    Column("TPOT mean", "ms"),
    Column("ITL p50", "ms"),
    Column("ITL p99", "ms"),
    Column("goodput", "req/s"),
    Column("output", "tok/s"),
    Column("energy", "mJ/tok"),
    Column("host CPU", "s"),
    Column("completed", "requests"),
)


def figures_section(told: Sequence[Account]) -> Section:
    """The figures of every run, a system's conditions together, with intervals and ratios."""
    by_summary = {id(each.result.summary): each for each in told}
    rows: list[Row] = []
    point = None
    for name, runs in group_runs([each.result.summary for each in told]).items():
        for place, summary in enumerate(runs):
            cells = _figures(by_summary[id(summary)])
            heading = name if place == 0 else str(summary["condition"])
            done = f"{summary['completed']:,} / {summary['requests']:,}"
            begins = place == 0 and (len(runs) > 1 or summary["point"] != point)
            point = summary["point"]
            rows.append(Row([heading, *cells, done], "first" if begins else ""))
            if place and runs[0]["condition"] == "isolated":
                base = _figures(by_summary[id(runs[0])])
                rows.append(Row(["ratio", *map(_ratio, base, cells), ""], "derived"))
    summaries, records = [e.result.summary for e in told], [e.result.record for e in told]
    said = [*unfinished_lines(summaries), *extrapolated_lines(records), *_growing(told)]
    blocks = [table(_HEADINGS, rows), *([listing(said)] if said else [])]
    blocks += _between_steps(told)
    note = (
        "Below a figure stands its 95 % interval (blocks of consecutive requests, drawn again): "
        "how far other arrivals of the same kind would move it."
        if any(len(each.result.record.requests) >= 100 for each in told)
        else ""
    )
    return Section("Figures", blocks, note)


def _between_steps(told: Sequence[Account]) -> list[Html]:
    """A table of what lies between decode steps; none if no run decoded twice in a row."""
    rows = [
        (
            each.name,
            shares.control_ns / NS_PER_MS,
            shares.decode_gpu_ns / NS_PER_MS,
            100 * shares.control_share,
            100 * shares.idle_share,
            shares.delivery_ns / NS_PER_MS,
            int(each.result.record.requests.preemptions.sum()),
        )
        for each in told
        if (shares := step_shares(each.result.record)) is not None
    ]
    headings = (
        Column("a mean decode step", number=False),
        Column("control plane", "ms"),
        Column("GPU", "ms"),
        Column("control plane", "% of the step"),
        Column("GPU idle", "% while decoding"),
        Column("step to client", "ms"),
        Column("preemptions"),
    )
    return [table(headings, rows)] if rows else []


def _growing(told: Sequence[Account]) -> list[str]:
    """A line for each run whose queue grows until it ends."""
    names = []
    for each in told:
        times = per_request_ns(each.result.record)
        if grows(times["ttft"][times["done"] > 0].astype(np.float64)):
            names.append(each.name)
    if not names:
        return []
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return [
        f"TTFT grows over the run: {', '.join(names[:4])}{more}. There the figures depend on the "
        "run's length, and have no interval."
    ]


def _figures(told: Account) -> list[Interval]:
    summary, times = told.result.summary, per_request_ns(told.result.record)
    done = times["done"] > 0

    def of(values: Any, statistic: Callable[[Any], float], figure: float | None) -> Interval:
        low, high = block_interval(values[done] / NS_PER_MS, statistic)
        return Interval(figure, low, high)

    plain = ("goodput_req_s", "output_tok_s", "energy_mj_per_tok", "host_cpu_on_token_path_s")
    return [
        of(times["ttft"], p50, summary["ttft_ms"]["p50"]),
        of(times["ttft"], p99, summary["ttft_ms"]["p99"]),
        of(times["tpot"], mean, summary["tpot_ms"]["mean"]),
        *(Interval(summary["itl_ms"][each], None, None) for each in ("p50", "p99")),
        *(Interval(summary[name], None, None) for name in plain),
    ]


def _ratio(base: Interval, other: Interval) -> str:
    if not base.value or other.value is None:
        return "–"
    return f"{other.value / base.value:.2f}"


# --- distributions ---------------------------------------------------------------------------


def distribution_section(told: Sequence[Account], palette: Palette) -> Section:
    """How TTFT and the gaps between chunks are distributed, on logarithmic axes."""
    shown = _one_point(told)
    shown = shown[:LINES_MAX]
    note = "Solid: isolated. Dashed: interfered." if _both(shown) else ""
    if len(shown) < len(told):
        names = shown[0].result.planned.point or f"the first {len(shown)} runs"
        note = f"{note} Shown: {names} (of {len(told)} runs).".strip()
    ttft, itl = [], []
    for each in shown:
        times, (gaps, counts) = (
            per_request_ns(each.result.record),
            inter_token_gaps(each.result.record),
        )
        values = times["ttft"][times["done"] > 0] / NS_PER_MS
        look = (each.name, palette.of(each.result.record.system), not each.quiet)
        ttft.append(_distribution(*look, values, np.ones(len(values))))
        itl.append(_distribution(*look, gaps / NS_PER_MS, counts.astype(np.float64)))
    charts = [
        line_chart(title, lines, x_label=x, y_label=y, log_x=True, stairs=True, legend=True)
        for title, lines, x, y in (
            ("Time to first token", ttft, "TTFT, ms", "% of completed requests"),
            ("Inter-token latency", itl, "ITL, ms", "% of gaps between chunks"),
        )
    ]
    return Section("Distributions", [side_by_side(charts)], note)


def _distribution(label: str, colour: int, dashed: bool, values: Any, weights: Any) -> Series:
    x, y = cumulative(values, weights)
    keep = np.unique(np.linspace(0, len(x) - 1, CURVE_POINTS).astype(int)) if len(x) else x
    points = [Point(float(x[i]), 100 * float(y[i])) for i in keep.astype(int).tolist()]
    return Series(label, points, colour, dashed)


def _one_point(told: Sequence[Account]) -> Sequence[Account]:
    """The runs of one point of a sweep: the first at which anything missed, else the last."""
    points = list(dict.fromkeys(each.result.planned.point for each in told))
    missed = [each.result.planned.point for each in told if each.missed]
    chosen = missed[0] if missed else points[-1]
    return [each for each in told if each.result.planned.point == chosen]


def _both(told: Sequence[Account]) -> bool:
    return len({each.quiet for each in told}) > 1


# --- where the time goes ---------------------------------------------------------------------

OWN, WORK, PLANE, WAIT = 0, 1, 3, 5
_KINDS: Final[Mapping[str, int]] = {
    STEP: OWN,
    CONTROL: PLANE,
    **dict.fromkeys((FRONT_END, QUEUE, READER, OTHERS_PROMPTS, PREEMPTED), WAIT),
}
"""Colours: own GPU work is grey, the control plane amber, waiting orange, transport blue."""


def waterfall_section(told: Sequence[Account]) -> Section:
    """The parts of the mean TTFT and of the mean time between tokens, for every run."""
    points = list(dict.fromkeys(each.result.planned.point for each in told))
    opened = _one_point(told)[0].result.planned.point
    blocks: list[Html] = []
    for point in points:
        here = [each for each in told if each.result.planned.point == point]
        made = [
            element("h3", "To the first token: mean TTFT"),
            side_by_side(_waterfalls(here, [each.path.ttft_ms() for each in here])),
            element("h3", "From token to token: mean time between tokens"),
            side_by_side(
                _waterfalls(here, [each.path.inter_token_ms() for each in here], chunks=True)
            ),
        ]
        if len(points) == 1:
            blocks += made
        else:
            blocks.append(details(point, *made, opened=point == opened))
    note = (
        "Each part begins where the one before it ended, and together they are the measured mean. "
        "Grey is the GPU's work on the request's own tokens, blue transport and the front end's "
        "work, amber the control plane between steps, orange waiting. "
    )
    note += (
        "A part of fixed cost is what it takes alone, by the constants below; whatever more was "
        "measured is waiting."
        if told[0].path.with_constants
        else "The record of a real machine is divided by its own times alone."
    )
    return Section("Where a token's time goes", blocks, note)


def _waterfalls(
    told: Sequence[Account], parts: Sequence[Mapping[str, float]], *, chunks: bool = False
) -> list[Html]:
    totals = [sum(each.values()) for each in parts]
    longest = max(totals)
    shared = longest if longest <= SCALE_RATIO_MAX * min(totals) else None
    return [
        waterfall(
            each.name,
            [
                Stage(label_of(name, each.result.planned.setup), ms, _KINDS.get(name, WORK))
                for name, ms in mine.items()
                if ms
            ],
            unit="ms",
            total_label="mean time a token" if chunks else "mean TTFT",
            scale=shared or None,
            caption=_chunks(each, sum(mine.values())) if chunks else "",
        )
        for each, mine in zip(told, parts, strict=True)
    ]


def _chunks(told: Account, mean_ms: float) -> str:
    """What the reader must know where a chunk holds several tokens."""
    itl = told.result.summary["itl_ms"]["mean"]
    if itl is None or itl <= mean_ms * 1.005:
        return ""
    return (
        f"Late outputs left together, {itl / mean_ms:.2f} tokens a chunk: the mean ITL, between "
        f"chunks, is {itl:.3g} ms."
    )


# --- misses ----------------------------------------------------------------------------------


def misses_section(told: Sequence[Account]) -> Section:
    """Who missed the objectives and why: a line a run, then the worst of each run."""
    objectives = told[0].objectives
    if not objectives.any:
        return Section(
            "Requests that missed",
            [paragraph("The scenario states no objective ([slo]), so none can be missed.")],
        )
    rows = [
        (
            each.name,
            len(each.missed),
            len(each.result.record.requests),
            100 * len(each.missed) / max(len(each.result.record.requests), 1),
            "; ".join(f"{n} {objective}: {label}" for objective, label, n in tally(each.missed)),
        )
        for each in told
    ]
    headings = (
        Column("run", number=False),
        Column("missed", "requests"),
        Column("of", "requests"),
        Column("share", "%"),
        Column("binding objective: what took the time", number=False),
    )
    lists = [
        details(f"{each.name}: {_how_many(each)}", _miss_table(each), opened=len(told) <= LINES_MAX)
        for each in told
        if each.missed
    ]
    note = (
        f"Objectives: {_stated(objectives)}; a request must meet all. The binding objective is the "
        "one exceeded by the largest factor; named is the largest part of its time besides the "
        "request's own GPU work, or that work where it alone exceeds the objective."
    )
    return Section("Requests that missed", [table(headings, rows), *lists], note)


def _stated(objectives: Objectives) -> str:
    limits = (
        ("TTFT", objectives.ttft_ms),
        ("TPOT", objectives.tpot_ms),
        ("largest ITL", objectives.itl_ms),
        ("E2E", objectives.e2e_ms),
    )
    return ", ".join(f"{name} ≤ {ms:g} ms" for name, ms in limits if ms is not None)


def _how_many(told: Account) -> str:
    count = len(told.missed)
    return f"the worst {MISSES_MAX} of {count:,}" if count > MISSES_MAX else f"all {count}"


def _miss_table(told: Account) -> Html:
    headings = (
        Column("request"),
        Column("arrival", "s"),
        Column("prompt", "tok"),
        Column("output", "tok"),
        Column("objective", number=False),
        Column("was", "ms"),
        Column("allowed", "ms"),
        Column("factor"),
        Column("why", number=False),
    )
    requests = told.result.record.requests
    rows = [
        (
            miss.request,
            int(requests.arrival_ns[miss.request]) / 1e9,
            int(requests.input_tokens[miss.request]),
            int(requests.output_tokens[miss.request]),
            miss.objective,
            miss.value_ms,
            miss.limit_ms,
            miss.factor,
            reason(miss, told.path, told.result.planned.setup),
        )
        for miss in told.missed[:MISSES_MAX]
    ]
    return table(headings, rows)


# --- origins ---------------------------------------------------------------------------------


def origin_sections(scenario: Scenario, results: Sequence[Result]) -> list[Section]:
    """The scenario with every default, and each constant with its value, unit and source."""
    found = explanation(scenario, [result.planned for result in results])
    toml = details("every key, defaults included (TOML)", text=found["scenario_toml"])
    return [
        Section("Scenario", [toml, *(paragraph(note, note=True) for note in found["notes"])]),
        Section(
            "Constants",
            [provenance(found["constants"])],
            "Where each number comes from, by the catalogue's own words.",
        ),
    ]
