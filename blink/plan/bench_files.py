"""Runs of a server as load generators report them: ``vllm bench serve`` and GuideLLM.

* ``vllm bench serve --save-result`` writes one JSON object a run. With ``--save-detailed`` it has
  ``input_lens``, ``output_lens``, ``ttfts``, ``itls`` and, in newer versions, ``start_times``, all
  in s; without it only totals, means and percentiles.
* GuideLLM writes ``benchmarks``, each with its ``requests.successful``. A request's
  ``inter_token_latency`` is what is called TPOT here; its ``time_per_output_token`` counts the
  first token, too.

Neither names its GPU, and neither says what else ran on the host. What a file does not say is an
argument, or a default that is among the run's ``notes``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from blink.model import hardware
from blink.model.errors import BadInput
from blink.model.json_file import Shape, parse
from blink.model.random import stream_of
from blink.model.workload import Workload
from blink.plan.measured import (
    NS_PER_S,
    SUMMARY_HOST,
    Figures,
    MeasuredRun,
    RequestTimes,
    is_server,
    model_of,
    spread_of,
)
from blink.plan.measured_files import Figure, Part, Stamp, Tokens

Seconds = Annotated[float, Field(ge=0, le=1e7)]
Whole = Annotated[int, Field(ge=0, le=1_000_000_000)]
DRAWN: Final = "ARRIVALS DRAWN"
LINES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says of the machine and the model."""

    gpu: str | None = None
    model: Path | None = None
    host: str | None = None


class VllmBench(Part):
    """A result of ``vllm bench serve``; latencies in ms, lists in s, one entry a request."""

    model_id: str | None = None
    date: str | None = None
    request_rate: Annotated[float, Field(gt=0)] | Literal["inf"] | None = None
    burstiness: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    max_concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    completed: Annotated[int, Field(ge=1, le=10_000_000)]
    failed: Whole = 0
    duration: Annotated[float, Field(gt=0, le=1e7)]
    total_input_tokens: Annotated[int, Field(ge=1)]
    total_output_tokens: Annotated[int, Field(ge=1)]
    request_throughput: Figure | None = None
    output_throughput: Figure | None = None
    mean_ttft_ms: Figure | None = None
    mean_tpot_ms: Figure | None = None
    mean_itl_ms: Figure | None = None
    input_lens: tuple[Whole, ...] | None = None
    output_lens: tuple[Whole, ...] | None = None
    ttfts: tuple[Seconds, ...] | None = None
    itls: tuple[tuple[Seconds, ...], ...] | None = None
    start_times: tuple[Stamp, ...] | None = None


class GuideRequest(Part):
    """One request of GuideLLM's; stamps in s, newer names before older ones."""

    prompt_tokens: Tokens
    output_tokens: Tokens
    time_to_first_token_ms: Figure
    inter_token_latency_ms: Figure | None = None
    request_start_time: Stamp | None = None
    request_end_time: Stamp | None = None
    start_time: Stamp | None = None
    end_time: Stamp | None = None


class GuideRequests(Part):
    """A benchmark's requests by how they ended; the others are only counted."""

    successful: tuple[GuideRequest, ...] = ()
    incomplete: tuple[Any, ...] = ()
    errored: tuple[Any, ...] = ()


class GuideBenchmark(Part):
    """One load of a report."""

    requests: GuideRequests


class GuideReport(Part):
    """The whole file."""

    benchmarks: Annotated[tuple[GuideBenchmark, ...], Field(min_length=1)]


# --- vllm bench serve ------------------------------------------------------------------------


def read_vllm_bench(path: Path, text: str, asked: Asked) -> list[MeasuredRun]:
    """The run of a result file. Raises BadInput, one line each, for what it lacks."""
    found = _parsed(VllmBench, path, text)
    notes = [f"{found.failed} failed requests left out"] if found.failed else []
    closed = found.max_concurrency
    if closed is not None and found.request_rate not in (None, "inf") and not found.start_times:
        raise BadInput(
            f"{path}: max_concurrency and request_rate together, and no start_times: when its "
            "requests came cannot be told; use a newer vLLM, with --save-detailed"
        )
    detailed = (found.input_lens, found.output_lens, found.ttfts, found.itls)
    times: RequestTimes | None = None
    if any(each is not None for each in detailed):
        workload, figures, times, said = _detailed(path, found)
    else:
        workload, figures, said = _totals(path, found)
    figures |= _rates(found)
    rate = f"{found.request_rate:g} req/s" if isinstance(found.request_rate, float) else ""
    load = rate or (f"{closed} at once" if closed else "all at once")
    report = _Report(
        path, found.model_id, load, workload, figures, times, notes + said, _date(found.date), True
    )
    return [report.run(asked)]


def _detailed(path: Path, found: VllmBench) -> tuple[Workload, Figures, RequestTimes, list[str]]:
    inputs, outputs, ttfts, itls = found.input_lens, found.output_lens, found.ttfts, found.itls
    if inputs is None or outputs is None or ttfts is None or itls is None:
        raise BadInput(
            f"{path}: has some of input_lens, output_lens, ttfts and itls only: run vllm bench "
            "serve with --save-detailed"
        )
    if len({len(inputs), len(outputs), len(ttfts), len(itls)}) > 1:
        raise BadInput(f"{path}: input_lens, output_lens, ttfts and itls differ in length")
    starts = found.start_times
    if starts is not None and len(starts) != len(inputs):
        raise BadInput(f"{path}: start_times and input_lens differ in length")
    done = [at for at, count in enumerate(outputs) if count > 0 and inputs[at] > 0]
    if not done:
        raise BadInput(f"{path}: no request of it completed")
    arrival_s, said = _arrivals(found, len(inputs))
    order = sorted(done, key=lambda at: (arrival_s[at], at))
    at = np.array(order)
    input_tokens, output_tokens = np.array(inputs, np.int64)[at], np.array(outputs, np.int64)[at]
    spans = np.array([sum(itls[each]) for each in order]) * 1e3
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(output_tokens > 1, spans / (output_tokens - 1), np.nan)
    times = RequestTimes(np.array(ttfts, np.float64)[at] * 1e3, tpot)
    gaps = np.array([gap for each in order for gap in itls[each]], np.float64) * 1e3
    figures = _figures(times)
    if len(gaps):
        figures["itl_ms"] = spread_of(gaps)
    arrival = arrival_s[at] - arrival_s[at].min()
    concurrency = found.max_concurrency if said == [] and starts is None else None
    workload = Workload(
        np.rint(arrival * NS_PER_S).astype(np.int64), input_tokens, output_tokens, concurrency
    )
    return workload, figures, times, said


def _arrivals(found: VllmBench, count: int) -> tuple[NDArray[np.float64], list[str]]:
    """When the requests were sent, s: as stated, all at once, or drawn as the generator does."""
    if found.start_times is not None:
        starts = np.array(found.start_times, np.float64)
        return starts - starts.min(), []
    if found.request_rate in (None, "inf"):
        return np.zeros(count), []
    assert isinstance(found.request_rate, float)
    shape = found.burstiness
    gaps = stream_of(1)("calibrate.arrivals").gamma(shape, 1 / (found.request_rate * shape), count)
    return np.cumsum(gaps), [f"{DRAWN}: start_times is missing; the rate and burstiness are kept"]


def _totals(path: Path, found: VllmBench) -> tuple[Workload, Figures, list[str]]:
    """A summary's requests, all alike, and its means."""
    arrival_s, said = _arrivals(found, found.completed)
    alike = (
        found.total_input_tokens / found.completed,
        found.total_output_tokens / found.completed,
    )
    inputs, outputs = (np.full(found.completed, max(1, round(each)), np.int64) for each in alike)
    figures: Figures = {
        f"{name}_ms": {"mean": mean}
        for name in ("ttft", "tpot", "itl")
        if (mean := getattr(found, f"mean_{name}_ms")) is not None
    }
    if not figures:
        raise BadInput(f"{path}: states no mean of TTFT, TPOT or ITL")
    arrival_ns = np.rint((arrival_s - arrival_s.min()) * NS_PER_S).astype(np.int64)
    open_loop = found.request_rate not in (None, "inf")
    concurrency = None if open_loop else found.max_concurrency
    workload = Workload(arrival_ns, inputs, outputs, concurrency)
    return workload, figures, [*said, "SUMMARY: lengths are taken for all alike; means only"]


def _rates(found: VllmBench) -> Figures:
    rates = {
        "output_tok_s": found.output_throughput,
        "throughput_req_s": found.request_throughput,
    }
    return {name: rate for name, rate in rates.items() if rate is not None}


def _date(written: str | None) -> str | None:
    """VLLM's "20250801-123456" as a date."""
    digits = (written or "")[:8]
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:]}" if digits.isdigit() else None


# --- GuideLLM --------------------------------------------------------------------------------


def read_guidellm(
    path: Path, text: str, document: Mapping[str, Any], asked: Asked
) -> list[MeasuredRun]:
    """Every load of a report. Raises BadInput, one line each, for what it lacks."""
    report = _parsed(GuideReport, path, text)
    name = next(_models(document), None)
    return [
        _guide_run(path, f"{path}: benchmarks.{index}", each.requests, name, asked)
        for index, each in enumerate(report.benchmarks)
    ]


def _guide_run(
    path: Path, where: str, requests: GuideRequests, name: str | None, asked: Asked
) -> MeasuredRun:
    rows = requests.successful
    if not rows:
        raise BadInput(f"{where}: no request of it succeeded")
    starts = [_first(row.request_start_time, row.start_time) for row in rows]
    ends = [_first(row.request_end_time, row.end_time) for row in rows]
    start_s, end_s = (np.array(each, np.float64) for each in (starts, ends))
    if np.isnan(start_s).any() or np.isnan(end_s).any():
        raise BadInput(f"{where}: a request without request_start_time or request_end_time")
    order = np.argsort(start_s, kind="stable")
    outputs = np.array([row.output_tokens for row in rows], np.int64)[order]
    tpot = np.array(
        [
            np.nan if row.inter_token_latency_ms is None else row.inter_token_latency_ms
            for row in rows
        ]
    )[order]
    tpot[outputs < 2] = np.nan
    ttft = np.array([row.time_to_first_token_ms for row in rows], np.float64)[order]
    times, first = RequestTimes(ttft, tpot), float(start_s.min())
    seconds = float(end_s.max()) - first
    if seconds <= 0:
        raise BadInput(f"{where}: all its time stamps are the same")
    figures = _figures(times)
    figures |= {
        "output_tok_s": float(outputs.sum()) / seconds,
        "throughput_req_s": len(rows) / seconds,
    }
    workload = Workload(
        np.rint((start_s[order] - first) * NS_PER_S).astype(np.int64),
        np.array([row.prompt_tokens for row in rows], np.int64)[order],
        outputs,
    )
    lost = len(requests.incomplete) + len(requests.errored)
    notes = [f"{lost} incomplete or failed requests left out"] if lost else []
    load = f"{len(rows)} requests"
    return _Report(path, name, load, workload, figures, times, notes).run(asked)


def _first(*values: float | None) -> float:
    return next((value for value in values if value is not None), float("nan"))


def _models(part: Any) -> Iterator[str]:
    """Every text under a key that names a model, in order, outside of the requests."""
    if isinstance(part, Mapping):
        for key, value in part.items():
            if key in ("model", "backend_model", "model_id") and isinstance(value, str) and value:
                yield value
            elif key != "requests":
                yield from _models(value)
    elif isinstance(part, list):
        for value in part:
            yield from _models(value)


# --- both ------------------------------------------------------------------------------------


def _parsed(kind: type[Shape], path: Path, text: str) -> Shape:
    """Read a file; of requests that all lack the same thing a few lines are enough."""
    try:
        return parse(kind, path, text)
    except BadInput as error:
        lines = str(error).splitlines()
        more = len(lines) - LINES_MAX
        told = [*lines[:LINES_MAX], *([f"{path}: and {more} more such lines"] if more > 0 else [])]
        raise BadInput("\n".join(told)) from None


def _figures(times: RequestTimes) -> Figures:
    figures: Figures = {"ttft_ms": spread_of(times.ttft_ms)}
    tpot = times.tpot_ms[~np.isnan(times.tpot_ms)]
    if len(tpot):
        figures["tpot_ms"] = spread_of(tpot)
    return figures


@dataclass(frozen=True, slots=True)
class _Report:
    """What both kinds of file have been brought to."""

    path: Path
    model: str | None
    load: str
    workload: Workload
    figures: Figures
    times: RequestTimes | None
    notes: Sequence[str]
    date: str | None = None
    greedy: bool = False

    def run(self, asked: Asked) -> MeasuredRun:
        """The run, with the server's defaults for its GPU."""
        if asked.gpu is None:
            raise BadInput(f"{self.path}: does not say its GPU; say which with --gpu")
        if self.model is None and asked.model is None:
            raise BadInput(f"{self.path}: does not say its model; say which with --model")
        board = hardware.gpu(asked.gpu)
        model = model_of(self.model or "", f"{self.path}: model", asked.model)
        server, host = is_server(board), asked.host or SUMMARY_HOST
        return MeasuredRun(
            name=f"{board.name} {model.name} {self.load}",
            model=model,
            gpu=board,
            condition="isolated",
            workload=self.workload,
            figures=self.figures,
            over_http=True,
            greedy=self.greedy,
            batch_max=1024 if server else 256,
            prefill_tokens_max=8192 if server else 2048,
            host=hardware.host(host).name,
            notes=(
                "limits: the server's defaults for this GPU",
                f"host: {host}{'' if asked.host else ' (assumed)'}, shared with the clients, quiet",
                f"sampling: {'greedy' if self.greedy else 'top-p'} (assumed)",
                *self.notes,
            ),
            times=self.times,
            date=self.date,
        )
