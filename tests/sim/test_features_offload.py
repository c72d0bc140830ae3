"""KV offload: preempted caches go to the host's memory and come back, and none stays there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blink.model import hardware, llm
from blink.model.metrics import Objectives, summarise
from blink.model.offload import KvOffload
from blink.model.parallel import ONE_GPU, TensorParallel
from blink.model.policy import OffloadPool
from blink.model.record import STEP_DECODE, RunRecord
from blink.model.setup import FaultSetup, RunSetup
from blink.model.speculation import Speculation
from blink.testing.invariants import violations
from tests.setups import SYSTEMS, poisson, run, run_setup, varied
from tests.sim.test_fast_forward import differences
from tests.sim.test_features_chunks import chunked
from tests.sim.test_features_prefix import conversations

LLAMA, H100 = llm.lookup("llama3-8b"), hardware.gpu("H100")
ROOMY = KvOffload.of(64e9, H100, (LLAMA,), 16, ONE_GPU, 10_000)


def pressed(system: str, **changes: object) -> RunSetup:
    """Far more answers than the cache holds to their end."""
    setup = run_setup(
        system, workload=poisson(30, 40.0, inputs=500, outputs=600), kv_blocks_total=600
    )
    return replace(setup, **changes)  # type: ignore[arg-type]


def e2e_ms(record: RunRecord) -> float:
    value = summarise(record, Objectives())["e2e_ms"]["mean"]
    assert isinstance(value, float)
    return value


def test_a_copy_takes_its_bytes_over_the_link() -> None:
    """16 tokens of Llama-3 8B are 2 MiB; PCIe 5 carries 50 GB/s here."""
    assert ROOMY.copy_ns(100) == 10_000 + round(100 * 2 * 1024 * 1024 / 50e9 * 1e9)
    assert ROOMY.blocks_total == int(64e9 // (2 * 1024 * 1024))
    two = KvOffload.of(64e9, H100, (LLAMA,), 16, TensorParallel(2), 10_000)
    assert two.block_ns == ROOMY.block_ns / 2, "each GPU copies its half over its own link"
    assert two.blocks_total == ROOMY.blocks_total, "in all they need as much room"


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_is_copied_is_not_computed_again(system: str) -> None:
    without, offloaded = run(pressed(system)), run(pressed(system, kv_offload=ROOMY))
    assert violations(offloaded) == []
    counters = offloaded.counters
    assert without.counters["preemptions"] > 0 < counters["preemptions"]
    assert counters["kv_offload_blocks_out"] == counters["kv_offload_blocks_in"] > 0
    prompts = offloaded.requests.input_tokens.sum()
    computed = offloaded.steps.prefill_tokens.sum()
    assert computed < without.steps.prefill_tokens.sum()
    if system == "vllm":  # no padding
        assert computed == prompts
    assert np.array_equal(offloaded.requests.output_tokens, without.requests.output_tokens)
    assert e2e_ms(offloaded) < e2e_ms(without)


@pytest.mark.parametrize("system", SYSTEMS)
def test_no_room_is_as_no_offload(system: str) -> None:
    full = run(pressed(system, kv_offload=replace(ROOMY, blocks_total=1)))
    assert full.counters["kv_offload_refused"] == full.counters["preemptions"] > 0
    found = differences(full, run(pressed(system)))
    assert found == ["kv_offload_blocks_left", "kv_offload_refused"]


def test_the_next_step_waits_for_the_copies() -> None:
    slow = replace(ROOMY, latency_ns=50_000_000)
    for system in ("blink", "vllm"):
        record = run(pressed(system, kv_offload=slow))
        steps = record.steps
        gaps = steps.start_ns[1:] - steps.end_ns[:-1]
        copies = record.counters["preemptions"] * 2
        assert (gaps >= 50_000_000).sum() >= copies / 4, "several copies may share a gap"
        assert gaps.sum() >= copies * 50_000_000


@settings(max_examples=50)
@given(
    system=st.sampled_from(SYSTEMS),
    seed=st.integers(0, 10_000),
    room=st.sampled_from([0, 100, 10_000]),
    window=st.sampled_from([2, 120]),
    prefixes=st.booleans(),
    chunks=st.booleans(),
    drafts=st.booleans(),
    leaving=st.booleans(),
    impatient=st.booleans(),
)
def test_offload_keeps_every_invariant_whatever_happens(
    system: str,
    seed: int,
    room: int,
    window: int,
    prefixes: bool,
    chunks: bool,
    drafts: bool,
    leaving: bool,
    impatient: bool,
) -> None:
    """Clients who leave while their cache lies on the host, and all other features beside it."""
    setup = run_setup(
        system,
        seed=seed,
        workload=conversations(30, 40.0, seed=seed) if prefixes else varied(40, 40.0, seed=seed),
        prefix_caching=prefixes,
        kv_blocks_total=400,
        window_launches_max=window,
        kv_offload=replace(ROOMY, blocks_total=room),
        speculation=Speculation(3, 0.6) if drafts else None,
        faults=FaultSetup(
            cancel_fraction=0.4 * leaving,
            cancel_after_tokens_max=50,
            timeout_fraction=0.3 * impatient,
            timeout_after_ns=700_000_000,
        ),
    )
    setup = chunked(setup, 500) if chunks else setup
    fast, slow = run(setup), run(replace(setup, fast_forward=False))
    assert differences(fast, slow) == []
    assert violations(fast) == []


def test_the_pool_takes_whole_caches_or_none() -> None:
    pool = OffloadPool(10)
    assert pool.put(1, 6) and not pool.put(2, 5)
    assert (pool.holds(1), pool.holds(2), pool.refused) == (True, False, 1)
    assert (pool.drop(1), pool.drop(1), pool.blocks_free) == (6, 0, 10)


def test_a_cache_left_behind_is_found() -> None:
    record = run(pressed("blink", kv_offload=ROOMY))
    assert (record.steps.kind == STEP_DECODE).any()
    record.counters["kv_offload_blocks_left"] = 3
    assert [each.partition(":")[0] for each in violations(record)] == ["KV"]
