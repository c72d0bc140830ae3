"""Prompts in chunks: the same tokens, the same pairs, and decode steps between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blink.model.metrics import Objectives, summarise
from blink.model.policy import Action, Limits, decide_chunk, plan_chunks
from blink.model.record import STEP_PREFILL, RunRecord
from blink.model.setup import FaultSetup, RunSetup
from blink.testing.invariants import violations
from tests.setups import SYSTEMS, poisson, run, run_setup, varied
from tests.sim.test_fast_forward import differences
from tests.sim.test_features_prefix import conversations

INLINE = tuple(system for system in SYSTEMS if system != "vllm")


def chunked(setup: RunSetup, tokens: int) -> RunSetup:
    limits = setup.limits
    most = limits.prefill_tokens_max
    if setup.plane.scheduling == "inline_prefill":
        most = min(most, tokens)
    return replace(setup, limits=replace(limits, prefill_tokens_max=most, chunk_tokens=tokens))


def figure(record: RunRecord, name: str, statistic: str) -> float:
    value = summarise(record, Objectives())[name][statistic]
    assert isinstance(value, float)
    return value


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_chunk_longer_than_every_prompt_changes_nothing(system: str) -> None:
    setup = run_setup(system, workload=varied(50, 12.0))
    longer = replace(setup, limits=replace(setup.limits, chunk_tokens=100_000))
    assert differences(run(setup), run(longer)) == []


@pytest.mark.parametrize("system", INLINE)
def test_a_prompt_of_1019_tokens_is_four_prefills_with_a_decode_step_between_two(
    system: str,
) -> None:
    setup = chunked(run_setup(system, workload=poisson(30, 20.0)), 256)
    record = run(setup)
    assert violations(record) == []
    prefills = record.steps.kind == STEP_PREFILL
    assert prefills.sum() == 4 * 30
    assert set(record.steps.prefill_tokens[prefills].tolist()) == {256}
    behind = prefills[:-1] & prefills[1:]
    alone = record.steps.context_tokens[1:] == 0
    new = np.flatnonzero(behind & ~alone) + 2
    first = set(record.requests.first_step.tolist())
    assert all(int(row) - 2 in first for row in new), "two in a row only for two prompts in a row"


@pytest.mark.parametrize("system", INLINE)
def test_running_answers_wait_less_and_the_prompt_longer(system: str) -> None:
    setup = run_setup(system, workload=poisson(60, 4.0, inputs=4000))
    whole, parts = run(setup), run(chunked(setup, 512))
    assert figure(parts, "itl_ms", "p99") < figure(whole, "itl_ms", "p99") / 2
    assert figure(parts, "ttft_ms", "mean") > figure(whole, "ttft_ms", "mean")


def test_one_prompt_of_vllms_gets_no_more_than_a_chunk_of_a_step() -> None:
    record = run(chunked(run_setup("vllm", workload=poisson(20, 5.0)), 256))
    assert violations(record) == []
    alone = run(chunked(run_setup("vllm", workload=poisson(1, 5.0)), 256))
    assert alone.steps.prefill_tokens[:5].tolist() == [256, 256, 256, 251, 0]
    assert plan_chunks([(1000, 0), (1000, 900)], 500, 256) == plan_chunks(
        [(256, 0), (1000, 900)], 500
    )


@settings(max_examples=50)
@given(
    system=st.sampled_from(SYSTEMS),
    seed=st.integers(0, 10_000),
    rate=st.sampled_from([5.0, 40.0]),
    kv_blocks=st.sampled_from([500, 30_000]),
    chunk=st.sampled_from([64, 500]),
    window=st.sampled_from([2, 10, 120]),
    prefixes=st.booleans(),
    impatient=st.booleans(),
)
def test_chunks_keep_every_invariant_whatever_happens(
    system: str,
    seed: int,
    rate: float,
    kv_blocks: int,
    chunk: int,
    window: int,
    prefixes: bool,
    impatient: bool,
) -> None:
    """Clients who leave amid a prompt, small windows, preemptions, shared prefixes."""
    setup = run_setup(
        system,
        seed=seed,
        workload=conversations(30, rate, seed=seed),
        prefix_caching=prefixes,
        kv_blocks_total=kv_blocks,
        window_launches_max=window,
        faults=FaultSetup(timeout_fraction=0.3 * impatient, timeout_after_ns=700_000_000),
    )
    setup = chunked(setup, chunk)
    fast, slow = run(setup), run(replace(setup, fast_forward=False))
    assert differences(fast, slow) == []
    assert violations(fast) == []


def test_the_policy_takes_turns() -> None:
    assert decide_chunk(0, False, 1) is Action.PREFILL
    assert decide_chunk(0, False, 0) is Action.RELAUNCH
    assert decide_chunk(3, False, 100) is Action.DECODE
    assert decide_chunk(3, True, 100) is Action.PREFILL
    assert decide_chunk(3, True, 1) is Action.DECODE, "the window fits no decode after a chunk"
    assert decide_chunk(3, True, 0) is Action.RELAUNCH
    assert Limits(8, 4, 2048).chunk_tokens is None
