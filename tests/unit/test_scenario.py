"""Loading a scenario: what is accepted, and that everything wrong is reported in one pass."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from blink.model.errors import Problem, ScenarioError
from blink.model.scenario import (
    Scenario,
    expand,
    load_scenario,
    parse_scenario,
    resolved,
    resolved_toml,
)
from blink.model.scenario.schema_json import schema_text
from blink.model.scenario.traffic import PoissonWorkload, TraceWorkload

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted((ROOT / "specs").rglob("*.toml"))

GOOD = """\
schema = 1
title = "A scenario"
question = "Is it read?"
systems = ["blink", "vllm"]
model = "llama3-8b"

[workload]
kind = "poisson"
rate = 7
requests = 10
lengths = { kind = "constant", input_tokens = 16, output_tokens = 4 }

[[faults]]
kind = "cancel"
fraction = 0.25
after_tokens_max = 3
"""

BAD = """\
schema = 1
titel = "A scenario"
question = "Is it read."
systems = ["blink", "vlm"]
model = "llama3-8b"
rate = 3

[workload]
kind = "possion"
rate = -7
requests = "ten"
lengths = { kind = "constant", input_tokens = 0 }

[hardware]
gpus = "h200"

[[faults]]
kind = "cancel"
fraction = 1.5

[[faults]]
kind = "meteor"

[sweep]
"workload.rate" = [
  1,
  -2,
]
"workload.rat" = [1]

[control_plane.vlm]
step_host_ns = 3
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str, name: str = "spec.toml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def problems_of(path: Path, *overrides: str) -> list[Problem]:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, overrides)
    assert caught.value.exit_code == 2
    assert all("\n" not in str(problem) for problem in caught.value.problems)
    return list(caught.value.problems)


def only_problem(path: Path, *overrides: str) -> Problem:
    [problem] = problems_of(path, *overrides)
    return problem


def test_a_good_scenario_has_all_defaults_filled_in(write: Any) -> None:
    scenario = load_scenario(write(GOOD))
    assert scenario.systems == ("blink", "vllm")
    assert scenario.conditions == ("isolated",)
    assert isinstance(scenario.workload, PoissonWorkload)
    assert scenario.workload.rate == 7.0
    assert scenario.engine.window_launches_max == 120
    assert "HOST-SILENT" in scenario.expect.invariants


def test_every_problem_is_reported_in_one_pass_with_its_line(write: Any) -> None:
    path = write(BAD)
    found = {(str(each.where).removeprefix(f"{path}"), each.key): each.message
             for each in problems_of(path)}
    expected = {
        ("", "title"): "missing",
        (":2", "titel"): 'unknown key; did you mean "title"?',
        (":3", "question"): "must end with a question mark",
        (":4", "systems.1"): 'unknown value "vlm"; did you mean "vllm"?',
        (":6", "rate"): "unknown key; it belongs to [workload]",
        (":9", "workload.kind"): 'unknown kind "possion"; did you mean "poisson"?',
        (":10", "workload.rate"): "must be above 0, is -7",
        (":11", "workload.requests"): 'must be a whole number, is the text "ten"',
        (":12", "workload.lengths.input_tokens"): "must be at least 1, is 0",
        (":12", "workload.lengths.output_tokens"): "missing",
        (":15", "hardware.gpus"): 'unknown key; did you mean "gpu"?',
        (":17", "faults.0.after_tokens_max"): "missing",
        (":19", "faults.0.fraction"): "must be at most 1, is 1.5",
        (":22", "faults.1.kind"): 'unknown kind "meteor"; known: delayed_visibility, cancel, '
        "client_timeout",
        (":27", 'sweep."workload.rate".1'): "workload.rate = -2: must be above 0, is -2",
        (":29", 'sweep."workload.rat".0'): 'workload.rat = 1: unknown key; did you mean "rate"?',
        (":31", "control_plane.vlm"): 'unknown value "vlm"; did you mean "vllm"?',
    }
    assert found == expected


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        ('seed = true', "seed", "must be a whole number, is true"),
        ('seed = 1.5', "seed", "must be a whole number, is 1.5"),
        ('seed = -1', "seed", "must be at least 0, is -1"),
        ('systems = []', "systems", "must not be empty"),
        ('systems = ["vllm", "vllm"]', "", 'systems names "vllm" twice'),
        ('schema = 2', "schema", "must be one of 1, is 2"),
        ('hardware = 3', "hardware", "must be a table, is 3"),
        ('faults = 3', "faults", "must be an array, is 3"),
        ('faults = [3]', "faults.0", "must be a table, is 3"),
        ('model = ""', "model", "must not be empty"),
        ('slo.ttft_ms = nan', "slo.ttft_ms", "must be finite, is nan"),
        ('slo.ttft_ms = "fast"', "slo.ttft_ms", 'must be a number, is the text "fast"'),
        ('ring.slots = 5000', "ring.slots", "must be at most 4096, is 5000"),
        ('engine.window_launches_max = 121', "engine.window_launches_max",
         "must be at most 120, is 121"),
        ('workload = { requests = 3 }', "workload.kind",
         "missing: poisson, constant, bursts, closed_loop, trace"),
        ('control_plane.vllm.step_host_ns = [1]', "control_plane.vllm.step_host_ns",
         "must be a number, text, true or false, is an array"),
        ('expect.compare = [{ metric = "ttft.p99", better = "blink", worse = "vllm" }]',
         "expect.compare.0.metric",
         'unknown or unfit metric "ttft.p99"; for example "ttft_ms.p99", "output_tok_s"'),
        ('expect.compare = [{ metric = "ttft_ms.p99", better = "vllm", worse = "vllm" }]',
         "expect.compare.0", '"vllm" is compared with itself'),
        ('expect.bound = [{ metric = "completed", system = "vllm" }]',
         "expect.bound.0", 'needs "min" or "max"'),
        ('front_end = { poll_interval_min_ns = 9, poll_interval_max_ns = 8 }',
         "front_end", "poll_interval_max_ns is below poll_interval_min_ns"),
    ],
)
def test_what_is_wrong_with_one_key(write: Any, change: str, key: str, message: str) -> None:
    name = change.split(" ")[0].split(".")[0]
    kept = [line for line in GOOD.splitlines() if not line.startswith(f"{name} =")]
    text = "\n".join(kept)
    if name in ("workload", "faults"):
        text = "\n".join(kept[: kept.index(f"[{name}]" if name == "workload" else "[[faults]]")])
    if name == "faults":
        text = text + "\n"
        change = ""
    problem = only_problem(write(GOOD), *([] if change else []), f"{_override(name, change)}") \
        if False else _problem_of(text, change, write)
    assert (problem.key, problem.message) == (key, message)
