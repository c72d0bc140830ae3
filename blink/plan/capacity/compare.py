"""What is saved: every candidate against the baseline of its kind, replication by replication."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blink.plan.capacity.page import NAMED_BY_DEFAULT, Plan
from blink.plan.capacity.statistics import interval

Row = dict[str, Any]
SAME = ("model", "gpus", "neighbours", "variant")
SAVED = ("gpus", "dpus", "host_cores_reserved", "host_cores_busy", "power_w", "cost_per_hour")


def comparisons(plan: Plan, rows: Sequence[Row]) -> list[Row]:
    """One entry for each pair; empty without a baseline.

    A server without a host process is compared with the baseline in every placement.
    """
    base = [row for row in rows if row["system"] == plan.baseline]
    found = []
    for row in rows:
        for other in base:
            placed = row["placement"] in (other["placement"], NAMED_BY_DEFAULT["placements"])
            alike = all(row[name] == other[name] for name in SAME)
            if row["system"] != plan.baseline and alike and placed:
                found.append(_pair(row, other))
    return found


def _pair(row: Row, base: Row) -> Row:
    loads, others = row["capacity_by_seed"], base["capacity_by_seed"]
    ratio = None
    if loads and len(loads) == len(others):
        ratio = interval([a / b for a, b in zip(loads, others, strict=True)]).as_dict()
    saved = None
    if row["fleet"] and base["fleet"]:
        saved = {name: _difference(row["fleet"], base["fleet"], name) for name in SAVED}
    return {
        "candidate": row["label"],
        "baseline": base["label"],
        "capacity_ratio": ratio,
        "saved": saved,
    }


def _difference(fleet: Row, base: Row, name: str) -> float | int | None:
    """How much less the fleet takes than the baseline's."""
    if fleet[name] is None or base[name] is None:
        return None
    less: float | int = base[name] - fleet[name]
    return less
