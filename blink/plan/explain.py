"""Where every number of a run comes from: the resolved scenario and the SKUs' provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from blink.model.features import constants as features
from blink.model.fitted import FACTORS
from blink.model.provenance import Constant, catalogue
from blink.model.scenario import Scenario, resolved, resolved_toml
from blink.model.setup import RunSetup, engine_efficiency
from blink.plan.runner import PlannedRun

Origins = dict[str, dict[str, dict[str, Any]]]


def explanation(scenario: Scenario, plan: Sequence[PlannedRun]) -> dict[str, Any]:
    """Return the scenario with all defaults, and for each catalogue entry in use its constants.

    ``constants`` maps "gpu h200-sxm-141gb" to {field: {value, unit, source, fitted_to}}.
    """
    return {
        "scenario": resolved(scenario),
        "scenario_toml": resolved_toml(scenario),
        "constants": _origins(plan),
        "derived": _derived(plan),
        "notes": _notes(scenario),
    }


def _notes(scenario: Scenario) -> list[str]:
    """What the page says that the twin takes no notice of."""
    engine = scenario.engine
    return [
        f'engine.provider = "{engine.provider}", engine.weights = "{engine.weights}": for a real '
        "GPU (backend hw); the twin computes no token, its steps only take time",
    ]


def _origins(plan: Sequence[PlannedRun]) -> Origins:
    origins: Origins = {}
    for run in plan:
        setup = run.setup
        for kind, sku in (("gpu", setup.gpu), ("host", setup.host), ("dpu", setup.dpu)):
            origins[f"{kind} {sku.name}"] = _constants(sku.provenance)
        origins[f"link {setup.link.name}"] = _constants(setup.link.provenance)
        origins[f"control plane {setup.plane.name}"] = _constants(setup.plane.provenance)
        if setup.steps is not None:
            origins[f"step times {setup.system}, profile {setup.profile}"] = _step_rows(setup)
        engine = engine_efficiency(setup)
        origins[f"engine {engine.name}"] = _constants(engine.provenance)
        if setup.shares_prefixes:
            origins["feature prefix_caching"] = _constants(features("prefix_caching"))
        if setup.kv_offload is not None:
            origins["feature kv_offload"] = _constants(features("kv_offload"))
        if setup.coverage is not None:
            origins[f"interference, profile {setup.profile}"] = _factors(setup)
        if setup.interference.neighbours:
            neighbours = catalogue("interferers.toml")
            for name in ("_host", *(each.kind for each in setup.interference.neighbours)):
                if name in neighbours:
                    origins[f"neighbour {name}"] = _constants(neighbours[name].constants)
    return origins


def _factors(setup: RunSetup) -> dict[str, dict[str, Any]]:
    """What a fitted profile, or nobody, made of the two factors of interference."""
    source = f"{{}}: profile {setup.profile}, or 1 where it fitted none"
    return {
        name: asdict(Constant(getattr(setup.interference, name), "ratio", source.format(what)))
        for name, what in FACTORS.items()
    }


def _step_rows(setup: RunSetup) -> dict[str, dict[str, Any]]:
    """The outermost measured shapes: between them steps are interpolated."""
    assert setup.steps is not None
    source = f"profile {setup.profile}: {setup.llm.name}, engine {setup.provider}"
    decode = [(row.batch, row.context_tokens, row.ns) for row in setup.steps.decode]
    prefill = [(row.batch, row.tokens, row.ns) for row in setup.steps.prefill]
    return {
        f"{kind}_{which}_ns": asdict(
            Constant(ns, "ns", f"{source}: batch {batch}, {tokens} tokens of {len(rows)} shapes")
        )
        for kind, rows in (("decode", decode), ("prefill", prefill))
        if rows
        for which, (batch, tokens, ns) in (("least", min(rows)), ("most", max(rows)))
    }


def _constants(provenance: Mapping[str, Constant]) -> dict[str, dict[str, Any]]:
    return {name: asdict(constant) for name, constant in provenance.items()}


def _derived(plan: Sequence[PlannedRun]) -> list[dict[str, Any]]:
    """What the resolution computed for each run."""
    return [
        {
            "run": run.setup.label,
            "requests": len(run.setup.workload.arrival_ns),
            "kv_blocks_total": run.setup.kv_blocks_total,
            "kv_bytes_per_token": run.setup.llm.kv_bytes_per_token,
            "weight_bytes": run.setup.llm.weight_bytes,
            "gpus": run.setup.parallel.gpus,
            "batch_max": run.setup.limits.batch_max,
            "prefill_tokens_max": run.setup.limits.prefill_tokens_max,
        }
        for run in plan
    ]


def print_explanation(found: Mapping[str, Any]) -> None:
    """Print the scenario as TOML, then a table of constants for each catalogue entry."""
    console = Console()
    console.print(found["scenario_toml"], markup=False, highlight=False)
    for entry, constants in found["constants"].items():
        table = Table(title=entry, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for column in ("constant", "value", "unit", "source"):
            table.add_column(column, justify="right" if column == "value" else "left")
        for name, constant in constants.items():
            fitted = f"; fitted to {constant['fitted_to']}" if constant["fitted_to"] else ""
            table.add_row(
                name, f"{constant['value']:g}", constant["unit"], constant["source"] + fitted
            )
        console.print(table)
        console.print()
    table = Table(title="derived", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in found["derived"][0]:
        table.add_column(column)
    for row in found["derived"]:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)
    for note in found["notes"]:
        console.print(note, markup=False, highlight=False, style="dim")
