"""``blink fidelity``: predict measured runs of real servers, and say how far off the twin is.

Nothing here is fitted: a measured run becomes a :class:`RunSetup` with the catalogue's constants,
the twin runs the exact requests, and every figure is printed beside the measured one. What misses
its aim is marked, with the suspected mechanism where one is known.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from blink import backends
from blink.model import control_plane, hardware, timing
from blink.model.interference import host_pressure
from blink.model.metrics import Objectives, summarise
from blink.model.policy import Limits
from blink.model.provenance import catalogue
from blink.model.setup import RingSetup, RunSetup
from blink.plan.measured import MeasuredRun, read_measured

Row = dict[str, Any]
METRICS: Final = (
    *(f"{name}_ms.{part}" for name in ("ttft", "tpot", "itl") for part in ("mean", "p50", "p99")),
    "output_tok_s",
    "throughput_req_s",
)
COLUMNS: Final = {"predicted": ".4g", "measured": ".4g", "error": "+.1%"}
AIM, AIM_TTFT, AIM_NOISY = 0.05, 0.15, 0.25
"""Sizes of error to stay within: on a quiet host, of TTFT there, and next to neighbours."""
IN_PROCESS: Final = {  # requests and tokens that never leave the engine's process
    "api_request_ns": 0,
    "api_tokenize_ns_per_token": 0,
    "api_step_ns": 0,
    "api_token_ns": 0,
    "api_chunk_ns": 0,
    "output_hop_ns": 0,
}


def compare_files(
    files: Sequence[Path], *, model_config: Path | None = None, gpu: str | None = None
) -> list[Row]:
    """Predict every run of every file.

    A row holds ``run``, ``model``, ``gpu``, ``system``, ``condition``, ``requests``, ``file``,
    ``notes`` and ``metrics``: for each metric that was measured ``{"predicted", "measured",
    "error", "aim", "suspected"}``. The error is relative to the measured value (None where a value
    is missing or 0), the aim what its size should not exceed (None: a median, which has none).
    Raises BadInput before anything runs if a file cannot be used.
    """
    runs = [
        (path, run)
        for path in files
        for run in read_measured(path, model_config=model_config, gpu=gpu)
    ]
    return [_row(path, run) for path, run in runs]


def print_fidelity(rows: Sequence[Row], console: Console | None = None) -> None:
    """Print one table a run: predicted, measured, error."""
    console = console or Console()
    for row in rows:
        table = Table(box=box.SIMPLE_HEAD, title=f"{row['run']}, {row['condition']}")
        table.title_justify = "left"
        for heading in ("", *COLUMNS):
            table.add_column(heading, justify="left" if not heading else "right")
        for metric, each in row["metrics"].items():
            table.add_row(metric, *(_shown(each[name], form) for name, form in COLUMNS.items()))
        console.print(table)
        for metric, each in row["metrics"].items():
            if misses(each):
                why = each["suspected"] or "no mechanism is known"
                console.print(f"{metric} misses {each['aim']:.0%}. Suspected: {why}.")
        console.print("; ".join(row["notes"]), style="dim")


def misses(figure: Mapping[str, Any]) -> bool:
    """Whether a row's figure is further from the measured one than its aim."""
    error, aim = figure["error"], figure["aim"]
    return error is not None and aim is not None and abs(error) > aim


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def setup_of(run: MeasuredRun) -> RunSetup:
    """The twin's run of a measured run's exact requests.

    Raises ModelDoesNotFit for a model that the GPU could not have held.
    """
    return beside_load_generator(server_of(run)) if run.over_http else server_of(run)


def beside_load_generator(setup: RunSetup) -> RunSetup:
    """``setup`` with the clients' Python process on the server's own host, under its pressure."""
    stretch = host_pressure(setup.host, setup.plane, setup.interference).inflation_mean
    generator = catalogue("control_planes.toml")["_load_generator"].constants
    plane = setup.plane.with_overrides(
        {name: round(each.value * stretch) for name, each in generator.items()}
    )
    return replace(setup, plane=plane)


def server_of(run: MeasuredRun) -> RunSetup:
    """The server of a measured run, with clients that cost nothing."""
    plane = control_plane.profile("vllm").with_overrides({"api_tokenize_ns_per_token": 0})
    if run.greedy:
        plane = plane.with_overrides({"engine": f"{plane.engine}+greedy"})
    link = hardware.link("local")
    if not run.over_http:
        link = replace(link, client_latency_ns=0)
        plane = plane.with_overrides(IN_PROCESS)
    return RunSetup(
        label=run.name,
        system="vllm",
        condition=run.condition,
        seed=1,
        workload=run.workload,
        llm=run.model,
        gpu=run.gpu,
        host=hardware.host(run.host),
        dpu=hardware.dpu("bluefield-3"),
        link=link,
        plane=plane,
        interference=run.interference,
        limits=Limits(run.batch_max, min(64, run.batch_max), run.prefill_tokens_max),
        kv_blocks_total=run.kv_blocks or _kv_blocks(run),
        kv_block_tokens=run.kv_block_tokens,
        graph_cache=False,
        prefix_caching=run.prefix_caching,
        ring=RingSetup(
            prompt_tokens_max=int(run.workload.input_tokens.max()),
            output_tokens_max=int(run.workload.output_tokens.max()),
        ),
    )


def _kv_blocks(run: MeasuredRun) -> int:
    return timing.kv_blocks_total(
        run.gpu,
        run.model,
        run.kv_block_tokens,
        run.memory_utilization,
        prefill_tokens_max=run.prefill_tokens_max,
    )


def _row(path: Path, run: MeasuredRun) -> Row:
    backend = backends.require("sim")
    record = backend.run(setup_of(run), commit="", progress=lambda ended: None)
    summary = summarise(record, Objectives())
    metrics: dict[str, dict[str, Any]] = {}
    suspected = {(each["run"], each["metric"]): each["suspected"] for each in known_misses()}
    for metric in METRICS:
        measured, predicted = _figure(run.figures, metric), _figure(summary, metric)
        if measured is not None:
            error = predicted / measured - 1 if measured and predicted is not None else None
            metrics[metric] = {
                "predicted": predicted,
                "measured": measured,
                "error": error,
                "aim": _aim(metric, run),
                "suspected": suspected.get((f"{run.name}, {run.condition}", metric)),
            }
    return {
        "run": run.name,
        "system": "vllm",
        "model": run.model.name,
        "gpu": run.gpu.name,
        "condition": run.condition,
        "requests": len(run.workload),
        "file": str(path),
        "completed": summary["completed"],
        "metrics": metrics,
        "notes": list(run.notes),
    }


def _aim(metric: str, run: MeasuredRun) -> float | None:
    if metric.endswith(".p50"):
        return None
    guessed = any(note.startswith("GUESSED") for note in run.notes)
    if run.interference.neighbours or guessed:
        return AIM_NOISY
    return AIM_TTFT if metric.startswith("ttft") else AIM


@cache
def known_misses() -> Sequence[Mapping[str, Any]]:
    """The misses that are on record: ``run``, ``metric``, ``error``, ``suspected``."""
    path = resources.files("blink.model") / "data" / "fidelity_misses.toml"
    misses: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["miss"]
    return misses


def _figure(figures: Mapping[str, Any], metric: str) -> float | None:
    name, _, part = metric.partition(".")
    found = figures.get(name)
    value = found.get(part) if part and isinstance(found, Mapping) else found
    return float(value) if isinstance(value, int | float) else None
