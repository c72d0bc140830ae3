"""A plan's answer on disk: the document, the page as it was resolved, a table of candidates."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any, Final

from blink.model.scenario.dump import resolved_toml
from blink.plan.capacity.page import Plan
from blink.plan.capacity.report import plan_page

FILES: Final = ("plan.json", "plan.toml", "candidates.csv", "report.html")
COLUMNS: Final = (
    "replicas",
    "gpus",
    "dpus",
    "host_cores_reserved",
    "host_cores_busy",
    "power_w",
    "output_tok_s",
    "energy_mj_per_tok",
    "cost_per_hour",
    "cost_per_mtok",
)


def write_plan(directory: Path, plan: Plan, document: dict[str, Any]) -> None:
    """Write plan.json, plan.toml, candidates.csv and report.html."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    (directory / "plan.json").write_text(text, encoding="utf-8")
    (directory / "plan.toml").write_text(resolved_toml(plan), encoding="utf-8")
    (directory / "report.html").write_text(plan_page(plan, document), encoding="utf-8")
    (directory / "candidates.csv").write_text(_csv(document), encoding="utf-8")


def _csv(document: dict[str, Any]) -> str:
    """A line a candidate: capacity with its interval, and the fleet."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    load = ("capacity_req_s", "capacity_low_req_s", "capacity_high_req_s")
    writer.writerow(["candidate", *load, *COLUMNS, "infeasible"])
    for row in document["candidates"]:
        found, fleet = row["capacity_req_s"] or {}, row["fleet"] or {}
        loads = [found.get(name) for name in ("mean", "low", "high")]
        reason = row["infeasible"] or row["fleet_infeasible"]
        writer.writerow([row["label"], *loads, *(fleet.get(name) for name in COLUMNS), reason])
    return text.getvalue()
