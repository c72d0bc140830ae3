"""``blink paper``: figures the paper states, the twin's beside them, and the ratio of the two.

``data/paper.toml`` holds what is stated, :data:`PREDICTIONS` how the twin answers the question.
Nothing is fitted per row; where a constant was fitted to a figure of the paper, its row says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from blink import backends
from blink.model import control_plane, hardware, llm, timing
from blink.model.errors import UnknownName, nearest
from blink.model.interference import QUIET, Interference, Neighbour, host_pressure
from blink.model.metrics import Objectives, summarise
from blink.model.policy import Limits
from blink.model.provenance import Entry, catalogue
from blink.model.record import Int64Array
from blink.model.setup import RunSetup
from blink.model.workload import Workload

Value = float | tuple[float, float]
Row = dict[str, Any]
BASELINES: Final = ("trtllm", "vllm-0.13", "sglang")
EVALUATION: Final = Interference(
    (Neighbour("pbzip2", 45), Neighbour("ninja", 45)), pinned_cores=6
)  # paper sec 6.1
BATCH_MAX: Final = 48
"""Not stated by the paper; the one value that fits its saturated decode rates of three models."""
SATURATION_REQ_S: Final = {"llama3-8b": 16.0, "phi-4": 12.0, "qwen3-32b": 8.0, "qwen3-30b-a3b": 8.0}
LOAD_SHARES: Final = (0.25, 0.5, 0.75, 0.95)
"""Of Blink's saturated rate: the range over which Tables 6 and 7 average. Loads last a minute."""
LOAD_S: Final = 60


@dataclass(frozen=True, slots=True)
class Load:
    """What clients ask: Poisson at ``rate``, or all at once; ShareGPT-like or constant lengths."""

    requests: int
    rate: float | None
    input_tokens: int = 1019
    output_tokens: int = 293
    constant: bool = False

    def workload(self) -> Workload:
        """Draw it: log-normal lengths, sigma 1.0 and 0.8, as in the measured H200 runs."""
        rng = np.random.default_rng(2604)
        gaps = rng.exponential(1e9 / self.rate if self.rate else 0.0, self.requests)
        return Workload(
            np.cumsum(gaps).astype(np.int64),
            self._lengths(rng, self.input_tokens, 1.0, (16, 4096)),
            self._lengths(rng, self.output_tokens, 0.8, (8, 1500)),
        )

    def _lengths(
        self, rng: np.random.Generator, mean: int, sigma: float, limits: tuple[int, int]
    ) -> Int64Array:
        if self.constant:
            return np.full(self.requests, mean, dtype=np.int64)
        drawn = rng.lognormal(math.log(mean) - sigma**2 / 2, sigma, self.requests)
        return np.clip(drawn, *limits).astype(np.int64)


MOTIVATION: Final = Load(420, 7.0, output_tokens=463)  # paper sec 2.2
SYNTHETIC: Final = Load(128, 7.0, 1024, 512, constant=True)  # paper sec 3.2
PINNED: Final = Load(720, 12.0, output_tokens=463)  # paper sec 3.2: 12 req/s for 60 s


def compare_paper(only: str | None = None) -> list[Row]:
    """Every figure whose id begins with ``only`` (None: all): stated, predicted, ratio.

    ``ratio`` is predicted over stated, end by end for a range. Raises UnknownName for an ``only``
    that no id begins with.
    """
    stated = catalogue("paper.toml")
    chosen = [key for key in stated if key.startswith(only or "")]
    if not chosen:
        name = str(only)
        groups = {each.partition(".")[0] for each in stated}
        raise UnknownName("figure of the paper", name, stated if nearest(name, stated) else groups)
    return [_row(stated[key], PREDICTIONS[key]()) for key in chosen]


def print_paper(rows: Sequence[Row], console: Console | None = None) -> None:
    """Print one line a figure."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("", "stated", "predicted", "ratio", "unit"):
        table.add_column(heading, justify="right" if heading in ("stated", "ratio") else "left")
    for row in rows:
        shown = [_shown(row[key]) for key in ("stated", "predicted", "ratio")]
        table.add_row(f"{row['what']} [dim]{row['id']}[/dim]", *shown, row["unit"])
    console = console or Console()
    console.print(table)
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["suspected"]:
            reasons.setdefault(row["suspected"], []).append(row["id"])
    for reason, ids in reasons.items():
        console.print(f"{', '.join(ids)}: far off. Suspected: {reason}.")


def _row(entry: Entry, predicted: Value) -> Row:
    stated = entry.labels["stated"]
    low, high = stated if isinstance(stated, list) else (stated, stated)
    ends = predicted if isinstance(predicted, tuple) else (predicted, predicted)
    ratios = [None if not of else end / of for end, of in zip(ends, (low, high), strict=True)]
    scalar = not isinstance(stated, list) and not isinstance(predicted, tuple)
    return {
        "id": entry.name,
        "what": entry.labels["what"],
        "unit": entry.labels["unit"],
        "source": entry.labels["source"],
        "bound": entry.labels.get("bound"),
        "suspected": entry.labels.get("suspected"),
        "stated": stated,
        "predicted": list(predicted) if isinstance(predicted, tuple) else predicted,
        "ratio": ratios[0] if scalar else ratios,
    }


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(_shown(each) for each in value)
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


# --- running ---------------------------------------------------------------------------------


@cache
def _run(
    system: str,
    model: str,
    load: Load,
    interference: Interference = QUIET,
    batch_max: int = BATCH_MAX,
    hyper_threads: bool = True,
) -> Mapping[str, Any]:
    """One run on the paper's server, summarised; the motivation section had no hyper-threads."""
    sku, gpu, host = llm.lookup(model), hardware.gpu("H100 96GB"), hardware.host("paper")
    plane = control_plane.profile(system)
    setup = RunSetup(
        label=system,
        system=system,
        condition="isolated" if interference is QUIET else "interfered",
        seed=1,
        workload=load.workload(),
        llm=sku,
        gpu=gpu,
        host=host if hyper_threads else replace(host, threads=host.physical_cores),
        dpu=hardware.dpu("bluefield-3"),
        link=hardware.link("rdma-200g"),
        plane=plane,
        interference=interference,
        limits=Limits(batch_max, min(8, batch_max), plane.prefill_tokens_max),
        kv_blocks_total=timing.kv_blocks_total(gpu, sku),
        graph_cache=plane.scheduling == "inline_prefill",
    )
    record = backends.require("sim").run(setup, commit="", progress=lambda ended: None)
    return summarise(record, Objectives())


def _vllm(load: Load, interference: Interference = QUIET) -> Mapping[str, Any]:
    return _run("vllm-0.13", "llama3-8b", load, interference, 256, False)


def _pbzip2(threads: int, ways: int | None = None, pinned: int | None = None) -> Interference:
    return Interference((Neighbour("pbzip2", threads),), pinned_cores=pinned, llc_ways=ways)


def _saturated(system: str, model: str, interference: Interference = QUIET) -> Mapping[str, Any]:
    return _run(system, model, Load(400, SATURATION_REQ_S[model]), interference)


def _figure(summary: Mapping[str, Any], metric: str) -> float:
    name, _, part = metric.partition(".")
    return float(summary[name][part] if part else summary[name])


def _mean_over_loads(
    system: str, model: str, metric: str, interference: Interference = QUIET
) -> float:
    """Geometric mean over the loads below Blink's saturation, as the paper's tables give."""
    saturated = _figure(_saturated("blink", model), "throughput_req_s")
    rates = [round(share * saturated, 3) for share in LOAD_SHARES]
    loads = [Load(round(rate * LOAD_S), rate) for rate in rates]
    runs = [_run(system, model, load, interference) for load in loads]
    return math.exp(sum(math.log(_figure(run, metric)) for run in runs) / len(runs))


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


# --- the figures -----------------------------------------------------------------------------


def _over_blink(model: str, metric: str) -> tuple[float, float]:
    blink = _mean_over_loads("blink", model, metric)
    return _ends([_mean_over_loads(each, model, metric) / blink for each in BASELINES])


def _inflation(system: str, model: str, metric: str) -> float:
    noisy = _mean_over_loads(system, model, metric, EVALUATION)
    return noisy / _mean_over_loads(system, model, metric)


def _kept(system: str, model: str, metric: str = "throughput_req_s") -> float:
    noisy = _figure(_saturated(system, model, EVALUATION), metric)
    return noisy / _figure(_saturated(system, model), metric)


def _inflation_of_baselines(model: str, metric: str) -> tuple[float, float]:
    return _ends([_inflation(each, model, metric) for each in BASELINES])


def _kept_by_baselines(model: str) -> tuple[float, float]:
    return _ends([100 * _kept(each, model) for each in BASELINES])


def _plateau_gain(model: str) -> float:
    return 100 * (_decode("blink", model) / _decode("trtllm", model) - 1)


def _decode(system: str, model: str) -> float:
    return _figure(_saturated(system, model), "output_tok_s")


def _pinned_loss(metric: str) -> float:
    quiet, noisy = _vllm(PINNED), _vllm(PINNED, _pbzip2(42, pinned=6))
    return _figure(noisy, metric) / _figure(quiet, metric) - 1


def _makespan_ratios() -> tuple[float, float]:
    shapes = [(128, 32), (512, 64), (512, 256), (1024, 512)]
    loads = [Load(64, None, *shape, constant=True) for shape in shapes]
    ratios = []
    for load in loads:
        spans = [
            _figure(_run(each, "qwen3-32b", load, QUIET, 16), "makespan_s")
            for each in ("host_resident", "blink")
        ]
        ratios.append(spans[0] / spans[1])
    return _ends(ratios)


def _miss_rate(interference: Interference) -> float:
    plane, host = control_plane.profile("vllm-0.13"), hardware.host("paper")
    return 100 * host_pressure(host, plane, interference).llc_miss_rate


def _energy_rises(systems: Sequence[str]) -> list[float]:
    metric = "energy_mj_per_tok"
    return [
        100 * (_kept(each, model, metric) - 1) for each in systems for model in SATURATION_REQ_S
    ]


def _powers_w() -> tuple[float, float]:
    runs = [
        _saturated(system, model, noise)
        for system in ("blink", *BASELINES)
        for model in SATURATION_REQ_S
        for noise in (QUIET, EVALUATION)
    ]
    return _ends([run["energy_mj_per_tok"] * run["output_tok_s"] / 1e6 for run in runs])


def _evaluation() -> dict[str, Callable[[], Value]]:
    """Tables 6, 7 and B.1, and the saturated rates of Table B.2 and Figure 7."""
    found: dict[str, Callable[[], Value]] = {}
    for key, model in (
        ("llama3_8b", "llama3-8b"),
        ("phi4_15b", "phi-4"),
        ("qwen3_30b", "qwen3-30b-a3b"),
        ("qwen3_32b", "qwen3-32b"),
    ):
        found[f"fig7.plateau.{key}"] = partial(_plateau_gain, model)
        found[f"tb2.{key}.decode.blink"] = partial(_decode, "blink", model)
        found[f"t7.{key}.tput_ret"] = partial(_kept_by_baselines, model)
        for name in ("ttft", "tpot"):
            p99 = f"{name}_ms.p99"
            found[f"t6.{key}.{name}"] = partial(_over_blink, model, p99)
            found[f"t7.{key}.{name}"] = partial(_inflation_of_baselines, model, p99)
            found[f"t7.{key}.trt.{name}"] = partial(_inflation, "trtllm", model, p99)
    return found


PREDICTIONS: Final[Mapping[str, Callable[[], Value]]] = {
    **_evaluation(),
    "t1.tput_iso": lambda: _figure(_vllm(MOTIVATION), "total_tok_s"),
    "t1.tput_int": lambda: _figure(_vllm(MOTIVATION, _pbzip2(48)), "total_tok_s"),
    "t1.tput_drop": lambda: (
        _figure(_vllm(MOTIVATION), "total_tok_s")
        / _figure(_vllm(MOTIVATION, _pbzip2(48)), "total_tok_s")
    ),
    "t1.ttft_p99_iso": lambda: _figure(_vllm(MOTIVATION), "ttft_ms.p99"),
    "t1.ttft_p99_int": lambda: _figure(_vllm(MOTIVATION, _pbzip2(48)), "ttft_ms.p99"),
    "t1.p99_itl_iso": lambda: _figure(_vllm(MOTIVATION), "itl_ms.p99"),
    "t1.p99_tpot_iso": lambda: _figure(_vllm(MOTIVATION), "tpot_ms.p99"),
    "t1.llc_miss_int": lambda: _miss_rate(_pbzip2(48)),
    "t2.tput_iso": lambda: _figure(_vllm(SYNTHETIC), "total_tok_s"),
    "t2.tpot_mean_iso": lambda: _figure(_vllm(SYNTHETIC), "tpot_ms.mean"),
    "t3.tail_inflation": lambda: 100 * max(_pinned_loss(f"{m}_ms.p999") for m in ("itl", "tpot")),
    "t3.decode_tput": lambda: -100 * _pinned_loss("output_tok_s"),
    "t4.llc_miss_7": lambda: _miss_rate(_pbzip2(24, 7, 6)),
    "t4.llc_miss_12": lambda: _miss_rate(_pbzip2(24, 12, 6)),
    "derived.t4_llc_1way": lambda: _miss_rate(_pbzip2(24, 1, 6)),
    "t4.itl_p99": lambda: _ends(
        [_figure(_vllm(SYNTHETIC, _pbzip2(24, ways, 6)), "itl_ms.p99") for ways in (1, 4, 7, 12)]
    ),
    "fig3.makespan": _makespan_ratios,
    "derived.q32_decode": lambda: _decode("blink", "qwen3-32b"),
    "derived.trt_llama_decode": lambda: _decode("trtllm", "llama3-8b"),
    "derived.trt_moe_decode": lambda: _decode("trtllm", "qwen3-30b-a3b"),
    "derived.trt_moe_retention": lambda: _kept("trtllm", "qwen3-30b-a3b"),
    "t7.blink_retention": lambda: _ends([100 * _kept("blink", each) for each in SATURATION_REQ_S]),
    "t7.blink_change": lambda: _ends(
        [
            100 * abs(_inflation("blink", model, f"{name}_ms.p99") - 1)
            for model in SATURATION_REQ_S
            for name in ("ttft", "tpot")
        ]
    ),
    "tb1.qwen3_30b.p50_ttft.blink": lambda: _mean_over_loads(
        "blink", "qwen3-30b-a3b", "ttft_ms.p50"
    ),
    "tb1.qwen3_30b.p50_ttft.trt": lambda: _mean_over_loads(
        "trtllm", "qwen3-30b-a3b", "ttft_ms.p50"
    ),
    "tb1.phi4_15b.mean_ttft.blink": lambda: _mean_over_loads("blink", "phi-4", "ttft_ms.mean"),
    "tb1.phi4_15b.mean_ttft.trt": lambda: _mean_over_loads("trtllm", "phi-4", "ttft_ms.mean"),
    "tb1.phi4_15b.mean_ttft.sglang": lambda: _mean_over_loads("sglang", "phi-4", "ttft_ms.mean"),
    "fig8.blink_iso": lambda: _ends(
        [_figure(_saturated("blink", each), "energy_mj_per_tok") for each in SATURATION_REQ_S]
    ),
    "fig8.blink_rise": lambda: max(_energy_rises(["blink"])),
    "fig8.base_rise": lambda: _ends(_energy_rises(BASELINES)),
    "fig8.wall": _powers_w,
    "launch.ff": lambda: hardware.gpu("H100 96GB").device_launch_ns / 1e3,
    "launch.tail": lambda: hardware.gpu("H100 96GB").tail_launch_ns / 1e3,
    "launch.host": lambda: hardware.gpu("H100 96GB").host_launch_ns / 1e3,
    "sched.scan": lambda: hardware.gpu("H100 96GB").scan_ns / 1e3,
}
