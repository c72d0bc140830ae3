"""Advancing many steps at once must give the very times that stepping one by one gives."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from blink.model.record import RunRecord
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
