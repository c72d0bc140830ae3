"""The paper's figures, as the twin draws them: the same bytes for the same runs.

Colours are those of every picture of this project. Solid lines and full bars are alone, dashed
lines and hatched bars beside neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blink.model.interference import QUIET, Interference
from blink.plan.paper.evaluation import CONDITIONS, MODELS, NOISY, RATES, SYSTEMS, Run, offered
from blink.plan.paper.predictions import SHAPES, makespans
from blink.plan.paper.results import Results
from blink.plan.picture import COLOURS, FAINT, INK, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw = Callable[["Figure", Results], None]
FOLDER: Final = "img/paper"
DPI: Final = 110
DENSE: Final = "qwen3-32b"
MOE: Final = "qwen3-30b-a3b"
NAMES: Final = {
    "blink": "Blink",
    "trtllm": "TensorRT-LLM",
    "vllm-0.13": "vLLM 0.13",
    "sglang": "SGLang",
}
TITLES: Final = {
    "llama3-8b": "Llama-3 8B",
    "phi-4": "Phi-4 15B",
    "qwen3-32b": "Qwen3 32B",
    "qwen3-30b-a3b": "Qwen3 30B-A3B",
}
SHORT: Final = {"blink": "Blink", "trtllm": "TRT-LLM", "vllm-0.13": "vLLM", "sglang": "SGLang"}
LABEL_GAP: Final = 0.085
"""Least distance of two labels, of a panel's height."""
RATE_TICKS: Final = (1, 2, 4, 8, 16, 32)


def draw_figures(folder: Path, results: Results, names: Sequence[str] | None = None) -> None:
    """Draw each of FIGURES (or those of ``names``) as a PNG in ``folder``."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {**dict(mpl.rcParamsDefault), **STYLE}
    settings.pop("backend", None)
    with mpl.rc_context(settings):
        for name in FIGURES if names is None else names:
            size, draw = FIGURES[name]
            figure = Figure(figsize=size, dpi=DPI)
            draw(figure, results)
            figure.savefig(folder / name, format="png", metadata={"Software": None})


# --- curves over the load --------------------------------------------------------------------


def _curves(
    figure: Figure,
    results: Results,
    *,
    rows: Sequence[tuple[str, str]],
    models: Sequence[str] = MODELS,
    conditions: Sequence[Interference] = CONDITIONS,
    log: bool = True,
) -> None:
    """One panel a model and row; a row is (metric, name with unit).

    ``log``: both axes are logarithmic; otherwise both begin at 0.
    """
    grid = figure.subplots(len(rows), len(models), squeeze=False, sharex=True)
    for axes_row, (metric, label) in zip(grid, rows, strict=True):
        for axes, model in zip(axes_row, models, strict=True):
            for system in SYSTEMS:
                for noise in conditions:
                    values = results.curve(system, model, metric, noise)
                    style = _line(noise is QUIET, blink=system == "blink")
                    axes.plot(RATES, values, color=_colour(system), **style)
            _mark_saturation(axes, results.serviceable("blink", model))
            _rate_axis(axes, log=log)
        axes_row[0].set_ylabel(label)
        for axes, model in zip(axes_row, models, strict=True):
            ends = {
                each: results.curve(each, model, metric, conditions[-1])[-1] for each in SYSTEMS
            }
            _label_ends(axes, ends)
    for axes, model in zip(grid[0], models, strict=True):
        axes.set_title(TITLES[model])
    for axes in grid[-1]:
        axes.set_xlabel("offered load (req/s)")
    _legend(figure, conditions, bottom=0.62 / figure.get_figheight())


def _label_ends(axes: Axes, ends: Mapping[str, float]) -> None:
    """Name each system at the right end of its last curve, moved apart where they would touch."""
    places = {}
    for system, value in ends.items():
        _, y = axes.transAxes.inverted().transform(axes.transData.transform((RATES[-1], value)))
        places[system] = float(y)
    order = sorted(places, key=places.__getitem__)
    for lower, upper in pairwise(order):
        places[upper] = max(places[upper], places[lower] + LABEL_GAP)
    places[order[-1]] = min(places[order[-1]], 1.0)
    for upper, lower in pairwise(reversed(order)):
        places[lower] = min(places[lower], places[upper] - LABEL_GAP)
    for system in order:
        axes.text(
            1.01, places[system], SHORT[system], transform=axes.transAxes,
            color=_colour(system), size=7.5, va="center",
        )  # fmt: skip


def _line(quiet: bool, *, blink: bool) -> dict[str, Any]:
    """Broad and pale alone, so that a dashed line on top of its twin is seen; Blink on top."""
    above = 1.0 if blink else 0.0
    if quiet:
        return {"linestyle": "-", "linewidth": 2.6, "alpha": 0.6, "zorder": 2.0 + above}
    return {"linestyle": (0, (3.0, 1.5)), "linewidth": 1.5, "zorder": 2.1 + above}


def _mark_saturation(axes: Axes, rate: float) -> None:
    """A thin vertical line where Blink's serviceable load ends."""
    axes.axvline(rate, color=INK, linewidth=0.7, linestyle=":", zorder=1.0)


def _rate_axis(axes: Axes, *, log: bool) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    if log:
        axes.set_xscale("log")
        axes.set_xticks(RATE_TICKS, [str(each) for each in RATE_TICKS])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.minorticks_off()
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.yaxis.set_minor_formatter(FuncFormatter(partial(_minor, axes)))
        axes.tick_params(axis="y", which="minor", labelsize=7.5)
    else:
        axes.set_xticks(range(0, 33, 8))
        axes.set_xlim(0, RATES[-1])
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.grid(axis="both", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def _minor(axes: Axes, value: float, _: int) -> str:
    """Name a few ticks between powers of ten where an axis has few of those."""
    low, high = axes.get_ylim()
    named = "2357" if high / low < 10 else "25" if high / low < 50 else ""
    return f"{value:,g}" if f"{value:e}"[0] in named else ""


def _legend(figure: Figure, conditions: Sequence[Interference], *, bottom: float) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=_colour(s), linewidth=4, label=NAMES[s]) for s in SYSTEMS]
    if len(conditions) > 1:
        for noise, label in zip(CONDITIONS, ("alone", "beside neighbours"), strict=True):
            style = _line(noise is QUIET, blink=False)
            handles.append(Line2D([], [], color=INK, label=label, **style))
    style = {"color": INK, "linewidth": 0.7, "linestyle": ":"}
    handles.append(Line2D([], [], label="Blink serves 95 % up to here", **style))
    _place_legend(figure, handles, bottom)


def _place_legend(figure: Figure, handles: Sequence[Any], bottom: float) -> None:
    narrow = figure.get_figwidth() < 9
    columns = (len(handles) + 1) // 2 if narrow else len(handles)
    figure.legend(
        handles=handles, loc="lower center", ncols=columns, frameon=False, fontsize=9,
        bbox_to_anchor=(0.5, 0.0),
    )  # fmt: skip
    figure.tight_layout(rect=(0, bottom * (0.95 if narrow else 0.6), 1, 1), w_pad=1.2, h_pad=1.0)


def _colour(system: str) -> str:
    return COLOURS[system.removesuffix("-0.13")]


# --- bars ------------------------------------------------------------------------------------


def _bars(
    axes: Axes,
    values: Mapping[str, Sequence[float]],
    groups: Sequence[str],
    *,
    hatched: bool = False,
    form: str = "{:.0f}",
) -> None:
    """Groups of upright bars, one a system, each with its figure above it."""
    top = max(max(each) for each in values.values())
    for index, (system, heights) in enumerate(values.items()):
        places = [at + (index - (len(values) - 1) / 2) * 0.23 for at in range(len(groups))]
        axes.bar(places, heights, 0.21, **_bar(_colour(system), hatched=hatched))
        for x, height in zip(places, heights, strict=True):
            axes.text(x, height + top * 0.012, form.format(height), ha="center", size=7)
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, top * 1.1)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def _bar(colour: str, *, hatched: bool) -> dict[str, Any]:
    if hatched:
        return {"facecolor": "white", "edgecolor": colour, "hatch": "/////", "linewidth": 0.8}
    return {"color": colour, "edgecolor": colour, "linewidth": 0.8}


def _two_panels(
    figure: Figure,
    label: str,
    value: Callable[[str, str, Interference], float],
    form: str,
) -> None:
    """Bars over the models, alone and beside neighbours, to one scale."""
    from matplotlib.patches import Patch

    panels = figure.subplots(1, 2, sharey=True)
    for axes, noise, title in zip(panels, CONDITIONS, ("Alone", "Beside neighbours"), strict=True):
        values = {each: [value(each, model, noise) for model in MODELS] for each in SYSTEMS}
        hatched = noise is NOISY
        _bars(axes, values, [TITLES[each] for each in MODELS], hatched=hatched, form=form)
        axes.set_title(title)
    panels[0].set_ylabel(label)
    highest = max(axes.get_ylim()[1] for axes in panels)
    panels[0].set_ylim(0, highest)
    handles = [Patch(color=_colour(each), label=NAMES[each]) for each in SYSTEMS]
    _place_legend(figure, handles, 0.5 / figure.get_figheight())


def _figure1(figure: Figure, results: Results) -> None:
    """Throughput at 4 req/s, with the share that is kept."""
    axes = figure.subplots()
    for place, system in enumerate(SYSTEMS):
        heights = [
            results.of(Run(system, MOE, offered(4.0), noise), "throughput_req_s")
            for noise in CONDITIONS
        ]
        for side, (height, hatched) in enumerate(zip(heights, (False, True), strict=True)):
            x = place + (side - 0.5) * 0.36
            axes.bar(x, height, 0.33, **_bar(_colour(system), hatched=hatched))
            axes.text(x, height + 0.06, f"{height:.2f}", ha="center", size=8)
            if hatched:
                kept = f"{height / heights[0]:.0%}"
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
                axes.text(x, height / 2, kept, ha="center", va="center", size=8, bbox=box)
    axes.set_xticks(range(len(SYSTEMS)), [NAMES[each] for each in SYSTEMS])
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, 4.4)
    axes.axhline(4.0, color=INK, linewidth=0.7, linestyle=":")
    axes.text(3.62, 4.05, "offered", ha="right", size=8)
    axes.set_xlim(-0.5, 3.62)
    axes.set_ylabel("throughput (req/s)")
    axes.set_title("Qwen3 30B-A3B at 4 req/s: alone, and beside neighbours (hatched; % kept)")
    figure.tight_layout()


def _figure3(figure: Figure, results: Results) -> None:
    """Makespans, those of the scheduler on the GPU being 1."""
    axes = figure.subplots()
    for place, ratio in enumerate(makespans(results)):
        for x, height, colour in (
            (place - 0.18, 1.0, _colour("blink")),
            (place + 0.18, ratio, COLOURS["host_resident"]),
        ):
            axes.bar(x, height, 0.33, color=colour)
            axes.text(x, height + 0.015, f"{height:.2f}", ha="center", size=8)
    axes.set_xticks(range(len(SHAPES)), [f"{n}×{i}→{o}" for n, i, o in SHAPES])
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, 1.42)
    axes.set_ylabel("makespan (GPU = 1)")
    axes.set_xlabel("requests × prompt → answer (tokens)")
    axes.set_title("Qwen3 32B, batch 16: who schedules")
    axes.text(-0.4, 1.3, "scheduler on the GPU", color=_colour("blink"), weight="bold")
    host = COLOURS["host_resident"]
    axes.text(1.1, 1.3, "scheduler on the host", color=host, weight="bold")
    figure.tight_layout()


def _figure5(figure: Figure, results: Results) -> None:
    """P99.9 of the dense 32B model, alone."""
    panels = figure.subplots(1, 2)
    for axes, name in zip(panels, ("ttft", "tpot"), strict=True):
        for system in SYSTEMS:
            values = results.curve(system, DENSE, f"{name}_ms.p999")
            axes.plot(RATES, values, color=_colour(system), linewidth=1.8, marker=".")
        _mark_saturation(axes, results.serviceable("blink", DENSE))
        _rate_axis(axes, log=True)
        ends = {each: results.curve(each, DENSE, f"{name}_ms.p999")[-1] for each in SYSTEMS}
        _label_ends(axes, ends)
        axes.set_ylabel(f"p99.9 {name.upper()} (ms)")
        axes.set_xlabel("offered load (req/s)")
    panels[0].set_title("Qwen3 32B, alone")
    _legend(figure, (QUIET,), bottom=0.62 / figure.get_figheight())


def _latency(which: str, name: str) -> Draw:
    rows = [
        (f"ttft_ms.{which}", f"{name} TTFT (ms)"),
        (f"tpot_ms.{which}", f"{name} TPOT (ms)"),
    ]
    return partial(_curves, rows=rows)


def _figure8(figure: Figure, results: Results) -> None:
    label = "wall energy (mJ/token)"
    _two_panels(figure, label, results.energy, "{:.0f}")


def _figure_c1(figure: Figure, results: Results) -> None:
    _two_panels(figure, "serviceable load (req/s)", results.serviceable, "{:.1f}")


_WIDE, _LOW, _SMALL = (12.0, 5.6), (12.0, 3.4), (7.0, 3.4)
FIGURES: Final[Mapping[str, tuple[tuple[float, float], Draw]]] = {
    "figure1.png": (_SMALL, _figure1),
    "figure3.png": (_SMALL, _figure3),
    "figure5.png": ((8.5, 3.6), _figure5),
    "figure6.png": (_WIDE, _latency("p99", "p99")),
    "figure7.png": (
        _LOW,
        partial(_curves, rows=[("throughput_req_s", "throughput (req/s)")], log=False),
    ),
    "figure8.png": ((12.0, 3.8), _figure8),
    "figureC1.png": ((12.0, 3.8), _figure_c1),
    "figureD1.png": (_WIDE, _latency("p999", "p99.9")),
    "figureD2.png": (_WIDE, _latency("p95", "p95")),
    "figureD3.png": (_WIDE, _latency("p50", "p50")),
    "figureD4.png": (_WIDE, _latency("mean", "mean")),
    "figureE1.png": (
        _WIDE,
        partial(
            _curves,
            rows=[
                ("prefill_tok_s", "prefill (tokens/s)"),
                ("decode_tok_s", "decode (tokens/s)"),
            ],
            log=False,
        ),
    ),
}
