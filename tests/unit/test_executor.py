"""Sweeps: on one core, on several and on Ray the same bytes; kept, resumed, never mistaken."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blink.model.errors import BackendUnavailable, BadInput
from blink.model.metrics import Objectives
from blink.model.record import RunRecord
from blink.plan import executor
from blink.plan.executor import Job, TimeLeft, execute_jobs, key_of
from tests.setups import run_setup


def jobs_of(count: int = 3) -> list[Job]:
    """Some jobs that differ in the seed alone."""
    return [Job(replace(run_setup(), seed=seed), Objectives(ttft_ms=200)) for seed in range(count)]


def as_bytes(results: list[dict[str, Any]]) -> bytes:
    return json.dumps(results).encode()


def requests_of(record: RunRecord, job: Job) -> dict[str, Any]:
    return {"requests": len(record.requests), "of": job.extra.get("of", "nobody")}


def test_one_process_and_two_give_the_same_bytes() -> None:
    jobs = jobs_of()
    assert as_bytes(execute_jobs(jobs, workers=1)) == as_bytes(execute_jobs(jobs, workers=2))


def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    jobs = jobs_of()
    seen: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute_jobs(jobs, workers=1, cache=tmp_path, progress=stop)
    found = execute_jobs(
        jobs, workers=1, cache=tmp_path, progress=lambda *counts: seen.append(counts)
    )
    assert seen == [(2, 3), (3, 3)]
    assert as_bytes(found) == as_bytes(execute_jobs(jobs, workers=1))


def test_a_result_that_was_cut_off_is_computed_again(tmp_path: Path) -> None:
    [job] = jobs_of(1)
    [fresh] = execute_jobs([job], cache=tmp_path)
    [kept] = tmp_path.glob("*.json")
    kept.write_text(kept.read_text()[:40])
    assert execute_jobs([job], cache=tmp_path) == [fresh]
    assert json.loads(kept.read_text()) == fresh


def test_equal_jobs_run_once_and_both_are_answered() -> None:
    [job] = jobs_of(1)
    counts: list[tuple[int, int]] = []
    first, second = execute_jobs([job, job], progress=lambda *each: counts.append(each))
    assert first == second and counts[-1] == (1, 1)


@pytest.mark.parametrize(
    "other",
    [
        lambda job: replace(job, setup=replace(job.setup, seed=9)),
        lambda job: replace(job, objectives=Objectives(ttft_ms=201)),
        lambda job: replace(job, extra={"of": "somebody"}),
        lambda job: replace(
            job,
            setup=replace(
                job.setup,
                workload=replace(
                    job.setup.workload, output_tokens=job.setup.workload.output_tokens + 1
                ),
            ),
        ),
        lambda job: replace(job, setup=replace(job.setup, gpu=replace(job.setup.gpu, scan_ns=1))),
    ],
    ids=["seed", "objective", "extra", "lengths", "constant"],
)
def test_what_differs_in_anything_has_another_key(other: Any) -> None:
    [job] = jobs_of(1)
    assert key_of(job) == key_of(jobs_of(1)[0])
    assert key_of(other(job)) != key_of(job)


def test_another_measure_and_other_code_have_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    [job] = jobs_of(1)
    assert key_of(job) != key_of(job, requests_of)
    before = key_of(job)
    monkeypatch.setattr(executor, "code_id", lambda: "other code")
    assert key_of(job) != before


def test_it_measures_what_it_is_asked_for() -> None:
    job = Job(run_setup(), extra={"of": "a test"})
    count = len(job.setup.workload.arrival_ns)
    assert execute_jobs([job], measure=requests_of) == [{"requests": count, "of": "a test"}]


def test_the_time_left_follows_from_the_pace() -> None:
    said: list[str] = []
    now = iter([0.0, 0.0, 0.5, 10.0, 20.0])
    left = TimeLeft("runs", said.append, lambda: next(now))
    for done in (2, 3, 4, 6):
        left(done, 6)
    assert said == [
        "runs: 2 of 6 from the cache\n",
        "runs: 4 of 6, 10 s left\n",
        "runs: 6 of 6, 20.0 s\n",
    ]


def test_ray_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BackendUnavailable, match="blink-twin\\[ray\\]"):
        execute_jobs(jobs_of(1), where="ray")


# --- a real Ray ------------------------------------------------------------------------------


@pytest.fixture
def ray() -> Any:
    """The library; only CI may not do without."""
    if os.environ.get("CI"):
        return importlib.import_module("ray")
    return pytest.importorskip("ray", reason="Ray is not installed: pip install 'blink-twin[ray]'")


@pytest.mark.usefixtures("ray")
def test_a_cluster_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    script = (
        "from blink.plan.executor import execute_jobs, Job\n"
        "from tests.setups import run_setup\n"
        "execute_jobs([Job(run_setup())], where='ray')\n"
    )
    kept = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**kept, "RAY_TMPDIR": str(tmp_path)},
        check=False,
    )
    assert BadInput.__name__ in done.stderr.splitlines()[-1]
    assert "ray start --head" in done.stderr


def test_ray_gives_the_same_bytes(ray: Any) -> None:
    jobs = jobs_of()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        found = execute_jobs(jobs, where="ray")
    finally:
        ray.shutdown()
    assert as_bytes(found) == as_bytes(execute_jobs(jobs, workers=1))
