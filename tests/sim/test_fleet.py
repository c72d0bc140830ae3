"""Replicas behind a router: one of them is a plain run, and nothing is lost between them."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from blink.model import hardware
from blink.model.fleet import FleetRecord
from blink.model.record import RunRecord
from blink.model.setup import FaultSetup, FleetSetup, RouterPolicy, RunSetup
from blink.ring_protocol.states import Outcome
from blink.sim.backend import SimBackend
from blink.testing.invariants import violations
from tests.setups import SYSTEMS, run_setup, varied

ROUTERS: tuple[RouterPolicy, ...] = ("round_robin", "least_loaded", "session_affine")


def run_fleet(
    *replicas: RunSetup, router: RouterPolicy = "least_loaded", **changes: object
) -> FleetRecord:
    setup = FleetSetup(replicas, router, **changes)  # type: ignore[arg-type]
    return SimBackend().run_fleet(setup, commit="")


def assert_same(found: RunRecord, expected: RunRecord) -> None:
    """All times of all requests and steps."""
    for table in ("requests", "steps", "decode_ranges"):
        one, other = getattr(found, table), getattr(expected, table)
        for each in fields(one):
            assert np.array_equal(getattr(one, each.name), getattr(other, each.name)), each.name


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("router", ROUTERS)
def test_a_fleet_of_one_is_a_plain_run(system: str, router: RouterPolicy) -> None:
    setup = run_setup(system, workload=varied(60, 10.0))
    plain = SimBackend().run(setup, commit="")
    [record] = run_fleet(setup, router=router).records
    assert_same(record, plain)
    assert {**record.counters} == {**plain.counters}


@pytest.mark.parametrize("system", ["blink", "vllm"])
@pytest.mark.parametrize("router", ROUTERS)
def test_each_request_is_one_replicas_and_every_invariant_holds(
    system: str, router: RouterPolicy
) -> None:
    faults = FaultSetup(cancel_fraction=0.2, cancel_after_tokens_max=20)
    setup = run_setup(system, workload=varied(120, 30.0), faults=faults)
    fleet = run_fleet(setup, setup, setup, router=router)
    assert [violations(each) for each in fleet.records] == [[], [], []]
    sent = np.concatenate(fleet.members)
    assert sorted(sent) == list(range(120))
    assert (fleet.column("input_tokens") == setup.workload.input_tokens).all()
    assert not (fleet.column("outcome") == int(Outcome.NONE)).any()
    assert min(len(each) for each in fleet.members) > 10


def test_round_robin_takes_turns() -> None:
    setup = run_setup(workload=varied(31, 20.0))
    fleet = run_fleet(setup, setup, router="round_robin")
    assert [each.tolist() for each in fleet.members] == [
        list(range(0, 31, 2)),
        list(range(1, 31, 2)),
    ]


def test_the_least_loaded_gets_the_next_and_a_slow_replica_gets_less() -> None:
    workload = varied(200, 24.0)
    quick = run_setup(workload=workload)
    slow = run_setup(workload=workload, gpu=replace(hardware.gpu("A100 80GB"), name="slow"))
    fleet = run_fleet(quick, slow)
    assert len(fleet.members[0]) > 1.1 * len(fleet.members[1])
    turns = run_fleet(quick, slow, router="round_robin")
    assert fleet.per_request()["e2e"].mean() < turns.per_request()["e2e"].mean()


def test_a_session_stays_where_it_is_when_the_fleet_grows() -> None:
    setup = run_setup(workload=varied(300, 30.0))
    small = run_fleet(*[setup] * 2, router="session_affine", sessions=40)
    large = run_fleet(*[setup] * 3, router="session_affine", sessions=40)
    for number in range(2):
        assert set(large.members[number]) <= set(small.members[number])
    assert len(large.members[2]) > 0


def test_weights_share_sessions_out_in_proportion() -> None:
    setup = run_setup(workload=varied(400, 40.0))
    fleet = run_fleet(*[setup] * 2, router="session_affine", sessions=2000, weights=(3.0, 1.0))
    assert 0.68 < len(fleet.members[0]) / 400 < 0.82


def test_a_closed_loop_goes_on_over_all_replicas() -> None:
    workload = replace(varied(40, 1.0), arrival_ns=np.zeros(40, dtype=np.int64), concurrency=6)
    setup = run_setup("vllm", workload=workload)
    fleet = run_fleet(setup, setup)
    assert [violations(each) for each in fleet.records] == [[], []]
    arrivals, ends = fleet.column("arrival_ns"), fleet.column("finish_ns")
    open_at = [int(((arrivals <= now) & (ends > now)).sum()) for now in arrivals]
    assert max(open_at) == 6


def test_every_replica_draws_power_until_the_fleet_is_done() -> None:
    setup = run_setup(workload=varied(3, 1.0))
    fleet = run_fleet(setup, setup, router="round_robin")
    assert all(each.energy_j for each in fleet.records)
    idle = run_fleet(*[run_setup(workload=varied(1, 1.0))] * 2, router="round_robin")
    assert len(idle.members[1]) == 0 and idle.records[1].energy_j
