"""Every scenario in specs/ is a test: its invariants hold on every backend, its names resolve.

Large workloads are cut to their first requests here, so that all scenarios fit into `make test`;
`blink run SPEC` runs one whole and judges its timing expectations too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from blink import backends
from blink.plan import runner
from blink.plan.pages import is_plan
from blink.testing.invariants import CHECKS, violations

SPECS = Path(__file__).parents[2] / "specs"
REQUESTS_MAX = 60
RUNS_MAX = 12


def every_spec() -> list[Path]:
    return sorted(path for path in SPECS.rglob("*.toml") if not is_plan(path))


def test_there_are_specs() -> None:
    assert len(every_spec()) >= 10


@pytest.mark.parametrize("path", every_spec(), ids=lambda path: str(path.relative_to(SPECS)))
def test_invariants_hold(path: Path, backend: str) -> None:
    if backend == "hw":
        pytest.skip("on a GPU tests/hw/cuda/test_specs.py runs those that it can")
    scenario = runner.load(path, [])
    engine = backends.require(backend)
    backends.check_capabilities(engine, list(scenario.requires))
    requests = getattr(scenario.workload, "requests", None) or REQUESTS_MAX
    cut = [f"workload.requests={min(requests, REQUESTS_MAX)}"]
    plan = runner.plan_runs(runner.load(path, cut))
    spread = max(1, -(-len(plan) // RUNS_MAX))
    for result in runner.execute(plan[::spread], engine):
        assert violations(result.record) == []
        assert sum(result.summary["outcomes"].values()) == result.summary["requests"]


@pytest.mark.parametrize("path", every_spec(), ids=lambda path: str(path.relative_to(SPECS)))
def test_every_expected_invariant_is_checked_somewhere(path: Path) -> None:
    """Those that a record cannot show are held by types, assertions and tests (invariants.py)."""
    elsewhere = {"OWNER", "ORACLE", "WORK", "DETERMINISM"}
    assert set(runner.load(path, []).expect.invariants) <= set(CHECKS) | elsewhere
