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
from blink.plan.pages import is_plan

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted(path for path in (ROOT / "specs").rglob("*.toml") if not is_plan(path))

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
    found = {
        (str(each.where).removeprefix(f"{path}"), each.key): each.message
        for each in problems_of(path)
    }
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
        ("seed=true", "seed", "must be a whole number, is true"),
        ("seed=1.5", "seed", "must be a whole number, is 1.5"),
        ("seed=-1", "seed", "must be at least 0, is -1"),
        ("systems=[]", "systems", "must not be empty"),
        ("systems=vllm,vllm", "systems", 'names "vllm" twice'),
        ("schema=2", "schema", "must be one of 1, is 2"),
        ("hardware=3", "hardware", "must be a table, is 3"),
        ("faults=3", "faults", "must be an array, is 3"),
        (
            'faults=[{ kind = "delayed_visibility", extra_ns_max = 1 }, '
            '{ kind = "delayed_visibility", extra_ns_max = 2 }]',
            "faults",
            'has the kind "delayed_visibility" twice',
        ),
        ("faults=[3]", "faults.0", "must be a table, is 3"),
        ('model=""', "model", "must not be empty"),
        ("slo.ttft_ms=nan", "slo.ttft_ms", "must be finite, is nan"),
        ("slo.ttft_ms=fast", "slo.ttft_ms", 'must be a number, is the text "fast"'),
        ("ring.slots=5000", "ring.slots", "must be at most 4096, is 5000"),
        (
            "engine.window_launches_max=121",
            "engine.window_launches_max",
            "must be at most 120, is 121",
        ),
        (
            "workload={ requests = 3 }",
            "workload.kind",
            "missing: bursts, closed_loop, constant, poisson, trace",
        ),
        (
            "control_plane.vllm.step_host_ns=[1]",
            "control_plane.vllm.step_host_ns",
            "must be a number, text, true or false, is an array",
        ),
        (
            'expect.compare=[{ metric = "ttft.p99", better = "blink", worse = "vllm" }]',
            "expect.compare.0.metric",
            'unknown or unfit metric "ttft.p99"; for example "ttft_ms.p99", "output_tok_s"',
        ),
        (
            'expect.compare=[{ metric = "ttft_ms.p99", better = "vllm", worse = "vllm" }]',
            "expect.compare.0",
            '"vllm" is compared with itself',
        ),
        (
            'expect.bound=[{ metric = "completed", system = "vllm" }]',
            "expect.bound.0",
            'needs "min" or "max"',
        ),
        (
            "front_end={ poll_interval_min_ns = 9, poll_interval_max_ns = 8 }",
            "front_end",
            "poll_interval_max_ns is below poll_interval_min_ns",
        ),
        ("workload.rate.x=1", "workload.rate.x", '"rate" is a value, not a table'),
        ("faults.3.kind=cancel", "faults.3.kind", "there is no element 3 of 1"),
        ("seed", "", "must be KEY=VALUE"),
        ("a b=3", "", '"a b" is not a dotted key'),
        ("sweep={ seed = [1, -1] }", "sweep.seed.1", "seed = -1: must be at least 0, is -1"),
    ],
)
def test_one_wrong_override_is_one_plain_line(
    write: Any, change: str, key: str, message: str
) -> None:
    problem = only_problem(write(GOOD), change)
    assert (problem.where, problem.key, problem.message) == (f"--set {change}", key, message)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ('kind = "poisson", rate = 1', 'needs "requests" or "duration_s", or it never ends'),
        ('kind = "bursts", rate = 1, requests = 1, on_s = 1', '"on_s" and "off_s" belong together'),
        (
            'kind = "bursts", rate = 1, requests = 1',
            'needs exactly one of "cv", "on_s" with "off_s", or "table"',
        ),
        (
            'kind = "bursts", rate = 1, requests = 1, cv = 2, table = "azure2023_conv"',
            'needs exactly one of "cv", "on_s" with "off_s", or "table"',
        ),
    ],
)
def test_keys_of_a_workload_that_are_wrong_together(
    write: Any, workload: str, message: str
) -> None:
    lengths = 'lengths = { kind = "constant", input_tokens = 1, output_tokens = 1 }'
    problem = only_problem(write(GOOD), f"workload={{ {workload}, {lengths} }}")
    assert (problem.key, problem.message) == ("workload", message)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a = 1\nb =\n", 2, "not TOML: invalid value (column 4)"),
        ("a = 1\na = 2\n", 2, "not TOML: cannot overwrite a value (column 6)"),
        ("a = [1,\n2", 2, "not TOML: unclosed array"),
    ],
)
def test_malformed_toml_is_one_line(write: Any, text: str, line: int, message: str) -> None:
    path = write(text)
    problem = only_problem(path)
    assert (problem.where, problem.message) == (f"{path}:{line}", message)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert str(only_problem(missing)) == f"{missing}: there is no such file"
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"a = 1\n\xff")
    assert str(only_problem(binary)) == f"{binary}: not UTF-8 text: byte 6"
    assert str(only_problem(tmp_path)).startswith(f"{tmp_path}: cannot be read")


def test_a_bad_override_is_reported_with_the_file_s_problems(write: Any) -> None:
    path = write(GOOD.replace("rate = 7", "rate = 0"))
    places = [problem.where for problem in problems_of(path, "x", "seed=a")]
    assert places == ["--set x", "--set seed=a", f"{path}:9"]


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("workload.rate=2.5", lambda s: s.workload.rate == 2.5),
        ("workload.rate=3", lambda s: s.workload.rate == 3.0),
        ("systems=vllm, sglang", lambda s: s.systems == ("vllm", "sglang")),
        ('systems=["vllm"]', lambda s: s.systems == ("vllm",)),
        ("model=some/config.json", lambda s: s.model == "some/config.json"),
        ("title=a = b", lambda s: s.title == "a = b"),
        ("faults.0.fraction=1", lambda s: s.faults[0].fraction == 1.0),
        ("faults=[]", lambda s: s.faults == ()),
        (
            "control_plane.vllm.step_host_ns=5",
            lambda s: s.control_plane["vllm"] == {"step_host_ns": 5},
        ),
        ("engine.fast_forward=false", lambda s: s.engine.fast_forward is False),
    ],
)
def test_overrides(write: Any, override: str, read: Any) -> None:
    assert read(load_scenario(write(GOOD), [override]))


def test_the_last_override_wins(write: Any) -> None:
    assert load_scenario(write(GOOD), ["seed=1", "seed=2"]).seed == 2


def test_setting_a_trace_replaces_a_synthetic_workload(write: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n")
    overrides = ["workload.requests=5", f"workload.trace={trace}", "workload.time_scale=0.5"]
    workload = load_scenario(write(GOOD), overrides).workload
    assert workload == TraceWorkload(trace=str(trace), requests=5, time_scale=0.5)


def test_a_trace_in_a_file_counts_from_the_file_s_folder(write: Any, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n")
    text = GOOD[: GOOD.index("[workload]")] + '[workload]\nkind = "trace"\ntrace = "trace.csv"\n'
    workload = load_scenario(write(text)).workload
    assert isinstance(workload, TraceWorkload)
    assert workload.trace == str(tmp_path / "trace.csv")
    missing = only_problem(write(text.replace("trace.csv", "none.csv")))
    assert missing.where.endswith("spec.toml:9")
    assert missing.message == f"there is no trace file {tmp_path / 'none.csv'}"


def test_a_sweep_is_its_grid_times_its_points(write: Any) -> None:
    sweep = """
[sweep]
"workload.rate" = [1, 2.5]
seed = [3, 4]
[[points]]
label = "short"
set = { "workload.requests" = 2 }
[[points]]
set = { "workload.lengths.output_tokens" = 9 }
"""
    points = expand(load_scenario(write(GOOD + sweep)))
    assert [point.label for point in points[:4]] == [
        "short, workload.rate=1, seed=3",
        "short, workload.rate=1, seed=4",
        "short, workload.rate=2.5, seed=3",
        "short, workload.rate=2.5, seed=4",
    ]
    assert points[4].label == "workload.lengths.output_tokens=9, workload.rate=1, seed=3"
    assert [point.scenario.seed for point in points[:2]] == [3, 4]
    assert all(expand(point.scenario)[0].scenario == point.scenario for point in points)
    assert len(points) == 8


def test_settings_of_a_sweep_that_are_wrong_only_together(write: Any) -> None:
    front_end = "[front_end]\npoll_interval_min_ns = 5\npoll_interval_max_ns = 50\n"
    grid = '"front_end.poll_interval_min_ns" = [40]\n"front_end.poll_interval_max_ns" = [30]\n'
    scenario = load_scenario(write(f"{GOOD}{front_end}[sweep]\n{grid}"))
    with pytest.raises(ScenarioError, match="poll_interval_max_ns is below"):
        expand(scenario)


def test_without_a_sweep_there_is_one_point(write: Any) -> None:
    scenario = load_scenario(write(GOOD))
    [point] = expand(scenario)
    assert (point.label, point.settings, point.scenario) == ("", {}, scenario)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_spec_loads_and_round_trips(path: Path) -> None:
    scenario = load_scenario(path)
    assert len(expand(scenario)) >= 1
    assert_round_trips(scenario)


def assert_round_trips(scenario: Scenario) -> None:
    data = resolved(scenario)
    assert parse_scenario(data) == scenario
    assert json.loads(json.dumps(data)) == data
    assert tomllib.loads(resolved_toml(scenario)) == data


def test_parsing_data_reports_all_problems_too() -> None:
    with pytest.raises(ScenarioError, match="title: missing") as caught:
        parse_scenario({"schema": 1, "seed": "x"}, "a record")
    assert len(caught.value.problems) == 5
    assert {problem.where for problem in caught.value.problems} == {"a record"}


def test_the_json_schema_on_disk_is_the_code_s() -> None:
    on_disk = (ROOT / "blink.schema.json").read_text(encoding="utf-8")
    assert on_disk == schema_text(Scenario, "blink.model.scenario.schema_json"), "run `make gen`"


def test_the_json_schema_describes_every_section() -> None:
    schema = json.loads(schema_text(Scenario, "blink.model.scenario.schema_json"))
    assert set(Scenario.model_fields) - {"schema_version"} <= set(schema["properties"])
    assert "schema" in schema["properties"]
    assert schema["additionalProperties"] is False
