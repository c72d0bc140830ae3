"""Many runs on all cores, or on a Ray cluster: resumed when interrupted, the same bytes anywhere.

A job is a resolved run and what to measure of it. What a job gives depends on nothing but the job
and the code, so its result is kept under a hash of both, and a sweep that was interrupted goes on
where it stopped. Results pass through JSON in every case: a kept one and a fresh one are equal.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache as remember
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from blink import backends
from blink.model.errors import BackendUnavailable, BadInput
from blink.model.metrics import Objectives, summarise
from blink.model.record import RunRecord
from blink.model.setup import RunSetup
from blink.plan.runner import commit_id

Where = Literal["local", "ray"]
Result = dict[str, Any]
Measure = Callable[[RunRecord, "Job"], Result]
Progress = Callable[[int, int], None]
PACKAGE: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the twin, with the objectives that its goodput counts.

    extra: what else ``measure`` is to know, JSON values by name; part of the job's identity.
    """

    setup: RunSetup
    objectives: Objectives = field(default_factory=Objectives)
    extra: Mapping[str, Any] = field(default_factory=dict)


def summary(record: RunRecord, job: Job) -> Result:
    """The figures of a run and its counters: what a job gives unless it is asked for more."""
    return {**summarise(record, job.objectives), "counters": record.counters}


def execute_jobs(
    jobs: Sequence[Job],
    *,
    measure: Measure = summary,
    where: Where = "local",
    workers: int | None = None,
    cache: Path | None = None,
    progress: Progress = lambda done, total: None,
) -> list[Result]:
    """Run ``jobs`` and return ``measure(record, job)`` of each, in their order.

    measure: a function of a module, so that other processes find it. workers: processes, by default
    one a core; Ray takes what its cluster has. cache: a folder of results to take from and add to.
    progress(done, total) is called as jobs end.

    Raises what a run raises, BackendUnavailable without Ray, BadInput without a Ray cluster.
    """
    keys = [key_of(job, measure) for job in jobs]
    kept = {} if cache is None else {key: found for key in keys if (found := _load(cache, key))}
    missing = {key: job for key, job in zip(keys, jobs, strict=True) if key not in kept}
    total = len(set(keys))
    progress(total - len(missing), total)
    run = _on_ray if where == "ray" else _on_cores
    for done, (key, text) in enumerate(run(missing, measure, workers), total - len(missing) + 1):
        if cache is not None:
            _store(cache, key, text)
        kept[key] = json.loads(text)
        progress(done, total)
    return [kept[key] for key in keys]


def _in_silence(ended: int) -> None:
    """A job tells nothing while it runs."""


def _run(key: str, job: Job, measure: Measure, commit: str) -> tuple[str, str]:
    """One job, wherever it is: its key and its result as JSON."""
    record = backends.require("sim").run(job.setup, commit=commit, progress=_in_silence)
    return key, json.dumps(measure(record, job), allow_nan=False)


Runs = Iterator[tuple[str, str]]


def _on_cores(jobs: Mapping[str, Job], measure: Measure, workers: int | None) -> Runs:
    """In this process, or in as many as there are cores; in whatever order they end."""
    workers = min(workers or cores(), len(jobs))
    commit = commit_id()
    calls = [(key, job, measure, commit) for key, job in jobs.items()]
    if workers <= 1:
        return (_run(*call) for call in calls)
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)
    found: Runs = pool(delayed(_run)(*call) for call in calls)
    return found


def _on_ray(jobs: Mapping[str, Job], measure: Measure, _: int | None) -> Runs:
    """On the Ray cluster that this process belongs to, or that ``ray start`` has made here."""
    ray = _ray()
    commit = commit_id()
    remote = ray.remote(_run)
    waiting = [remote.remote(key, job, measure, commit) for key, job in jobs.items()]
    while waiting:
        done, waiting = ray.wait(waiting)
        yield from ray.get(done)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise BackendUnavailable(
            "executor 'ray' needs Ray: pip install 'blink-twin[ray]'"
        ) from None
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError:
            raise BadInput(
                "executor 'ray': no Ray cluster was found here: start one (ray start --head), "
                "or say where it is (RAY_ADDRESS), or leave --executor out"
            ) from None
    return ray


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class TimeLeft:
    """Says how many jobs are done, and how long the rest will take at this pace.

    say: what takes a line of text, such as ``sys.stderr.write``; at most one a second.
    """

    def __init__(
        self, what: str, say: Callable[[str], object], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._say, self._now_s = what, say, now_s
        self._begun_s = self._said_s = now_s()
        self._kept: int | None = None

    def __call__(self, done: int, total: int) -> None:
        """See ``Progress``. The first call tells how many were done before."""
        now_s = self._now_s()
        if self._kept is None:
            self._kept = done
            if done:
                self._say(f"{self._what}: {done} of {total} from the cache\n")
            return
        if now_s - self._said_s < 1 and done < total:
            return
        self._said_s = now_s
        fresh = done - self._kept
        left_s = (now_s - self._begun_s) / fresh * (total - done)
        rest = f", {left_s:.0f} s left" if done < total else f", {now_s - self._begun_s:.1f} s"
        self._say(f"{self._what}: {done} of {total}{rest}\n")


# --- a job's identity ------------------------------------------------------------------------


def key_of(job: Job, measure: Measure = summary) -> str:
    """A hash (SHA-256, hex) of everything that determines a job's result: itself and the code."""
    digest = hashlib.sha256()
    digest.update(code_id().encode())
    digest.update(f"{measure.__module__}.{measure.__qualname__}".encode())
    _feed(digest.update, job)
    return digest.hexdigest()


@remember
def code_id() -> str:
    """The commit and a hash of the package's files: a change that is not committed counts too."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in {".py", ".toml", ".json", ".csv"}:
            digest.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + path.read_bytes())
    return f"{commit_id()} {digest.hexdigest()}"


def _feed(update: Callable[[bytes], object], value: Any) -> None:
    """Feed a value's type and content to a hash; what is not compared does not count."""
    update(type(value).__name__.encode() + b"(")
    if isinstance(value, np.ndarray):
        update(f"{value.dtype.str}{value.shape}".encode())
        update(np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            if each.compare:
                update(each.name.encode())
                _feed(update, getattr(value, each.name))
    elif isinstance(value, Mapping):
        for name in sorted(value, key=str):
            update(str(name).encode())
            _feed(update, value[name])
    elif isinstance(value, (list, tuple)):
        for each in value:
            _feed(update, each)
    else:
        assert value is None or isinstance(value, (str, int, float, Enum)), f"no hash of {value!r}"
        update(repr(value).encode())
    update(b")")


# --- results that are kept -------------------------------------------------------------------


def _load(cache: Path, key: str) -> Result | None:
    """A result of the cache; None if it has none, or one that was cut off."""
    try:
        found = json.loads((cache / f"{key}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _store(cache: Path, key: str, text: str) -> None:
    """Keep a result. It appears whole or not at all, whoever else writes there."""
    cache.mkdir(parents=True, exist_ok=True)
    part = cache / f"{key}.{os.getpid()}.part"
    part.write_text(text, encoding="utf-8")
    part.replace(cache / f"{key}.json")
