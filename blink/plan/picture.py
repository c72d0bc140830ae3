"""The comparison as one picture: how TTFT and ITL are distributed, and what came out per second."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from blink.model.metrics import NS_PER_MS, inter_token_gaps, per_request_ns
from blink.model.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FloatArray = npt.NDArray[np.float64]

ISOLATED: Final = "isolated"
POINTS_MAX: Final = 800
"""Points of a curve: more than one a pixel cannot be seen."""

RUNS_MAX: Final = 12
"""Runs in a picture; beyond that curves cannot be told apart. The rest is left out, and said."""

# Okabe and Ito's palette, made to be told apart by colour-blind readers; yellow is too pale for a
# line. Known systems keep their colour from picture to picture, others take what is left.
COLOURS: Final = {
    "blink": "#0072B2",
    "host_resident": "#D55E00",
    "trtllm": "#009E73",
    "vllm": "#E69F00",
    "sglang": "#CC79A7",
}
_SPARE_COLOURS: Final = ("#56B4E9", "#000000", "#999999")
INK: Final = "#333333"
FAINT: Final = "#D9D9D9"
STYLE: Final[dict[str, Any]] = {
    "font.size": 9.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 0.8,
}


def draw_picture(
    path: Path,
    records: Sequence[RunRecord],
    summaries: Sequence[Mapping[str, Any]],
    scenario: Mapping[str, Any],
) -> None:
    """Draw the runs into a PNG at ``path``: the same bytes for the same records.

    ``summaries[i]`` belongs to ``records[i]``; title and question are the scenario's. Nothing of
    the user's matplotlib settings, and no display, is used.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    runs = _runs(records, summaries)
    settings: dict[Any, Any] = {**dict(mpl.rcParamsDefault), **STYLE}
    settings.pop("backend", None)  # a PNG is drawn by Agg whatever it says, and it is not restored
    with mpl.rc_context(settings):
        figure = Figure(figsize=(12, 5.2), dpi=150)
        top = _heading(figure, scenario, left_out=len(records) - len(runs))
        grid = figure.add_gridspec(
            2, 3, left=0.055, right=0.99, bottom=0.165, top=top, wspace=0.29, hspace=0.4,
            width_ratios=(1, 1, 0.95),
        )  # fmt: skip
        left, middle = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[:, 1])
        _draw_distribution(left, "Time to first token", "TTFT (ms)", runs, _ttft)
        _draw_distribution(middle, "Inter-token latency", "ITL (ms)", runs, _itl)
        left.set_ylabel("share of requests")
        middle.set_ylabel("share of gaps")
        _draw_rates(figure, grid, runs)
        _legend(figure, runs)
        figure.savefig(path, format="png", metadata={"Software": None})


@dataclass(frozen=True, slots=True)
class _Run:
    record: RunRecord
    summary: Mapping[str, Any]
    colour: str

    @property
    def quiet(self) -> bool:
        return self.record.condition == ISOLATED


def _runs(records: Sequence[RunRecord], summaries: Sequence[Mapping[str, Any]]) -> list[_Run]:
    """Pair records with summaries and give each system its colour."""
    spare = list(_SPARE_COLOURS)
    colours = dict(COLOURS)
    runs = []
    for record, summary in list(zip(records, summaries, strict=True))[:RUNS_MAX]:
        if record.system not in colours:
            colours[record.system] = spare.pop(0) if spare else INK
        runs.append(_Run(record, summary, colours[record.system]))
    return runs


def _heading(figure: Figure, scenario: Mapping[str, Any], *, left_out: int) -> float:
    """Write title and question; return where the panels may begin, as a part of the height."""
    title = str(scenario.get("title", ""))
    question = str(scenario.get("question", ""))
    if left_out:
        question += f" (The first {RUNS_MAX} runs; {left_out} more are left out.)"
    lines = textwrap.wrap(question, 150)[:2]
    figure.text(0.012, 0.97, title, size=13, weight="bold", va="top")
    figure.text(0.012, 0.905, "\n".join(lines), size=9.5, va="top", linespacing=1.3)
    return 0.775 if len(lines) > 1 else 0.81


def _ttft(record: RunRecord) -> tuple[FloatArray, FloatArray]:
    """TTFT in ms of completed requests, each of weight 1."""
    times = per_request_ns(record)
    values = times["ttft"][times["done"] > 0] / NS_PER_MS
    return values, np.ones(len(values))


def _itl(record: RunRecord) -> tuple[FloatArray, FloatArray]:
    """Inter-token gaps in ms and how many streams saw each."""
    gaps, counts = inter_token_gaps(record)
    return gaps / NS_PER_MS, counts.astype(np.float64)


def _draw_distribution(
    axes: Axes,
    title: str,
    unit: str,
    runs: Sequence[_Run],
    measure: Callable[[RunRecord], tuple[FloatArray, FloatArray]],
) -> None:
    """Draw the cumulative distribution of each run's measure on a logarithmic axis."""
    for run in runs:
        values, weights = measure(run.record)
        x, y = cumulative(values, weights)
        axes.step(x, y, where="post", color=run.colour, **_line_style(run.quiet))
    axes.set_xscale("log")
    axes.set_ylim(0, 1.005)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 0.99], ["0", "25%", "50%", "75%", "99%"])
    axes.set_title(title)
    axes.set_xlabel(unit)
    axes.grid(axis="both", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    _plain_log_ticks(axes)


def _line_style(quiet: bool) -> dict[str, Any]:
    """Solid lines are broad and pale, so that a dashed one on top of its twin is seen."""
    if quiet:
        return {"linestyle": "-", "linewidth": 2.8, "alpha": 0.55, "zorder": 2.0}
    return {"linestyle": (0, (3.0, 1.5)), "linewidth": 1.5, "zorder": 2.1}


def _plain_log_ticks(axes: Axes) -> None:
    """Write 1, 2, 5, 10 ... instead of powers, few enough not to touch."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_xlim()
    decades = np.log10(high / low)
    subs = (1.0, 2.0, 5.0) if decades < 3 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=subs))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def cumulative(values: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return at most POINTS_MAX points (value, share of weight at or below it), ascending.

    Evenly spread over the shares, with the tail above 99 % kept in full down to its own thinning.
    """
    if not len(values):
        return np.empty(0), np.empty(0)
    order = np.argsort(values, kind="stable")
    x, y = values[order], np.cumsum(weights[order]) / weights.sum()
    if len(x) > POINTS_MAX:
        tail = POINTS_MAX // 4
        wanted = np.append(
            np.linspace(0, 0.99, POINTS_MAX - tail, endpoint=False), np.linspace(0.99, 1, tail)
        )
        keep = np.unique(np.minimum(np.searchsorted(y, wanted), len(x) - 1))
        x, y = x[keep], y[keep]
    return np.concatenate([x[:1], x]), np.concatenate([[0.0], y])


def _draw_rates(figure: Figure, grid: Any, runs: Sequence[_Run]) -> None:
    """Bars for throughput, and below it for goodput if the scenario states objectives."""
    goodput = any(run.summary["goodput_req_s"] is not None for run in runs)
    top = figure.add_subplot(grid[0, 2] if goodput else grid[:, 2])
    _draw_bars(top, "Throughput", "output tokens/s", "output_tok_s", runs)
    if goodput:
        bottom = figure.add_subplot(grid[1, 2])
        _draw_bars(bottom, "Goodput", "requests/s within objectives", "goodput_req_s", runs)


def _draw_bars(axes: Axes, title: str, unit: str, figure_name: str, runs: Sequence[_Run]) -> None:
    """One horizontal bar a run, a system's runs touching; hatched if interfered."""
    systems = list(dict.fromkeys(run.record.system for run in runs))
    largest = max((run.summary[figure_name] or 0.0 for run in runs), default=0.0)
    for place, system in enumerate(systems):
        mine = [run for run in runs if run.record.system == system]
        height = min(0.8 / len(mine), 0.4)
        for index, run in enumerate(mine):
            value = run.summary[figure_name]
            y = place + (index - (len(mine) - 1) / 2) * height
            axes.barh(y, value or 0.0, height * 0.92, **_bar_style(run))
            text = "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            axes.text((value or 0.0) + largest * 0.015, y, text, va="center_baseline", size=7.5)
    axes.set_yticks(range(len(systems)), systems)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, (largest or 1.0) * 1.13)
    axes.set_ylim(max(len(systems), 4) - 0.45, -0.55)
    axes.set_xticks([])  # each bar says its figure
    axes.spines["bottom"].set_visible(False)
    axes.set_title(title)
    axes.annotate(
        unit,
        (1, 1),
        xytext=(0, 6),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="right",
    )


def _bar_style(run: _Run) -> dict[str, Any]:
    if run.quiet:
        return {"color": run.colour, "edgecolor": run.colour, "linewidth": 0.8}
    return {"facecolor": "white", "edgecolor": run.colour, "hatch": "/////", "linewidth": 0.8}


def _legend(figure: Figure, runs: Sequence[_Run]) -> None:
    """Name the colours, then the two styles, in one line below the panels."""
    from matplotlib.lines import Line2D

    colours = {run.record.system: run.colour for run in runs}
    handles = [Line2D([], [], color=c, linewidth=4, label=name) for name, c in colours.items()]
    for condition in dict.fromkeys(run.record.condition for run in runs):
        quiet = condition == ISOLATED
        label = f"{condition} ({'solid' if quiet else 'dashed, hatched'})"
        handles.append(Line2D([], [], color=INK, label=label, **_line_style(quiet)))
    figure.legend(
        handles=handles, loc="lower center", ncols=len(handles), frameon=False, fontsize=9,
        bbox_to_anchor=(0.5, 0.005),
    )  # fmt: skip
