"""Workloads: when requests arrive and how long they are, synthetic or from a trace file.

`build_workload` turns a scenario's `[workload]` into arrays; `read_trace` reads a trace file alone.
"""

from __future__ import annotations

from blink.model.workload.build import RngFor, Workload, build_workload
from blink.model.workload.tables import LengthTable, length_table, length_tables
from blink.model.workload.traces import Trace, read_trace

__all__ = [
    "LengthTable",
    "RngFor",
    "Trace",
    "Workload",
    "build_workload",
    "length_table",
    "length_tables",
    "read_trace",
]
