"""A machine that was never measured: numbers of the right size, for tests of profiles."""

from __future__ import annotations

from typing import Any

from blink.model import profile
from blink.model.profile import Profile

MICROBENCHMARKS = {
    "launch_call_ns": 2_050,
    "launch_to_seen_ns": 2_900,
    "tail_ns": 4_200,
    "scan_ns": 2_700,
    "claim_ns": 900,
    "claim_to_launch_ns": 6_200,
    "host_launch_ns": 10_400,
    "write_visible_ns": 5_600,
    "read_metadata_ns": 7_800,
}


def spread(p50: float, p99: float | None = None) -> dict[str, float | int]:
    return {"p50": p50, "p99": p99 or 1.2 * p50, "mean": 1.02 * p50, "count": 100}


def document(**changes: Any) -> dict[str, Any]:
    """A complete profile as JSON data; ``changes`` replace its parts."""
    found: dict[str, Any] = {
        "schema": 1,
        "name": "example",
        "date": "2026-12-01",
        "gpu": "NVIDIA H200",
        "driver": "580.0",
        "cuda": "13.0",
        "clocks_mhz": {"sm": 1980},
        "commit": "0123456789ab",
        "command": "blink validate specs/hardware/poisson.toml",
        "microbenchmarks": {name: spread(ns) for name, ns in MICROBENCHMARKS.items()},
        "control": {
            "blink": {
                "to_start_ns": spread(5_000),
                "to_next_ns": spread(4_000),
                "submit_ns": spread(30_000),
                "deliver_ns": spread(80_000),
            },
            "host_resident": {
                "to_start_ns": spread(15_000),
                "to_next_ns": spread(40_000, 90_000),
                "prefill_to_start_ns": spread(25_000),
            },
        },
        "steps": [steps("blink"), steps("host_resident")],
    }
    return found | changes


def steps(system: str, engine: str = "null") -> dict[str, Any]:
    return {
        "system": system,
        "model": "llama-3-8b",
        "engine": engine,
        "decode": [
            {"batch": 1, "context_tokens": 64, "ns": 5_000_000},
            {"batch": 1, "context_tokens": 512, "ns": 5_100_000},
            {"batch": 8, "context_tokens": 800, "ns": 6_000_000},
            {"batch": 8, "context_tokens": 8_000, "ns": 6_400_000},
        ],
        "prefill": [
            {"batch": 1, "tokens": 128, "ns": 7_000_000},
            {"batch": 2, "tokens": 1_024, "ns": 30_000_000},
        ],
    }


def example(**changes: Any) -> Profile:
    """:func:`document`, read."""
    return profile.of(document(**changes))
