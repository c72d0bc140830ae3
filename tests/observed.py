"""Runs whose constants are known, as files: what a calibration must find again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from blink.model.fitted import with_constants
from blink.model.metrics import Objectives, summarise
from blink.model.scenario import parse_scenario, resolved
from blink.plan.output import write_run
from blink.plan.runner import plan_runs
from blink.sim.backend import SimBackend


def page(*, rate: float, requests: int = 120, noisy: bool = False, **changes: Any) -> Any:
    """A scenario of vLLM serving Llama-3 8B on an H200, with lengths that vary."""
    document: dict[str, Any] = {
        "title": "observed",
        "question": "What were its constants?",
        "systems": ["vllm"],
        "conditions": ["interfered" if noisy else "isolated"],
        "model": "llama-3-8b",
        "hardware": {"gpu": "H200", "host": "h200-vm"},
        "workload": {
            "kind": "poisson",
            "rate": rate,
            "requests": requests,
            "lengths": {
                "kind": "lognormal",
                "input_tokens_mean": 900,
                "output_tokens_mean": 250,
                "output_tokens_max": 1000,
            },
        },
        "interference": {"neighbours": [{"kind": "pbzip2", "threads": 24}]} if noisy else {},
    }
    return parse_scenario(document | changes)


def write_record(place: Path, scenario: Any, truth: Mapping[str, float], *, seed: int = 7) -> Path:
    """The output of a run whose server had the constants ``truth``, and another seed's noise."""
    [planned] = plan_runs(scenario)
    setup = with_constants(planned.setup, truth, "the truth")
    record = SimBackend().run(replace(setup, seed=seed), commit="test")
    write_run(place, [record], [summarise(record, Objectives())], resolved(scenario))
    return place
