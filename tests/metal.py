"""A machine for tests: the twin with constants of its own, which a calibration has to find.

python -m tests.metal      writes tests/data/profiles/example.json: that machine's profile
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from blink import backends
from blink.cli import main
from blink.model.calibration import calibrate
from blink.model.profile import Timing
from blink.model.record import RunRecord
from blink.model.setup import RunSetup
from blink.sim.backend import SimBackend
from tests.profiles import MICROBENCHMARKS, example, spread

SLOWER = 1.07
"""How much longer its steps take than the roofline says."""


class FakeMetal(SimBackend):
    """Serves with the example profile's constants, on an engine that is slower than stated."""

    name = "hw"
    clock: Literal["virtual", "wall"] = "wall"
    ran: list[str]

    def __init__(self, *, late_ns: int = 0) -> None:
        self.ran = []
        self.late_ns = late_ns

    def run(
        self,
        setup: RunSetup,
        *,
        commit: str,
        progress: Callable[[int], None] = lambda ended: None,
    ) -> RunRecord:
        self.ran.append(setup.label)
        truth = calibrate(setup, example(steps=[]))
        slow = replace(
            truth.gpu,
            memory_bandwidth_bytes_s=truth.gpu.memory_bandwidth_bytes_s / SLOWER,
            sustained_flops_16bit=truth.gpu.sustained_flops_16bit / SLOWER,
        )
        workload = setup.workload
        if self.late_ns:
            came = workload.arrival_ns + self.late_ns * (np.arange(len(workload)) % 2)
            workload = replace(workload, arrival_ns=np.maximum.accumulate(came))
        record = super().run(
            replace(truth, gpu=slow, workload=workload), commit=commit, progress=progress
        )
        return replace(record, backend="hw")

    def metal(self) -> dict[str, Any]:
        return {
            "date": "2026-12-01",
            "gpu": "NVIDIA H200",
            "driver": "580.0",
            "cuda": "13.0",
            "sm_clock_max_mhz": 1980,
        }

    def microbenchmarks(self, progress: Callable[[str], None]) -> dict[str, Timing]:
        progress("launches")
        found: dict[str, Timing] = {
            name: spread(ns)  # type: ignore[misc]
            for name, ns in MICROBENCHMARKS.items()
        }
        return found


def write_example() -> int:
    """Validate two scenarios on the machine, as a person would on a real one."""
    made = FakeMetal()
    backends.require_metal = lambda: made
    specs = ["specs/hardware/poisson.toml", "specs/hardware/host_resident.toml"]
    place = "tests/data/profiles/example.json"
    return main(["validate", *specs, "--interference", "--profile-out", place])


if __name__ == "__main__":
    sys.exit(write_example())
