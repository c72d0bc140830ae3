"""Measured runs of real servers, read from the two formats in which they are published.

* A *summary*: one JSON object with ``runs``, each with ``model``, ``rate``, ``condition``, its
  figures (``ttft_ms``, ``tpot_ms``, ``itl_ms``, ``out_tok_s``, ``req_s``) and a ``requests_file``
  beside it with the exact requests. Measured at the client, over HTTP.
* *Requests*: JSONL, one request a line, with the engine's own time stamps, and a ``.meta.json``
  beside it with the engine's settings. No HTTP in it.

What a file does not say is taken from defaults, and said in the run's ``notes``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from blink.model import hardware, llm
from blink.model.errors import BadInput, TraceError, UnknownName
from blink.model.hardware import GpuSku
from blink.model.interference import QUIET, Interference, Neighbour
from blink.model.llm import LlmSku
from blink.model.provenance import catalogue
from blink.model.workload import Workload, read_trace

NS_PER_S: Final = 1e9
NEIGHBOURS: Final = (  # how the text of a condition names a neighbour
    ("memory_thrash", r"(\d+) (?:threads|processes) of mmap"),
    ("pbzip2", r"(\d+) (?:threads|processes) of (?:p?bzip2|bz2|pbzip2)"),
    ("ninja", r"(\d+) (?:threads|processes|jobs) of (?:ninja|an? \w+ build|compil)"),
)
STAMPS: Final = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One measured run: what was asked of which server, and what came out.

    ``figures`` uses the names of ``blink run --json``; a figure that was not measured is missing.
    ``over_http`` is false for the engine's own time stamps; ``greedy`` is temperature 0;
    ``prefix_caching`` lets a preempted sequence find what is left of its blocks.
    """

    name: str
    model: LlmSku
    gpu: GpuSku
    condition: str
    workload: Workload
    figures: Figures
    over_http: bool
    greedy: bool
    batch_max: int
    prefill_tokens_max: int
    host: str
    interference: Interference = QUIET
    kv_blocks: int | None = None
    prefix_caching: bool = True
    kv_block_tokens: int = 16
    memory_utilization: float = 0.9
    notes: tuple[str, ...] = field(default=())


def read_measured(
    path: Path, *, model_config: Path | None = None, gpu: str | None = None
) -> list[MeasuredRun]:
    """All runs of a measured file; ``model_config`` and ``gpu`` stand in for what it calls them.

    Raises BadInput for a file of neither format, TraceError for a bad line, UnknownName for a model
    or GPU that no catalogue has.
    """
    text = _text(path)
    if path.suffix == ".jsonl":
        return [_from_requests(path, text, model_config, gpu)]
    document = _json(path, text)
    if not isinstance(document.get("runs"), list):
        raise BadInput(f'{path}: a summary of measured runs has a list "runs"')
    return [_from_summary(path, document, run, model_config, gpu) for run in document["runs"]]


# --- the summary -----------------------------------------------------------------------------


def _from_summary(
    path: Path, document: Mapping[str, Any], run: Any, model_config: Path | None, gpu: str | None
) -> MeasuredRun:
    if not isinstance(run, dict):
        raise BadInput(f"{path}: each of the runs is an object")
    condition = str(run.get("condition", "isolated"))
    said = " ".join(str(document.get(key, "")) for key in ("what", "load", "notes", "gpu"))
    board = hardware.gpu(gpu) if gpu else _named_gpu(path, said)
    server = board.memory_bytes >= 70 * 2**30
    model = _model(str(run.get("model", "")), path, model_config)
    rate = run.get("rate")
    return MeasuredRun(
        name=f"{board.name} {model.name}" + (f" {rate:g} req/s" if rate else ""),
        model=model,
        gpu=board,
        condition=condition,
        workload=_requests_of(path, run),
        figures=_stated(path, run),
        over_http=True,
        greedy="temperature 0" in said,
        batch_max=1024 if server else 256,
        prefill_tokens_max=8192 if server else 2048,
        host="h200-vm",
        interference=_interference(condition, document.get("conditions", {})),
        prefix_caching="prefix caching off" not in said,
        notes=(
            "limits: the server's defaults for this GPU",
            "client and server share the host",
        ),
    )


def _named_gpu(path: Path, said: str) -> GpuSku:
    """The GPU whose longest name appears in the text."""
    flat = f" {said.casefold()} "
    found = [
        (len(alias), name)
        for name, each in catalogue("gpus.toml").items()
        for alias in (name, *each.labels.get("aliases", ()))
        if re.search(rf"\b{re.escape(alias.casefold())}\b", flat)
    ]
    if not found:
        raise BadInput(f"{path}: names no GPU of the catalogue; say which with --gpu")
    return hardware.gpu(max(found)[1])


def _requests_of(path: Path, run: Mapping[str, Any]) -> Workload:
    name = run.get("requests_file")
    if not isinstance(name, str):
        raise BadInput(f'{path}: a run has no "requests_file" with its exact requests')
    trace = read_trace(path.parent / name)
    if trace.arrival_ns is None:
        raise TraceError(path.parent / name, None, "has no arrivals")
    return Workload(trace.arrival_ns, trace.input_tokens, trace.output_tokens)


def _stated(path: Path, run: Mapping[str, Any]) -> Figures:
    figures: Figures = {
        key: {name: float(value) for name, value in run[key].items()}
        for key in ("ttft_ms", "tpot_ms", "itl_ms")
        if isinstance(run.get(key), dict)
    }
    for key, stated in (("output_tok_s", "out_tok_s"), ("throughput_req_s", "req_s")):
        if stated in run:
            figures[key] = float(run[stated])
    if not figures:
        raise BadInput(f"{path}: a run states no figure to compare with")
    return figures


def _interference(condition: str, described: Any) -> Interference:
    """The neighbours that a condition's description counts; half and half if it counts none."""
    if condition == "isolated":
        return QUIET
    said = str(described.get(condition, "")) if isinstance(described, dict) else ""
    if "same interferers" in said:
        others = [text for name, text in described.items() if name not in (condition, "isolated")]
        said = "; ".join([said, *map(str, others)])
    found = [
        Neighbour(kind, int(match.group(1)))
        for kind, pattern in NEIGHBOURS
        if (match := re.search(pattern, said))
    ]
    total = re.search(r"(\d+)", condition)
    if not found and total:
        half = max(1, int(total.group(1)) // 2)
        found = [Neighbour("memory_thrash", half), Neighbour("pbzip2", half)]
    pinned = re.search(r"pinned_?(\d+)", condition)
    return Interference(tuple(found), pinned_cores=int(pinned.group(1)) if pinned else None)


# --- requests with time stamps ---------------------------------------------------------------


def _from_requests(
    path: Path, text: str, model_config: Path | None, gpu: str | None
) -> MeasuredRun:
    rows = _rows(path, text)
    meta_path = path.with_suffix(".meta.json")
    meta = _json(meta_path, _text(meta_path)) if meta_path.exists() else {}
    settings = meta.get("engine_kwargs", {})
    if int(settings.get("tensor_parallel_size") or 1) > 1:
        raise BadInput(f"{meta_path}: ran on several GPUs (tensor parallel); the twin models one")
    cache = meta.get("kv_cache", {})
    board_name = gpu or meta.get("hardware", {}).get("device_name")
    board = (
        hardware.gpu(board_name) if board_name else _named_gpu(path, path.name.replace("_", " "))
    )
    model = _model(str(meta.get("model", "")), path, model_config)
    if str(settings.get("kv_cache_dtype", "auto")).startswith("fp8"):
        model = replace(model, kv_bytes_per_element=1.0)
    workload, figures = _measured(rows)
    server = board.memory_bytes >= 70 * 2**30
    return MeasuredRun(
        name=f"{board.name} {model.name} {len(rows)} requests",
        model=model,
        gpu=board,
        condition="isolated",
        workload=workload,
        figures=figures,
        over_http=False,
        greedy=False,
        batch_max=int(settings.get("max_num_seqs") or (1024 if server else 256)),
        prefill_tokens_max=int(settings.get("max_num_batched_tokens") or 8192),
        host="workstation",
        kv_blocks=cache.get("num_gpu_blocks"),
        prefix_caching=bool(cache.get("enable_prefix_caching", True)),
        kv_block_tokens=int(cache.get("block_size") or 16),
        memory_utilization=float(cache.get("gpu_memory_utilization") or 0.9),
        notes=("engine time stamps: no HTTP; sampling and host are not stated",),
    )


def _rows(path: Path, text: str) -> list[dict[str, float]]:
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            rows.append({key: float(row[key]) for key in (*STAMPS, "input_toks", "output_toks")})
        except (ValueError, TypeError, KeyError) as error:
            raise TraceError(path, number, f"not a measured request: {error}") from None
    if not rows:
        raise TraceError(path, None, "holds no request")
    return rows


def _measured(rows: Sequence[Mapping[str, float]]) -> tuple[Workload, Figures]:
    """Workload and figures of the engine's stamps, on one clock that starts at the first arrival.

    ``arrival_time`` is another clock's; a request is queued at once when the engine is idle, so
    the least difference between the two is the clocks' offset.
    """
    columns = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    offset = (columns["queued_ts"] - columns["arrival_time"]).min()
    arrival = columns["arrival_time"] + offset
    order = np.argsort(arrival, kind="stable")
    start = arrival.min()
    outputs = columns["output_toks"]
    many = outputs > 1
    spans = columns["last_token_ts"] - columns["first_token_ts"]
    makespan = columns["last_token_ts"].max() - start
    figures: Figures = {
        "ttft_ms": _spread((columns["first_token_ts"] - arrival) * 1e3),
        "tpot_ms": _spread(spans[many] / (outputs[many] - 1) * 1e3),
        "output_tok_s": float(outputs.sum() / makespan),
        "throughput_req_s": float(len(rows) / makespan),
    }
    workload = Workload(
        arrival_ns=np.rint((arrival - start)[order] * NS_PER_S).astype(np.int64),
        input_tokens=columns["input_toks"][order].astype(np.int64),
        output_tokens=outputs[order].astype(np.int64),
    )
    return workload, figures


def _spread(values: np.ndarray[Any, Any]) -> dict[str, float]:
    p50, p95, p99 = np.quantile(values, [0.5, 0.95, 0.99])
    return {"mean": float(values.mean()), "p50": float(p50), "p95": float(p95), "p99": float(p99)}


# --- files -----------------------------------------------------------------------------------


def _model(name: str, path: Path, model_config: Path | None) -> LlmSku:
    if model_config is not None:
        return llm.lookup(str(model_config))
    try:
        return llm.lookup(name)
    except UnknownName as error:
        raise BadInput(f"{path}: {error}; give its config.json with --model-config") from None


def _json(path: Path, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadInput(f"{path}: must hold a JSON object")
    return document


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None
