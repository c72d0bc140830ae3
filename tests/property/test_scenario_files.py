"""Scenarios at random: what is written is read back, and no document, however odd, is a crash."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.model.errors import Problem, ScenarioError
from blink.model.scenario import (
    Scenario,
    expand,
    load_scenario,
    parse_scenario,
    resolved,
    resolved_toml,
)
from blink.model.scenario.vocabulary import json_schema

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
SETTINGS = st.dictionaries(TEXT, st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | TEXT)

GOOD = st.fixed_dictionaries(
    {
        "title": TEXT,
        "question": TEXT.map(lambda text: text + "?"),
        "model": TEXT,
        "workload": st.fixed_dictionaries(
            {
                "kind": st.just("poisson"),
                "rate": st.floats(1e-300, 1e300) | st.integers(1, 9),
                "requests": st.integers(1, 9),
                "lengths": st.fixed_dictionaries(
                    {
                        "kind": st.just("constant"),
                        "input_tokens": st.integers(1, 9),
                        "output_tokens": st.integers(1, 9),
                    }
                ),
            }
        ),
    },
    optional={
        "seed": st.integers(0, 1 << 62),
        "systems": st.just(["vllm", "blink"]),
        "control_plane": st.fixed_dictionaries({"vllm": SETTINGS}),
        "points": st.just([{"label": "a", "set": {"seed": 3}}, {"set": {"workload.rate": 0.5}}]),
        "faults": st.just([{"kind": "cancel", "fraction": 1, "after_tokens_max": 1}]),
        "slo": st.fixed_dictionaries({"ttft_ms": st.floats(1e-3, 1e9)}),
    },
)

KEYS = sorted(
    {"workload", "kind", "rate", "lengths", "set", "x"}
    | set(json_schema(Scenario)["properties"])
    | {
        key
        for each in json_schema(Scenario)["$defs"].values()
        for key in each.get("properties", {})
    }
)
VALUES = st.recursive(
    st.booleans()
    | st.integers(-3, 1 << 65)
    | st.floats()
    | st.sampled_from(["poisson", "trace", "table", "cancel", "possion", "blink", ""])
    | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=25,
)


@given(GOOD)
def test_what_is_written_is_read_back(document: dict[str, Any]) -> None:
    scenario = parse_scenario(document)
    written = resolved_toml(scenario)
    assert tomllib.loads(written) == resolved(scenario)
    assert parse_scenario(tomllib.loads(written)) == scenario
    assert len(expand(scenario)) == max(1, len(document.get("points", [])))


@given(GOOD, st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6))
def test_an_odd_document_is_a_scenario_or_a_list_of_problems(
    good: dict[str, Any], odd: dict[str, Any]
) -> None:
    scenario: Scenario | None = None
    problems: tuple[Problem, ...] = ()
    try:
        scenario = parse_scenario(good | odd)
    except ScenarioError as error:
        problems = error.problems
    if scenario is None:
        assert problems
        assert all("\n" not in str(problem) for problem in problems)
        assert all(problem.message and problem.key for problem in problems)
    else:
        assert parse_scenario(resolved(scenario)) == scenario


@given(
    st.lists(
        st.tuples(
            st.sampled_from(KEYS), st.sampled_from(["", ".kind", ".0", ".0.kind", ".x.y"]), TEXT
        ),
        max_size=4,
    )
)
def test_odd_overrides_are_problems(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[str, str, str]]
) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "good.toml"
    path.write_text(
        'title = "t"\nquestion = "q?"\nmodel = "m"\n[workload]\nkind = "poisson"\nrate = 1\n'
        'requests = 1\nlengths = { kind = "constant", input_tokens = 1, output_tokens = 1 }\n'
    )
    problems: tuple[Problem, ...] = ()
    try:
        load_scenario(path, [f"{key}{tail}={value}" for key, tail, value in parts])
    except ScenarioError as error:
        problems = error.problems
    assert all(str(problem).startswith(("--set ", str(path))) for problem in problems)
