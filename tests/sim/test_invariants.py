"""The invariants that a record can show find what they are for: one planted fault each."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest

from blink.model.record import RunRecord
from blink.testing.invariants import CHECKS, violations
from tests.setups import run, run_setup, varied

Fault = Callable[[RunRecord], None]


def lose_an_outcome(record: RunRecord) -> None:
    record.requests.outcome[3] = 0


def schedule_before_submission(record: RunRecord) -> None:
    record.requests.scheduled_ns[3] = record.requests.submitted_ns[3] - 1


def finish_before_the_first_token(record: RunRecord) -> None:
    record.requests.finish_ns[3] = record.requests.first_token_ns[3] - 1


def overlap_two_steps(record: RunRecord) -> None:
    record.steps.start_ns[5] = record.steps.end_ns[4] - 1


def deliver_too_early(record: RunRecord) -> None:
    record.steps.delivered_ns[0] = record.steps.end_ns[0] - 1


def let_a_flush_overtake(record: RunRecord) -> None:
    record.steps.delivered_ns[7] = record.steps.delivered_ns[9] + 1


def lose_a_token(record: RunRecord) -> None:
    record.decode_ranges.end[2] -= 1


def stream_too_little(record: RunRecord) -> None:
    record.counters["tokens_not_streamed"] = 1


def launch_too_often(record: RunRecord) -> None:
    record.counters["relaunches"] = 0
    record.counters["launches"] = 121


def lose_a_launch(record: RunRecord) -> None:
    record.counters["launches"] -= 1


def leak_a_block(record: RunRecord) -> None:
    record.counters["kv_blocks_leaked"] = 1


def keep_a_slot(record: RunRecord) -> None:
    record.counters["slots_not_empty"] = 1


def use_the_host(record: RunRecord) -> None:
    record.host_cpu_on_token_path_ns = 1


PLANTED: list[tuple[str, Fault]] = [
    ("CONSERVE", lose_an_outcome),
    ("CAUSAL", schedule_before_submission),
    ("CAUSAL", finish_before_the_first_token),
    ("CLOCK", overlap_two_steps),
    ("CLOCK", deliver_too_early),
    ("CLOCK", let_a_flush_overtake),
    ("ORDER", lose_a_token),
    ("ORDER", stream_too_little),
    ("WINDOW", launch_too_often),
    ("WINDOW", lose_a_launch),
    ("KV", leak_a_block),
    ("SLOT", keep_a_slot),
    ("HOST-SILENT", use_the_host),
]


@pytest.fixture(scope="module")
def honest() -> RunRecord:
    record = run(run_setup(workload=varied(30, 15.0)))
    assert violations(record) == []
    return record


@pytest.mark.parametrize(("name", "plant"), PLANTED, ids=[fault.__name__ for _, fault in PLANTED])
def test_a_planted_fault_is_found(name: str, plant: Fault, honest: RunRecord) -> None:
    spoilt = deepcopy(honest)
    plant(spoilt)
    assert any(found.startswith(f"{name}:") for found in violations(spoilt))


def test_every_check_has_a_planted_fault() -> None:
    assert {name for name, _ in PLANTED} == set(CHECKS)
