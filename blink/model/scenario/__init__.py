"""Scenarios: one page of strict TOML that says what to run and what to expect.

`load_scenario` reads one, `expand` gives the points of its sweep, `resolved` and `resolved_toml`
write it with every default filled in, `judge` holds figures against its expectations.
"""

from __future__ import annotations

from blink.model.scenario.dump import resolved, resolved_toml
from blink.model.scenario.expect import INVARIANTS, Bound, Compare, Expect, Inflation, Trend
from blink.model.scenario.faults import Cancel, ClientTimeout, DelayedVisibility
from blink.model.scenario.judge import Verdict, judge
from blink.model.scenario.loader import load_scenario, parse_scenario
from blink.model.scenario.schema import Scenario
from blink.model.scenario.sweep import SweepPoint, expand

__all__ = [
    "INVARIANTS",
    "Bound",
    "Cancel",
    "ClientTimeout",
    "Compare",
    "DelayedVisibility",
    "Expect",
    "Inflation",
    "Scenario",
    "SweepPoint",
    "Trend",
    "Verdict",
    "expand",
    "judge",
    "load_scenario",
    "parse_scenario",
    "resolved",
    "resolved_toml",
]
