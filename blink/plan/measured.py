"""Measured runs of real servers, read from the two formats in which they are published.

* A *summary*: one JSON object with ``runs``, each with ``model``, ``rate``, ``condition``, its
  figures (``ttft_ms``, ``tpot_ms``, ``itl_ms``, ``out_tok_s``, ``req_s``) and a ``requests_file``
  beside it with the exact requests. Measured at the client, over HTTP.
* *Requests*: JSONL, one request a line, with the engine's own time stamps, and a ``.meta.json``
  beside it with the engine's settings. No HTTP in it.

What a file does not say is taken from defaults, and said in the run's ``notes``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blink.model import hardware, llm
from blink.model.errors import BadInput, TraceError, UnknownName
from blink.model.hardware import GpuSku
from blink.model.interference import QUIET, Interference, Neighbour
from blink.model.json_file import parse, read_text
from blink.model.llm import LlmSku
from blink.model.provenance import catalogue
from blink.model.workload import Workload, read_trace
from blink.model.workload.traces import json_lines
from blink.plan.measured_files import (
    EngineSettings,
    KvCache,
    Meta,
    RequestRow,
    Summary,
    SummaryRun,
)

NS_PER_S: Final = 1e9
SUMMARY_HOST: Final = "h200-vm"
CLOCKS_DRIFT_S_MAX: Final = 3600.0
NEIGHBOURS: Final = (  # how the text of a condition names a neighbour
    ("memory_thrash", r"(\d{1,6}) (?:threads|processes) of mmap"),
    ("pbzip2", r"(\d{1,6}) (?:threads|processes) of (?:p?bzip2|bz2|pbzip2)"),
    ("ninja", r"(\d{1,6}) (?:threads|processes|jobs) of (?:ninja|an? \w+ build|compil)"),
)

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """What each request took, in ms, in the order of the workload; float64 of shape (requests,).

    NaN in ``tpot_ms``: a request of one token.
    """

    ttft_ms: NDArray[np.float64]
    tpot_ms: NDArray[np.float64]


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
    times: RequestTimes | None = None
    date: str | None = None


def read_measured(
    path: Path, *, model_config: Path | None = None, gpu: str | None = None
) -> list[MeasuredRun]:
    """All runs of a measured file; ``model_config`` and ``gpu`` stand in for what it calls them.

    Raises BadInput for a file of neither format, naming the run and key or the line, and for a
    model or GPU that no catalogue has.
    """
    text = read_text(path)
    if path.suffix == ".jsonl":
        return [_from_requests(path, text, model_config, gpu)]
    summary = parse(Summary, path, text)
    return [
        _from_summary(path, summary, run, f"{path}: runs.{index}", model_config, gpu)
        for index, run in enumerate(summary.runs)
    ]


# --- the summary -----------------------------------------------------------------------------


def _from_summary(
    path: Path,
    summary: Summary,
    run: SummaryRun,
    where: str,
    model_config: Path | None,
    gpu: str | None,
) -> MeasuredRun:
    condition = run.condition or "isolated"
    board = hardware.gpu(gpu) if gpu else _named_gpu(path, summary.said)
    server = is_server(board)
    _check_said(summary.said, path)
    model = model_of(run.model, where, model_config)
    interference, neighbours = _interference(condition, summary.conditions or {}, where)
    return MeasuredRun(
        name=f"{board.name} {model.name}" + (f" {run.rate:g} req/s" if run.rate else ""),
        model=model,
        gpu=board,
        condition=condition,
        workload=_requests_of(path, run),
        figures=_stated(run, where),
        over_http=True,
        greedy="temperature 0" in summary.said,
        batch_max=1024 if server else 256,
        prefill_tokens_max=8192 if server else 2048,
        host=SUMMARY_HOST,
        interference=interference,
        prefix_caching="prefix caching off" not in summary.said,
        notes=(
            "limits: the server's defaults for this GPU",
            f"host: {SUMMARY_HOST}, client and server share it",
            *neighbours,
            *_doubts(summary.said),
        ),
        date=summary.date,
    )


def _gpu(name: str, where: Path) -> GpuSku:
    try:
        return hardware.gpu(name)
    except UnknownName as error:
        raise BadInput(f"{where}: {error}; say which with --gpu") from None


def _words(name: str) -> str:
    return name.replace("_", " ")


def is_server(board: GpuSku) -> bool:
    """Whether vLLM takes its larger defaults: 70 GiB or more, and no A100."""
    return board.memory_bytes >= 70 * 2**30 and not board.name.startswith("a100")


def _check_said(said: str, path: Path) -> None:
    several = re.search(
        r"(?:tensor|pipeline|data)[ -]parallel\w*[ =:]*(?:[2-9]|[1-9]\d)", said, re.IGNORECASE
    )
    if several:
        raise BadInput(f'{path}: "{several.group(0)}": ran on several GPUs; the twin models one')


def _doubts(said: str) -> list[str]:
    found = re.findall(r"\b(?:fp8|int8|int4|awq|gptq|speculative)\b", said, re.IGNORECASE)
    return [f'NOT MODELLED: "{each}"' for each in dict.fromkeys(found)]


def _check_settings(settings: EngineSettings, where: Path) -> None:
    for kind in ("tensor", "pipeline", "data"):
        if (getattr(settings, f"{kind}_parallel_size") or 1) > 1:
            raise BadInput(f"{where}: ran on several GPUs ({kind} parallel); the twin models one")
    if settings.quantization not in (None, "fp8"):
        raise BadInput(f'{where}: quantization "{settings.quantization}"; the twin knows fp8 only')
    if settings.dtype not in (None, "auto", "half", "float16", "bfloat16", "float", "float32"):
        raise BadInput(f'{where}: unknown dtype "{settings.dtype}"')


def _as_served(model: LlmSku, settings: EngineSettings) -> LlmSku:
    """The model with the widths that the engine was told to use."""
    if settings.dtype in ("float", "float32"):
        model = replace(model, bytes_per_weight=4.0, kv_bytes_per_element=4.0)
    if settings.quantization == "fp8":
        model = replace(model, bytes_per_weight=1.0)
    if (settings.kv_cache_dtype or "auto").startswith("fp8"):
        model = replace(model, kv_bytes_per_element=1.0)
    return model


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


def _requests_of(path: Path, run: SummaryRun) -> Workload:
    file = path.parent / run.requests_file
    trace = read_trace(file)
    if trace.arrival_ns is None:
        raise TraceError(file, None, "has no arrivals")
    return Workload(trace.arrival_ns, trace.input_tokens, trace.output_tokens)


def _stated(run: SummaryRun, where: str) -> Figures:
    figures: Figures = {
        name: spread.model_dump(exclude_none=True)
        for name in ("ttft_ms", "tpot_ms", "itl_ms")
        if (spread := getattr(run, name)) is not None
    }
    rates = {"output_tok_s": run.out_tok_s, "throughput_req_s": run.req_s}
    figures |= {name: rate for name, rate in rates.items() if rate is not None}
    if not any(figures.values()):
        raise BadInput(f"{where}: states no figure to compare with")
    return figures


def _interference(
    condition: str, described: Mapping[str, str], where: str
) -> tuple[Interference, list[str]]:
    """The neighbours that a condition's description counts, and what was taken for granted.

    A condition that none describes, and whose name has a number, is taken for that many threads,
    half of them thrashing memory and half compressing; without a number, for a quiet host.
    """
    if condition == "isolated":
        return QUIET, []
    said = described.get(condition, "")
    if "same interferers" in said:
        others = [text for name, text in described.items() if name not in (condition, "isolated")]
        said = "; ".join([said, *others])
    found = [
        Neighbour(kind, int(match.group(1)))
        for kind, pattern in NEIGHBOURS
        if (match := re.search(pattern, said)) and int(match.group(1))
    ]
    pinned = re.search(r"pinned_?(\d{1,6})", condition)
    total = re.search(r"(\d{1,6})", re.sub(r"pinned_?\d+", "", condition)) if not said else None
    notes = []
    if not found and total and int(total.group(1)):
        half = max(1, int(total.group(1)) // 2)
        found = [Neighbour("memory_thrash", half), Neighbour("pbzip2", half)]
        notes = [f'GUESSED from the name "{condition}": {half} threads each of {_kinds(found)}']
    elif not found and not re.search("nothing else", said):
        notes = [f'GUESSED: no description counts the neighbours of "{condition}"; none assumed']
    cores = int(pinned.group(1)) if pinned else None
    if cores is not None and not 1 <= cores <= hardware.host(SUMMARY_HOST).threads:
        raise BadInput(f'{where}.condition: "{condition}": {SUMMARY_HOST} has no {cores} cores')
    return Interference(tuple(found), pinned_cores=cores), notes


def _kinds(neighbours: Sequence[Neighbour]) -> str:
    return " and ".join(each.kind for each in neighbours)


# --- requests with time stamps ---------------------------------------------------------------


def _from_requests(
    path: Path, text: str, model_config: Path | None, gpu: str | None
) -> MeasuredRun:
    rows = _rows(path, text)
    meta_path = path.with_suffix(".meta.json")
    meta = parse(Meta, meta_path, read_text(meta_path)) if meta_path.exists() else Meta()
    settings = meta.engine_kwargs or EngineSettings()
    _check_settings(settings, meta_path)
    cache = meta.kv_cache or KvCache()
    board_name = meta.hardware and meta.hardware.device_name
    if gpu:
        board = hardware.gpu(gpu)
    elif board_name:
        board = _gpu(board_name, meta_path)
    else:
        board = _named_gpu(path, _words(path.name))
    if not meta_path.exists() and model_config is None:
        raise BadInput(
            f"{path}: there is no {meta_path.name} to name its model; --model-config does"
        )
    model = _as_served(model_of(meta.model or "", f"{meta_path}: model", model_config), settings)
    workload, figures, times = _measured(path, rows)
    server = is_server(board)
    caching = (cache.enable_prefix_caching, settings.enable_prefix_caching)
    return MeasuredRun(
        name=f"{board.name} {model.name} {len(rows)} requests",
        model=model,
        gpu=board,
        condition="isolated",
        workload=workload,
        figures=figures,
        over_http=False,
        greedy=False,
        batch_max=settings.max_num_seqs or (1024 if server else 256),
        prefill_tokens_max=settings.max_num_batched_tokens or 8192,
        host="workstation",
        kv_blocks=cache.num_gpu_blocks,
        prefix_caching=False not in caching,
        kv_block_tokens=cache.block_size or settings.block_size or 16,
        memory_utilization=cache.gpu_memory_utilization or settings.gpu_memory_utilization or 0.9,
        notes=(
            "engine time stamps: no HTTP; sampling and host are not stated",
            *(() if meta_path.exists() else (f"no {meta_path.name}: the engine's defaults",)),
            *(f"NOT MODELLED: {name}" for name in settings.not_modelled),
        ),
        times=times,
        date=meta.started_at and meta.started_at[:10],
    )


def _rows(path: Path, text: str) -> list[RequestRow]:
    rows = [parse(RequestRow, f"{path}:{line}", written) for line, written in json_lines(text)]
    if not rows:
        raise TraceError(path, None, "holds no request")
    return rows


def _measured(path: Path, rows: Sequence[RequestRow]) -> tuple[Workload, Figures, RequestTimes]:
    """What the engine's stamps say, on one clock that starts at the first arrival.

    ``arrival_time`` is another clock's; a request is queued at once when the engine is idle, so
    the least difference between the two is the clocks' offset.
    """
    columns = {
        name: np.array([getattr(row, name) for row in rows], dtype=np.float64)
        for name in RequestRow.model_fields
    }
    offsets = columns["queued_ts"] - columns["arrival_time"]
    offset = offsets.min()
    if offsets.max() - offset > CLOCKS_DRIFT_S_MAX:
        late = int(offsets.argmax())
        message = f"request {late} is queued {offsets[late] - offset:.0f} s after it arrived"
        raise TraceError(path, None, message)
    arrival = columns["arrival_time"] + offset
    order = np.argsort(arrival, kind="stable")
    start = arrival.min()
    outputs = columns["output_toks"]
    many = outputs > 1
    spans = columns["last_token_ts"] - columns["first_token_ts"]
    makespan = columns["last_token_ts"].max() - start
    if makespan <= 0:
        raise TraceError(path, None, "all its time stamps are the same")
    ttft_ms = (columns["first_token_ts"] - arrival) * 1e3
    tpot_ms = np.full(len(rows), np.nan)
    tpot_ms[many] = spans[many] / (outputs[many] - 1) * 1e3
    figures: Figures = {
        "ttft_ms": spread_of(ttft_ms),
        "output_tok_s": float(outputs.sum() / makespan),
        "throughput_req_s": float(len(rows) / makespan),
    }
    if many.any():
        figures["tpot_ms"] = spread_of(tpot_ms[many])
    workload = Workload(
        arrival_ns=np.rint((arrival - start)[order] * NS_PER_S).astype(np.int64),
        input_tokens=columns["input_toks"][order].astype(np.int64),
        output_tokens=outputs[order].astype(np.int64),
    )
    return workload, figures, RequestTimes(ttft_ms[order], tpot_ms[order])


def spread_of(values: NDArray[np.float64]) -> dict[str, float]:
    """Mean and percentiles, by the names of ``blink run --json``."""
    p50, p95, p99 = np.quantile(values, [0.5, 0.95, 0.99])
    return {"mean": float(values.mean()), "p50": float(p50), "p95": float(p95), "p99": float(p99)}


# --- files -----------------------------------------------------------------------------------


def model_of(name: str, where: str, model_config: Path | None) -> LlmSku:
    """The model of that name, or in that file. Raises BadInput, with what to do, for neither."""
    if model_config is not None:
        return llm.lookup(str(model_config))
    try:
        return llm.lookup(name)
    except UnknownName as error:
        raise BadInput(f"{where}: {error}; give its config.json with --model-config") from None
