"""Observed runs, from any kind of file, in one shape that constants can be fitted to.

A path is a directory that ``blink run --out`` or ``blink validate --out`` wrote, a hardware profile
with its recorded runs, a result of ``vllm bench serve`` or GuideLLM, or a measured file as
``blink fidelity`` reads it. Every observation says which server ran which requests, as a run of the
twin with the catalogue's constants, and what came out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from blink.model import fitted, profile
from blink.model.calibration import without_a_slowed_gpu
from blink.model.errors import BadInput
from blink.model.json_file import read_text
from blink.model.metrics import Objectives, per_request_ns, summarise
from blink.model.profile import Profile
from blink.model.record import RunRecord
from blink.model.resolve import resolve
from blink.model.scenario import parse_scenario
from blink.model.setup import RunSetup
from blink.model.workload import Workload
from blink.plan.bench_files import Asked, read_guidellm, read_vllm_bench
from blink.plan.fidelity import beside_load_generator, server_of
from blink.plan.measured import MeasuredRun, RequestTimes, read_measured
from blink.plan.output import SUMMARY, read_run
from blink.plan.profiling import step_figures
from blink.plan.validate import planned_run

MS: Final = 1e6
LATENCIES: Final = ("ttft_ms", "tpot_ms", "itl_ms")
METRICS: Final = (
    *(f"{name}.{part}" for name in LATENCIES for part in ("mean", "p50")),
    "output_tok_s",
    "throughput_req_s",
    "decode_step_ms.p50",
    "prefill_step_ms.p50",
    "control_us.p50",
)
"""What an observation may hold. Tails are left out: one stall moves them, no constant does."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One observed run. ``server`` is the twin's run of it; ``figures`` what was measured.

    ``over_http``: its clients were a Python process on the server's host, not part of the server.
    """

    name: str
    condition: str
    server: RunSetup
    figures: Mapping[str, float]
    times: RequestTimes | None
    over_http: bool
    file: str
    sha256: str
    date: str | None
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name and condition."""
        return f"{self.name}, {self.condition}"

    def setup(self, constants: Mapping[str, float]) -> RunSetup:
        """The twin's run with those constants; clients on the host feel its pressure, too."""
        made = fitted.with_constants(self.server, constants, "being fitted")
        return beside_load_generator(made) if self.over_http else made


def observe(paths: Sequence[Path], asked: Asked) -> list[Observation]:
    """All runs of all files, in order.

    Raises BadInput before anything runs: for a file of no known kind, or the same run twice.
    """
    found = [each for path in paths for each in _observed(path, asked)]
    seen: dict[tuple[str, str], str] = {}
    for each in found:
        key = (each.sha256, each.label)
        if key in seen:
            raise BadInput(f"{each.file}: {each.label}: the same run is in {seen[key]}")
        seen[key] = each.file
    return found


def record_figures(record: RunRecord) -> dict[str, float]:
    """The figures of :data:`METRICS` that a record has."""
    summary = summarise(record, Objectives())
    return _flat(summary) | {
        name: value for name, value in step_figures(record).items() if name in METRICS and value > 0
    }


def record_times(record: RunRecord) -> RequestTimes:
    """What each request took; NaN for one that did not complete."""
    found = per_request_ns(record)
    done = found["done"] > 0
    ttft = np.where(done, found["ttft"], np.nan).astype(np.float64) / MS
    return RequestTimes(ttft, np.where(done, found["tpot"], np.nan) / MS)


def _flat(figures: Mapping[str, Any]) -> dict[str, float]:
    flat: dict[str, float] = {}
    for metric in METRICS:
        name, _, part = metric.partition(".")
        value = figures.get(name)
        value = value.get(part) if part and isinstance(value, Mapping) else value
        if isinstance(value, int | float) and value > 0:
            flat[metric] = float(value)
    return flat


# --- files -----------------------------------------------------------------------------------


def _observed(path: Path, asked: Asked) -> list[Observation]:
    if path.is_dir():
        return _from_output(path)
    text = read_text(path)
    if path.suffix == ".jsonl":
        return _from_measured(path, text, asked)
    try:
        document = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadInput(f"{path}: must hold one JSON object, holds a {type(document).__name__}")
    if document.get("kind") == fitted.KIND:
        raise BadInput(f"{path}: is a fitted profile already; give the runs that it came from")
    if "microbenchmarks" in document:
        return _from_profile(path, text, profile.read(path))
    if "runs" in document:
        return _from_measured(path, text, asked)
    if "benchmarks" in document:
        runs = read_guidellm(path, text, document, asked)
    elif "completed" in document or "ttfts" in document:
        runs = read_vllm_bench(path, text, asked)
    else:
        raise BadInput(
            f"{path}: neither a result of vllm bench serve or GuideLLM, nor a hardware profile, "
            "nor a summary of measured runs"
        )
    return [_of_measured(run, path, _hash(text)) for run in runs]


def _from_measured(path: Path, text: str, asked: Asked) -> list[Observation]:
    runs = read_measured(path, model_config=asked.model, gpu=asked.gpu)
    return [_of_measured(run, path, _hash(text)) for run in runs]


def _of_measured(run: MeasuredRun, path: Path, sha256: str) -> Observation:
    figures = _flat(run.figures)
    if not figures:
        raise BadInput(f"{path}: {run.name}: states no mean, median or rate to fit to")
    return Observation(
        name=run.name,
        condition=run.condition,
        server=server_of(run),
        figures=figures,
        times=run.times,
        over_http=run.over_http,
        file=str(path),
        sha256=sha256,
        date=run.date,
        notes=run.notes,
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


# --- what blink wrote ------------------------------------------------------------------------


def _from_output(path: Path) -> list[Observation]:
    """Every record below an output; of ``blink validate``'s two the machine's, not the twin's."""
    place = path / "metal" if (path / "metal" / SUMMARY).is_file() else path
    records = read_run(place).records
    sha256 = _hash((place / SUMMARY).read_text("utf-8"))
    return [_of_record(place, record, sha256) for record in records]


def _of_record(place: Path, record: RunRecord, sha256: str) -> Observation:
    figures = record_figures(record)
    if "ttft_ms.mean" not in figures:
        raise BadInput(f"{place}: {record.label}: no request of it completed")
    notes = [f"backend {record.backend}, commit {record.commit}"]
    scenario = dict(record.scenario)
    machine = dict(scenario.get("hardware", {}))
    name = machine.get("profile")
    if name and fitted.is_fitted(name):
        machine["profile"] = None
        notes.append(f"ran with the fitted profile {name}: the fit begins without it")
    page = parse_scenario(scenario | {"hardware": machine}, f"{place}: {record.label}")
    setup = resolve(
        page,
        _workload_of(record),
        system=record.system,
        condition=record.condition,
        label=record.label,
    )
    return Observation(
        name=record.label.removesuffix(record.condition).strip(),
        condition=record.condition,
        server=without_a_slowed_gpu(setup) if record.backend != "sim" else setup,
        figures=figures,
        times=record_times(record),
        over_http=False,
        file=str(place),
        sha256=sha256,
        date=None,
        notes=tuple(notes),
    )


def _workload_of(record: RunRecord) -> Workload:
    """The requests as the record saw them; a closed loop's arrivals are the twin's own matter."""
    table, spec = record.requests, record.scenario.get("workload", {})
    clients = spec.get("clients")
    if clients is None:
        return Workload(table.arrival_ns, table.input_tokens, table.output_tokens_wanted)
    return Workload(
        np.zeros_like(table.arrival_ns),
        table.input_tokens,
        table.output_tokens_wanted,
        concurrency=int(clients),
        think_ns=round(float(spec.get("think_s", 0.0)) * 1e9),
    )


def _from_profile(path: Path, text: str, measured: Profile) -> list[Observation]:
    """The recorded runs of a hardware profile, whose scenarios lie below the working directory."""
    if not measured.runs:
        raise BadInput(f"{path}: a profile without runs; fit to the records themselves")
    found = []
    for run in measured.runs:
        setup = planned_run(measured, run, Path()).setup
        if run.requests is not None:
            setup = replace(setup, workload=Workload(*run.requests.arrays()))
        figures = {name: value for name, value in run.metrics.items() if name in METRICS and value}
        found.append(
            Observation(
                name=f"{Path(run.spec).stem} {run.system} {run.point}".strip(),
                condition=run.condition,
                server=setup,
                figures=figures,
                times=None,
                over_http=False,
                file=str(path),
                sha256=_hash(text),
                date=measured.date,
                notes=(f"measured on {measured.gpu}",),
            )
        )
    return found
