"""Small resolved runs for tests: constant shapes, Poisson arrivals, any system."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from blink.model import control_plane, hardware, llm, timing
from blink.model.interference import QUIET, Interference, Neighbour
from blink.model.policy import Limits
from blink.model.record import RunRecord
from blink.model.setup import RunSetup
from blink.model.workload import Workload
from blink.sim.backend import SimBackend

SYSTEMS = ("blink", "host_resident", "trtllm", "vllm", "sglang")
NOISY = Interference((Neighbour("pbzip2", 45), Neighbour("ninja", 45)))


def poisson(
    requests: int, rate: float, *, seed: int = 1, inputs: int = 1019, outputs: int = 100
) -> Workload:
    """Poisson arrivals of requests that are all alike."""
    rng = np.random.default_rng(seed)
    return Workload(
        arrival_ns=np.cumsum(rng.exponential(1e9 / rate, requests)).astype(np.int64),
        input_tokens=np.full(requests, inputs, dtype=np.int64),
        output_tokens=np.full(requests, outputs, dtype=np.int64),
        concurrency=None,
    )


def varied(requests: int, rate: float, *, seed: int = 1) -> Workload:
    """Poisson arrivals of requests of many lengths."""
    rng = np.random.default_rng(seed)
    return replace(
        poisson(requests, rate, seed=seed),
        input_tokens=rng.integers(1, 2000, requests),
        output_tokens=rng.integers(1, 200, requests),
    )


def run_setup(system: str = "blink", *, noisy: bool = False, **changes: Any) -> RunSetup:
    """Llama-3 8B on the paper's server; ``changes`` replace fields."""
    model, gpu = llm.lookup("llama3-8b"), hardware.gpu("H100 96GB")
    plane = control_plane.profile(system)
    setup = RunSetup(
        label=system,
        system=system,
        condition="interfered" if noisy else "isolated",
        seed=1,
        workload=poisson(60, 7.0),
        llm=model,
        gpu=gpu,
        host=hardware.host("paper"),
        dpu=hardware.dpu("bluefield-3"),
        link=hardware.link("rdma-200g"),
        plane=plane,
        interference=NOISY if noisy else QUIET,
        limits=Limits(plane.batch_max, 8, plane.prefill_tokens_max),
        kv_blocks_total=timing.kv_blocks_total(gpu, model),
        graph_cache=plane.scheduling == "inline_prefill",
    )
    return replace(setup, **changes)


def run(setup: RunSetup) -> RunRecord:
    """Run ``setup`` on the twin."""
    return SimBackend().run(setup, commit="test")
