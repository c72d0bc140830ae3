"""Advancing many steps at once must give the very times that stepping one by one gives."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blink.model.policy import Limits
from blink.model.record import RunRecord
from blink.model.setup import FaultSetup, FrontEndSetup
from blink.testing.invariants import violations
from tests.setups import SYSTEMS, run, run_setup, varied


def differences(one: RunRecord, other: RunRecord) -> list[str]:
    """Columns and counters in which two records differ."""
    found = []
    for table in ("requests", "steps", "decode_ranges"):
        mine, theirs = getattr(one, table), getattr(other, table)
        found += [
            f"{table}.{each.name}"
            for each in fields(mine)
            if not np.array_equal(getattr(mine, each.name), getattr(theirs, each.name))
        ]
    keys = one.counters.keys() | other.counters.keys()
    return found + [k for k in sorted(keys) if one.counters.get(k) != other.counters.get(k)]


@pytest.mark.parametrize("noisy", [False, True], ids=["quiet", "noisy"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_fast_forward_changes_nothing(system: str, noisy: bool) -> None:
    setup = run_setup(system, noisy=noisy, workload=varied(60, 12.0))
    fast, slow = run(setup), run(replace(setup, fast_forward=False))
    assert differences(fast, slow) == []
    assert violations(fast) == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_fast_forward_changes_nothing_under_kv_pressure(system: str) -> None:
    """Preemption, recomputation and resumption fall on the same steps either way."""
    setup = run_setup(system, workload=varied(60, 40.0), kv_blocks_total=400)
    fast, slow = run(setup), run(replace(setup, fast_forward=False))
    assert fast.counters["preemptions"] > 0, "the test must preempt to mean anything"
    assert differences(fast, slow) == []
    assert violations(fast) == []


@settings(max_examples=40)
@given(
    system=st.sampled_from(SYSTEMS),
    seed=st.integers(0, 10_000),
    rate=st.sampled_from([5.0, 20.0, 80.0]),
    noisy=st.booleans(),
    kv_blocks=st.sampled_from([400, 30_000]),
    impatient=st.booleans(),
    interval_max_ns=st.sampled_from([5_000, 100_000, 5_000_000]),
)
def test_fast_forward_changes_nothing_whatever_happens(
    system: str,
    seed: int,
    rate: float,
    noisy: bool,
    kv_blocks: int,
    impatient: bool,
    interval_max_ns: int,
) -> None:
    """A submission between two polls, or anything else that a test did not think of."""
    setup = run_setup(
        system,
        noisy=noisy,
        seed=seed,
        workload=varied(40, rate, seed=seed),
        kv_blocks_total=kv_blocks,
        front_end=FrontEndSetup(poll_interval_max_ns=interval_max_ns),
        faults=FaultSetup(timeout_fraction=0.3 * impatient, timeout_after_ns=700_000_000),
    )
    fast, slow = run(setup), run(replace(setup, fast_forward=False))
    assert differences(fast, slow) == []
    assert violations(fast) == []


@settings(max_examples=60)
@given(
    system=st.sampled_from(SYSTEMS),
    seed=st.integers(0, 10_000),
    clients=st.sampled_from([None, 1, 4, 12]),
    leaving=st.sampled_from([0.0, 0.5]),
    noisy=st.booleans(),
    batch_max=st.sampled_from([2, 8, 64]),
)
def test_a_client_who_acts_on_an_answer_does_so_on_time(
    system: str, seed: int, clients: int | None, leaving: float, noisy: bool, batch_max: int
) -> None:
    """A closed loop asks again, and a client leaves, when an answer comes, not when a segment ends.

    An overlapping host learns of a step's delivery during the next: fast-forward must wait for it.
    """
    workload = varied(40, 30.0, seed=seed)
    if clients is not None:
        workload = replace(workload, arrival_ns=np.zeros(40, dtype=np.int64), concurrency=clients)
    setup = run_setup(
        system,
        noisy=noisy,
        seed=seed,
        workload=workload,
        limits=Limits(batch_max, 2, 8192),
        faults=FaultSetup(cancel_fraction=leaving, cancel_after_tokens_max=50),
    )
    fast, slow = run(setup), run(replace(setup, fast_forward=False))
    assert differences(fast, slow) == []
    assert violations(fast) == []
