"""Speculative decoding: the same tokens in fewer steps, each sequence at a pace of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blink.model import llm
from blink.model.errors import BadInput, ScenarioError
from blink.model.metrics import Objectives, summarise
from blink.model.policy import KvLedger, LookaheadLedger
from blink.model.record import RunRecord
from blink.model.scenario import parse_scenario
from blink.model.setup import FaultSetup, RunSetup
from blink.model.speculation import Speculation, tokens_of_steps
from blink.model.step_table import step_time
from blink.plan.parquet import read_tables, write_tables
from blink.plan.runner import plan_runs
from blink.testing.invariants import violations
from tests.setups import SYSTEMS, poisson, run, run_setup, varied
from tests.sim.test_fast_forward import differences
from tests.sim.test_features_chunks import chunked
from tests.sim.test_features_prefix import conversations

DRAFT = llm.lookup("llama-3.2-1b")


def speculating(
    system: str = "blink", draft_tokens: int = 4, acceptance: float = 0.7, **changes: Any
) -> RunSetup:
    speculation = Speculation(draft_tokens, acceptance, DRAFT)
    return run_setup(system, speculation=speculation, **changes)


def tpot_ms(record: RunRecord) -> float:
    value = summarise(record, Objectives())["tpot_ms"]["mean"]
    assert isinstance(value, float)
    return value


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("draft_tokens", [1, 4])
def test_the_mean_is_that_of_the_equation(draft_tokens: int, acceptance: float) -> None:
    speculation = Speculation(draft_tokens, acceptance)
    found = tokens_of_steps(speculation, 200_000, np.random.default_rng(1))
    assert sum(found) == 200_000
    assert min(found) >= 1 and max(found) <= draft_tokens + 1
    mean = 200_000 / len(found)
    assert mean == pytest.approx(speculation.tokens_per_step_mean, rel=0.01)


def test_the_last_step_is_cut_where_the_answer_ends() -> None:
    always = Speculation(4, 1.0)
    rng = np.random.default_rng(1)
    assert tokens_of_steps(always, 12, rng) == [5, 5, 2]
    assert tokens_of_steps(always, 0, rng) == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_draft_that_is_never_right_gives_the_same_tokens_later(system: str) -> None:
    plain = run(run_setup(system, workload=varied(40, 4.0)))
    never = run(speculating(system, acceptance=0.0, workload=varied(40, 4.0)))
    assert violations(never) == []
    assert np.array_equal(never.requests.output_tokens, plain.requests.output_tokens)
    assert never.step_tokens is not None and set(never.step_tokens.tolist()) == {1}
    assert never.counters["draft_tokens_kept"] == 0 < never.counters["draft_tokens"]
    assert tpot_ms(never) > tpot_ms(plain)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_good_draft_gives_every_token_in_fewer_steps(system: str) -> None:
    plain = run(run_setup(system, workload=varied(40, 2.0)))
    quick = run(speculating(system, acceptance=0.8, workload=varied(40, 2.0)))
    assert violations(quick) == []
    assert np.array_equal(quick.requests.output_tokens, plain.requests.output_tokens)
    assert len(quick.steps.decodes) < len(plain.steps.decodes) / 2
    assert tpot_ms(quick) < tpot_ms(plain)
    for request in range(40):
        times = quick.token_times_ns(request)
        assert len(times) == quick.requests.output_tokens[request]
        assert (np.diff(times) >= 0).all() and times[-1] == quick.requests.finish_ns[request]


def test_the_pace_of_a_request_is_the_same_under_every_system_and_load() -> None:
    def paces(record: RunRecord) -> dict[int, list[int]]:
        assert record.step_tokens is not None
        ranges, found, at = record.decode_ranges, {}, 0
        for request, steps in zip(ranges.request, ranges.end - ranges.first, strict=True):
            found[int(request)] = record.step_tokens[at : at + steps].tolist()
            at += steps
        return found

    quiet = paces(run(speculating(workload=varied(30, 1.0))))
    assert quiet == paces(run(speculating("vllm", workload=varied(30, 30.0))))


def test_a_step_is_drafts_and_one_verification() -> None:
    setup = speculating(workload=poisson(1, 1.0))
    both, alone = step_time(setup), step_time(replace(setup, speculation=None))
    draft = step_time(replace(setup, speculation=None, llm=DRAFT))
    expected = draft.decode_ns(8, 4000, 4).sum() + alone.verify_ns(40, 40, 4000, 0)
    assert both.decode_ns(8, 4000, 1)[0] == expected
    assert both.prefill_ns(500, 9000) == alone.prefill_ns(500, 9000) + draft.prefill_ns(500, 9000)


@settings(max_examples=50)
@given(
    system=st.sampled_from(SYSTEMS),
    seed=st.integers(0, 10_000),
    rate=st.sampled_from([5.0, 40.0]),
    kv_blocks=st.sampled_from([500, 30_000]),
    draft_tokens=st.integers(1, 6),
    prefixes=st.booleans(),
    chunks=st.booleans(),
    leaving=st.booleans(),
    impatient=st.booleans(),
)
def test_speculation_keeps_every_invariant_whatever_happens(
    system: str,
    seed: int,
    rate: float,
    kv_blocks: int,
    draft_tokens: int,
    prefixes: bool,
    chunks: bool,
    leaving: bool,
    impatient: bool,
) -> None:
    """Preemptions, clients who leave, and the other features beside it."""
    setup = speculating(
        system,
        draft_tokens,
        seed=seed,
        workload=conversations(30, rate, seed=seed),
        prefix_caching=prefixes,
        kv_blocks_total=kv_blocks,
        faults=FaultSetup(
            cancel_fraction=0.4 * leaving,
            cancel_after_tokens_max=50,
            timeout_fraction=0.3 * impatient,
            timeout_after_ns=700_000_000,
        ),
    )
    setup = chunked(setup, 500) if chunks else setup
    record = run(setup)
    assert violations(record) == []
    assert differences(record, run(replace(setup, fast_forward=False))) == []


@given(
    contexts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    steps=st.integers(1, 20),
    phase=st.integers(0, 9),
)
def test_looking_one_token_ahead_is_the_plain_ledger(
    contexts: list[int], steps: int, phase: int
) -> None:
    plain, ahead = KvLedger(80, 4), LookaheadLedger(80, 4, 1)
    for key, context in enumerate(contexts):
        for kv in (plain, ahead):
            kv.admit(key, context)
            kv.start_growing(key, phase)
    for ordinal in range(phase, phase + steps):
        assert ahead.steps_that_fit(ordinal, 1) == plain.steps_that_fit(ordinal, 1)
        assert ahead.blocks_of_step(ordinal) == plain.blocks_of_step(ordinal)
        if not ahead.steps_that_fit(ordinal, 1):
            return
        for kv in (plain, ahead):
            kv.grow(ordinal, 1)
        for key in range(len(contexts)):
            ahead.keep(key, 1)
        assert ahead.blocks_free == plain.blocks_free
    for key in range(len(contexts)):
        end = phase + steps
        assert ahead.release(key, end, growing=True) == plain.release(key, end, growing=True)
    assert ahead.blocks_free == 80


def test_step_tokens_are_written_and_read(tmp_path: Path) -> None:
    record = run(speculating(workload=varied(10, 4.0)))
    write_tables(tmp_path, record)
    found = read_tables(tmp_path)["step_tokens"]
    assert record.step_tokens is not None
    assert np.array_equal(found, record.step_tokens) and found.dtype == np.int8


def test_a_step_without_a_token_is_found() -> None:
    record = run(speculating(workload=varied(10, 4.0)))
    assert record.step_tokens is not None
    record.step_tokens[3] += 1
    assert [each.partition(":")[0] for each in violations(record)] == ["ORDER"]


PAGE: dict[str, object] = {
    "schema": 1,
    "title": "t",
    "question": "q?",
    "model": "llama3-8b",
    "workload": {
        "kind": "poisson",
        "rate": 4.0,
        "requests": 5,
        "lengths": {"kind": "constant", "input_tokens": 100, "output_tokens": 5},
    },
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculation": {"draft_tokens": 3}}, 'draft_tokens needs "acceptance"'),
        (
            {
                "speculation": {
                    "draft_tokens": 3,
                    "acceptance": 0.5,
                    "draft_model": "qwen3-0.6b",
                }
            },
            "speculation.draft_model: qwen3-0.6b has 151,936 tokens",
        ),
        (
            {
                "speculation": {"draft_tokens": 3, "acceptance": 0.5},
                "hardware": {"gpu": "h200", "profile": "h200_torch"},
            },
            "speculation.draft_tokens: hardware.profile",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises((BadInput, ScenarioError), match=message):
        plan_runs(parse_scenario({**PAGE, **changes}))
