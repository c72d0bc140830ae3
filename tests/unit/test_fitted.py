"""Fitted profiles: read strictly, put under a run, and never believed outside their range."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink.model import fitted, hardware
from blink.model.errors import BadInput
from blink.model.fitted import FittedProfile, apply, constant_of, find, with_constants
from blink.model.interference import Interference, Neighbour, host_pressure
from blink.model.metrics import Objectives, summarise
from blink.model.setup import RunSetup
from blink.model.step_table import step_time
from blink.plan.table import extrapolated_lines
from tests.setups import NOISY, poisson, run, run_setup

HASH = "0" * 64


def document(**changes: Any) -> dict[str, Any]:
    """A complete profile; ``changes`` replace its parts."""
    constant = {"low": 0.5, "high": 0.9, "before": 0.92, "unit": "ratio", "method": "Jacobian"}
    found: dict[str, Any] = {
        "schema": 1,
        "kind": "fitted",
        "name": "mine",
        "date": "2026-12-07",
        "commit": "0123456789ab",
        "command": "blink calibrate result.json",
        "gpu": "h200-sxm-141gb",
        "model": "llama-3-8b",
        "system": "vllm",
        "constants": {
            "engine.memory_efficiency": constant | {"value": 0.7},
            "plane.step_host_ns": constant | {"value": 2_000_000.4, "unit": "ns/step"},
            "interference.queue_factor": constant | {"value": 0.5},
        },
        "not_fitted": {"engine.kernel_ns": "no observed figure tells it"},
        "range": {
            "batch": {"low": 1, "high": 64},
            "context_tokens": {"low": 500, "high": 2000},
            "prefill_tokens": {"low": 0, "high": 8192},
            "prompt_tokens": {"low": 500, "high": 1500},
            "rate_req_s": {"low": 5, "high": 12},
            "hosts": [{"host": "h200-vm"}],
        },
        "runs": [
            {
                "run": "7 req/s",
                "condition": "isolated",
                "file": "result.json",
                "sha256": HASH,
                "requests": 60,
                "figures": {"ttft_ms.mean": {"measured": 50.0, "predicted": 51.0, "error": 0.02}},
            }
        ],
    }
    return found | changes


def example(**changes: Any) -> FittedProfile:
    return FittedProfile.model_validate_json(json.dumps(document(**changes)))


def served(system: str = "vllm", **changes: Any) -> RunSetup:
    parts: dict[str, Any] = {
        "gpu": hardware.gpu("H200"),
        "host": hardware.host("h200-vm"),
        "workload": poisson(60, 7.0, seed=3),
    }
    return run_setup(system, **(parts | changes))


def written(tmp_path: Path, found: dict[str, Any]) -> str:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(found))
    return str(path)


# --- the file --------------------------------------------------------------------------------


def test_what_is_written_reads_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(example().text())
    assert find(str(path)) == example()


Broken = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda d: d.pop("range"), "range: missing"),
        (lambda d: d["range"]["batch"].update(low=99), "range.batch: low 99 is above high 64"),
        (lambda d: d["range"].update(hosts=[]), "range.hosts"),
        (lambda d: d.update(colour="red"), "colour: unknown key"),
        (lambda d: d["constants"].clear(), "constants"),
        (
            lambda d: d["constants"].update({"engine.speed": d["constants"].popitem()[1]}),
            "constants.engine.speed: the twin has no such constant",
        ),
        (
            lambda d: d["constants"].update({"plane.engine": d["constants"].popitem()[1]}),
            "constants.plane.engine: the twin has no such constant",
        ),
        (lambda d: d["runs"][0].update(sha256="abc"), "runs.0.sha256"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, break_it: Broken, said: str) -> None:
    found = document()
    break_it(found)
    with pytest.raises(BadInput) as refused:
        find(written(tmp_path, found))
    assert said in str(refused.value) and len(str(refused.value).splitlines()) == 1


def test_other_files_are_not_fitted_profiles(tmp_path: Path) -> None:
    assert find("h200_null") is None
    assert find(written(tmp_path, {"schema": 1})) is None


# --- under a run -----------------------------------------------------------------------------


def test_every_constant_goes_where_its_name_says() -> None:
    made = apply(served(), example())
    assert step_time(made).engine.memory_efficiency == 0.7
    assert made.plane.step_host_ns == 2_000_000
    assert made.interference.queue_factor == 0.5
    assert made.profile == "mine"
    assert made.plane.provenance["step_host_ns"].source == "profile mine, fitted on 2026-12-07"
    assert step_time(made).engine.provenance["memory_efficiency"].value == 0.7


def test_greedy_sampling_stays_greedy() -> None:
    plane = served().plane.with_overrides({"engine": "vllm+greedy"})
    greedy = step_time(served(plane=plane)).engine.sampler_bytes_per_logit
    made = with_constants(served(plane=plane), {"engine.kernel_ns": 5000}, "test")
    assert step_time(made).engine.sampler_bytes_per_logit == greedy
    assert constant_of(made, "engine.kernel_ns") == (5000, "ns/kernel")


def test_the_factors_scale_what_neighbours_add_and_nothing_else() -> None:
    setup = served(noisy=True)
    plain = host_pressure(setup.host, setup.plane, setup.interference)
    factors = replace(setup.interference, queue_factor=0.5, memory_factor=2.0)
    scaled = host_pressure(setup.host, setup.plane, factors)
    assert scaled.stall_mean_ns == pytest.approx(0.5 * plain.stall_mean_ns)
    assert scaled.work_inflation - 1 == pytest.approx(2 * (plain.work_inflation - 1))
    quiet = host_pressure(setup.host, setup.plane, Interference(queue_factor=9, memory_factor=9))
    assert (quiet.stall_mean_ns, quiet.work_inflation) == (0, 1)


def test_another_gpu_is_refused() -> None:
    with pytest.raises(BadInput, match=r"set hardware\.gpu=h200-sxm-141gb"):
        apply(served(gpu=hardware.gpu("H100 96GB")), example())


# --- outside the range -----------------------------------------------------------------------


def outside(setup: RunSetup, **changes: Any) -> tuple[int, int, list[str]]:
    """How many steps are outside, of how many, and what is said."""
    record = run(apply(setup, example(**changes)))
    assert record.assumptions["profile"] == "mine"
    steps = record.counters["steps_extrapolated"]
    return steps, len(record.steps), record.assumptions["extrapolated"]


def test_a_run_inside_the_range_carries_no_flag() -> None:
    assert outside(served())[::2] == (0, [])


@pytest.mark.parametrize(
    ("part", "span", "said"),
    [
        ("batch", (1, 2), "steps decode more or fewer sequences: observed 1 to 2"),
        ("context_tokens", (0, 1050), "steps decode at another mean context: observed 0 to 1050"),
        ("prefill_tokens", (0, 100), "steps prefill more tokens: observed 0 to 100 tokens"),
    ],
)
def test_steps_outside_the_range_are_counted(
    part: str, span: tuple[float, float], said: str
) -> None:
    known = document()["range"] | {part: {"low": span[0], "high": span[1]}}
    count, of, lines = outside(served(), range=known)
    assert 0 < count < of
    assert [line.endswith(said) or f"{said} " in line for line in lines] == [True]
    assert lines[0].startswith(f"{count} of {of} ")


def test_prompts_rates_and_hosts_outside_the_range_are_said() -> None:
    workload = poisson(60, 30.0, seed=3, inputs=1600)
    _, _, lines = outside(served(workload=workload, interference=NOISY, condition="interfered"))
    said = " | ".join(lines)
    assert "60 of 60 prompts have another length: observed 500 to 1500 tokens" in said
    assert "req/s: observed 5 to 12 req/s" in said
    assert "host condition (h200-vm, 45 pbzip2, 45 ninja): observed (h200-vm, quiet)" in said


def test_fewer_threads_of_the_observed_kinds_are_inside() -> None:
    hosts = [{"host": "h200-vm", "neighbours": {"pbzip2": 45, "ninja": 45}}]
    known = document()["range"] | {"hosts": hosts, "batch": {"low": 1, "high": 1000}}
    few = Interference((Neighbour("pbzip2", 10), Neighbour("ninja", 10)))
    many = Interference((Neighbour("pbzip2", 46), Neighbour("ninja", 10)))
    pinned = replace(few, pinned_cores=6)
    for interference, flagged in ((few, False), (many, True), (pinned, True)):
        _, _, lines = outside(served(interference=interference), range=known)
        assert any(line.startswith("host condition") for line in lines) == flagged


@pytest.mark.parametrize("change", [{"system": "sglang"}, {"model": "phi-4"}])
def test_of_another_system_or_model_every_step_is_outside(change: dict[str, str]) -> None:
    count, of, lines = outside(served(), **change)
    [(what, name)] = change.items()
    mine = {"system": "vllm", "model": "llama-3-8b"}[what]
    assert count == of
    assert lines == [f"{what} {mine}: mine was fitted to {name} only"]


def test_another_systems_constants_are_left_alone() -> None:
    assert apply(served("blink"), example()).efficiency is None


def test_the_table_names_each_extrapolation() -> None:
    record = run(apply(served(workload=poisson(20, 50.0)), example()))
    lines = extrapolated_lines([record])
    assert lines and all("EXTRAPOLATED beyond profile mine: " in line for line in lines)
    assert summarise(record, Objectives())["completed"] == 20


def test_skipping_ahead_counts_the_same() -> None:
    known = document()["range"] | {"batch": {"low": 1, "high": 2}}
    counts = {outside(served(fast_forward=fast), range=known)[:2] for fast in (True, False)}
    assert len(counts) == 1 and np.min(list(counts)) > 0


def test_a_file_that_is_gone_is_no_fitted_profile(tmp_path: Path) -> None:
    assert not fitted.is_fitted(str(tmp_path / "gone.json"))
    assert fitted.is_fitted(written(tmp_path, document()))
