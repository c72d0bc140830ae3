"""ORACLE: no server decision depends on an output length before the output is that long."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import blink.model.policy
from tests.setups import SYSTEMS, run, run_setup, varied


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_future_does_not_change_the_past(system: str) -> None:
    """Two worlds that differ only in how long one answer will be are one until it differs."""
    short = varied(40, 10.0)
    outputs = short.output_tokens.copy()
    outputs[5] = 60
    short = replace(short, output_tokens=outputs.copy())
    outputs[5] = 190
    long = replace(short, output_tokens=outputs)
    one, other = (run(run_setup(system, workload=w, kv_blocks_total=900)) for w in (short, long))
    last_common_ns = int(one.requests.finish_ns[5])
    before = int(np.searchsorted(one.steps.end_ns, last_common_ns - 100_000_000))
    assert before > 100
    for column in ("launched_ns", "start_ns", "end_ns", "decode_batch", "prefill_tokens"):
        mine, theirs = getattr(one.steps, column), getattr(other.steps, column)
        assert np.array_equal(mine[:before], theirs[:before]), column


def test_the_policy_cannot_spell_the_truth() -> None:
    folder = Path(blink.model.policy.__file__).parent
    for path in folder.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "Truth" not in text and "output_tokens" not in text, path.name
