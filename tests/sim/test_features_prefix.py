"""Prefix caching in the twin, in every system, and with Mooncake's hash_ids."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blink.model.errors import BadInput, TraceError
from blink.model.metrics import Objectives, summarise
from blink.model.random import stream_of
from blink.model.record import RunRecord
from blink.model.scenario import Scenario, parse_scenario
from blink.model.setup import FaultSetup
from blink.model.workload import Workload, build_workload, read_trace
from blink.plan.runner import plan_runs
from blink.testing.invariants import violations
from tests.setups import SYSTEMS, run, run_setup, varied
from tests.shared_files import shared_file
from tests.sim.test_fast_forward import differences


def conversations(requests: int, rate: float, *, seed: int = 1, texts: int = 3) -> Workload:
    """Prompts of many lengths that begin with one of a few texts of 1,024 tokens."""
    plain = varied(requests, rate, seed=seed)
    common, rng = 64, np.random.default_rng(seed)
    inputs = plain.input_tokens + 1024
    hashes, own = [], texts * common
    for text, tokens in zip(rng.integers(0, texts, requests), inputs, strict=True):
        more = -(-int(tokens) // 16) - common
        hashes.append((*range(text * common, (text + 1) * common), *range(own, own + more)))
        own += more
    return replace(plain, input_tokens=inputs, prefix_hashes=tuple(hashes), hash_tokens=16)


def mean(record: RunRecord, name: str) -> float:
    value = summarise(record, Objectives())[name]["mean"]
    assert isinstance(value, float)
    return value


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_was_computed_once_is_not_computed_again(system: str) -> None:
    setup = run_setup(system, workload=conversations(60, 6.0))
    without, cached = run(setup), run(replace(setup, prefix_caching=True))
    assert violations(cached) == []
    assert mean(cached, "ttft_ms") < mean(without, "ttft_ms")
    assert cached.steps.prefill_tokens.sum() < without.steps.prefill_tokens.sum()
    hits = cached.counters["prefix_hit_tokens"]
    assert 0 < hits <= 57 * 1024, "the first of each text finds nothing"
    assert "prefix_hit_tokens" not in without.counters
    assert np.array_equal(cached.requests.output_tokens, without.requests.output_tokens)


@pytest.mark.parametrize("system", SYSTEMS)
def test_prompts_that_share_nothing_are_served_as_without(system: str) -> None:
    """But for the time that looking takes, which is set to nothing here."""
    workload = varied(50, 12.0)
    own = tuple((1000 * each, *range(-500 * each - 400, -500 * each)) for each in range(50))
    hashes = tuple(
        each[: -(-int(tokens) // 16)]
        for each, tokens in zip(own, workload.input_tokens, strict=True)
    )
    setup = run_setup(system, workload=replace(workload, prefix_hashes=hashes, hash_tokens=16))
    cached = run(replace(setup, prefix_caching=True))
    assert cached.counters["prefix_hit_tokens"] == 0
    assert cached.steps.prefill_tokens.sum() == run(setup).steps.prefill_tokens.sum()


@settings(max_examples=40)
@given(
    system=st.sampled_from(SYSTEMS),
    seed=st.integers(0, 10_000),
    rate=st.sampled_from([5.0, 40.0]),
    kv_blocks=st.sampled_from([500, 30_000]),
    impatient=st.booleans(),
)
def test_blocks_are_conserved_whatever_happens(
    system: str, seed: int, rate: float, kv_blocks: int, impatient: bool
) -> None:
    """Evictions, preemptions and clients who leave; and skipping ahead changes nothing."""
    setup = run_setup(
        system,
        seed=seed,
        workload=conversations(40, rate, seed=seed),
        prefix_caching=True,
        kv_blocks_total=kv_blocks,
        faults=FaultSetup(timeout_fraction=0.3 * impatient, timeout_after_ns=700_000_000),
    )
    fast, slow = run(setup), run(replace(setup, fast_forward=False))
    assert differences(fast, slow) == []
    assert violations(fast) == []


PAGE = """
schema = 1
title = "t"
question = "q?"
systems = ["blink"]
model = "llama3-8b"
[engine]
prefix_caching = true
{engine}
[workload]
kind = "poisson"
rate = 4.0
requests = 20
lengths = {{ kind = "constant", input_tokens = 100, output_tokens = 5 }}
{workload}
"""


def page(engine: str, workload: str) -> Scenario:
    return parse_scenario(tomllib.loads(PAGE.format(engine=engine, workload=workload)))


@pytest.mark.parametrize(
    ("engine", "workload", "message"),
    [
        ("", "", "engine.prefix_caching: the workload does not say"),
        ("kv_block_tokens = 24", "shared_prefix = { tokens = 64 }", "take a divisor"),
    ],
)
def test_a_workload_that_cannot_share_is_refused(engine: str, workload: str, message: str) -> None:
    scenario = page(engine, workload)
    with pytest.raises(BadInput, match=message):
        plan_runs(scenario)


def test_a_shared_prefix_comes_before_every_prompt() -> None:
    scenario = page("", "shared_prefix = { tokens = 40, count = 2 }")
    workload = build_workload(scenario.workload, stream_of(1))
    assert set(workload.input_tokens.tolist()) == {140}
    assert workload.prefix_hashes is not None
    assert {each[:2] for each in workload.prefix_hashes} == {(0, 1), (2, 3)}
    own = [each for hashes in workload.prefix_hashes for each in hashes[2:]]
    assert len(own) == len(set(own)) == 20 * 7


def test_mooncakes_hashes_are_read_and_follow_their_requests(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 900, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}\n'
        '{"timestamp": 100, "input_length": 5, "output_length": 2, "hash_ids": [3]}\n'
    )
    assert read_trace(path).prefix_hashes == ((3,), (1, 2))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("[1, 2, 3]", "3 hash_ids for a prompt of 600 tokens, which has 2 blocks of 512"),
        ('"x"', 'hash_ids "x" is not an array'),
        ("[1, 2.5]", "is not an array of whole numbers"),
    ],
)
def test_hashes_that_cannot_be_the_prompts_are_refused(
    tmp_path: Path, written: str, message: str
) -> None:
    path = tmp_path / "trace.jsonl"
    entry = '{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": ' + written + "}"
    path.write_text(entry)
    with pytest.raises(TraceError, match=f":1: .*{message}"):
        read_trace(path)


def test_mooncakes_trace_shares_what_its_paper_says() -> None:
    """With a cache that forgets nothing, 37 % of its blocks were there before (counted apart)."""
    trace = read_trace(shared_file("traces/mooncake_conversation_trace.jsonl"))
    assert trace.prefix_hashes is not None
    seen: set[int] = set()
    found = total = 0
    for hashes in trace.prefix_hashes:
        total += len(hashes)
        found += next((i for i, each in enumerate(hashes) if each not in seen), len(hashes))
        seen.update(hashes)
    assert found / total == pytest.approx(105_710 / 288_500)
