"""The scenarios of smoke, protocol and faults on a real GPU: every invariant holds there too."""

from __future__ import annotations

from pathlib import Path

import pytest

from blink import backends
from blink.model.errors import BadInput
from blink.plan import runner
from blink.ring_protocol.states import Outcome
from blink.testing.invariants import violations

pytestmark = [pytest.mark.hw, pytest.mark.usefixtures("gpu")]

SPECS = Path(__file__).resolve().parents[3] / "specs"
PATHS = sorted(
    path for folder in ("smoke", "protocol", "faults") for path in (SPECS / folder).glob("*.toml")
)
ON_METAL = {"blink", "host_resident"}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_invariants_hold_on_metal(path: Path) -> None:
    scenario = runner.load(path, [])
    systems = [system for system in scenario.systems if system in ON_METAL]
    requests = min(60, getattr(scenario.workload, "requests", None) or 60)
    cut = [f"workload.requests={requests}", f"systems={','.join(systems)}", "conditions=isolated"]
    engine = backends.require("hw")
    try:
        backends.check_capabilities(engine, list(scenario.requires))
    except BadInput as lacking:
        pytest.skip(str(lacking))
    for result in runner.execute(runner.plan_runs(runner.load(path, cut)), engine):
        assert violations(result.record) == []
        outcomes = result.summary["outcomes"]
        assert sum(outcomes.values()) == result.summary["requests"] == requests
        assert Outcome.FAILED.name.lower() not in outcomes


def test_both_systems_serve_the_same() -> None:
    """The scheduler on the GPU, and the same graphs and policy from a host thread."""
    asked = ["systems=blink,host_resident", "workload.requests=40", "workload.rate=40"]
    plan = runner.plan_runs(runner.load(SPECS / "smoke" / "one_request.toml", asked))
    results = list(runner.execute(plan, backends.require("hw")))
    assert [result.record.system for result in results] == ["blink", "host_resident"]
    for result in results:
        assert violations(result.record) == []
        assert result.summary["outcomes"] == {Outcome.STOP.name.lower(): 40}
