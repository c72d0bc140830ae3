"""Whatever goes wrong, every request ends in exactly one outcome and nothing is left behind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from blink.model.metrics import outcome_counts
from blink.model.policy import Limits
from blink.model.setup import FaultSetup, FrontEndSetup, RingSetup
from blink.testing.invariants import violations
from tests.setups import SYSTEMS, poisson, run, run_setup, varied


@pytest.mark.parametrize("system", SYSTEMS)
def test_cancels_end_requests_and_leave_nothing(system: str) -> None:
    faults = FaultSetup(cancel_fraction=0.5, cancel_after_tokens_max=50)
    record = run(run_setup(system, workload=varied(80, 20.0), faults=faults))
    outcomes = outcome_counts(record)
    assert outcomes["cancelled"] > 10
    assert outcomes["cancelled"] + outcomes["stop"] == 80
    assert violations(record) == []


@pytest.mark.parametrize("system", SYSTEMS)
def test_impatient_clients_end_requests_wherever_they_are(system: str) -> None:
    """Overloaded, so that some give up in the queue, some in prefill, some while decoding."""
    faults = FaultSetup(timeout_fraction=0.7, timeout_after_ns=400_000_000)
    record = run(run_setup(system, workload=poisson(80, 60.0), faults=faults))
    outcomes = outcome_counts(record)
    assert outcomes["timed_out"] > 10
    assert sum(outcomes.values()) == 80
    assert violations(record) == []


def test_a_cancel_is_honoured_within_one_step() -> None:
    faults = FaultSetup(cancel_fraction=1.0, cancel_after_tokens_max=20)
    record = run(run_setup(workload=poisson(20, 2.0), faults=faults))
    table = record.requests
    cancelled = np.flatnonzero(table.output_tokens < table.output_tokens_wanted)
    assert len(cancelled) > 10
    longest_ns = int((record.steps.end_ns - record.steps.launched_ns).max())
    for request in cancelled:
        last_token_ns = record.token_times_ns(int(request))[-1]
        assert table.finish_ns[request] - last_token_ns < 2 * longest_ns


def test_a_cancel_after_an_arrival_that_must_wait_is_seen_in_time() -> None:
    """The batch is full, so an arrival cuts no segment; a later cancel must, and not before it."""
    faults = FaultSetup(timeout_fraction=0.5, timeout_after_ns=2_000_000_000)
    limits = Limits(8, 8, 8192)
    workload = poisson(120, 20.0, inputs=512, outputs=128)
    setup = run_setup(workload=workload, faults=faults, limits=limits)
    fast, slow = run(setup), run(replace(setup, fast_forward=False))
    assert outcome_counts(fast)["timed_out"] > 10
    assert violations(fast) == []
    assert np.array_equal(fast.requests.finish_ns, slow.requests.finish_ns)


def test_delayed_visibility_loses_and_reorders_nothing() -> None:
    faults = FaultSetup(extra_visibility_ns_max=5_000_000)
    delayed = run(run_setup(workload=varied(80, 20.0), faults=faults))
    assert outcome_counts(delayed) == {"stop": 80}
    assert violations(delayed) == []


def test_a_full_ring_holds_back_and_loses_nothing() -> None:
    record = run(run_setup(workload=varied(80, 40.0), ring=RingSetup(slots=4)))
    assert record.counters["submissions_held_back"] > 0
    assert outcome_counts(record) == {"stop": 80}
    assert int(record.requests.slot.max()) <= 3
    assert violations(record) == []


def test_more_operations_than_the_queue_pair_holds_all_arrive_in_the_end() -> None:
    """200 requests begin, and end, within microseconds: their doorbells overflow 128 operations."""
    workload = poisson(200, 1_000_000.0, inputs=5, outputs=3)
    record = run(run_setup(workload=workload))
    assert outcome_counts(record) == {"stop": 200}
    assert violations(record) == []


def test_a_full_queue_rejects_and_says_so() -> None:
    record = run(
        run_setup(
            workload=varied(80, 400.0),
            ring=RingSetup(slots=4),
            front_end=FrontEndSetup(queue_max=8),
        )
    )
    outcomes = outcome_counts(record)
    assert outcomes["rejected"] > 0
    assert sum(outcomes.values()) == 80
    assert violations(record) == []


def test_a_reader_with_little_room_a_poll_still_delivers_everything() -> None:
    """More slots have news than one poll may report: later polls report the rest."""
    front_end = FrontEndSetup(slots_per_poll_max=2)
    record = run(run_setup(workload=varied(60, 30.0), front_end=front_end))
    assert outcome_counts(record) == {"stop": 60}
    assert violations(record) == []


def test_requests_that_come_together_share_doorbells() -> None:
    """Coalescing: a burst takes fewer doorbells than requests that come one by one."""
    burst = run(run_setup(workload=poisson(100, 50_000_000.0, inputs=5, outputs=3)))
    apart = run(run_setup(workload=poisson(100, 20.0, inputs=5, outputs=3)))
    assert burst.counters["link_ops"] == apart.counters["link_ops"]
    assert burst.counters["doorbells"] < apart.counters["doorbells"]


@pytest.mark.parametrize("slots", [8, 32, 100])
def test_first_come_first_served_whatever_the_slots(slots: int) -> None:
    """One scan finds several prompts, in slots that wrapped around: submission decides."""
    workload = poisson(600, 200.0, inputs=100, outputs=5)
    record = run(run_setup(workload=workload, ring=RingSetup(slots=slots)))
    submitted, scheduled = record.requests.submitted_ns, record.requests.scheduled_ns
    for request, when_ns in enumerate(submitted):
        later = scheduled[submitted > when_ns]
        assert not len(later) or scheduled[request] <= later.min()
