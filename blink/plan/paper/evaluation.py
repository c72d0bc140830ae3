"""The paper's evaluation as runs of the twin: its server, its loads, its grid.

A :class:`Run` is a value that names one run; :class:`Job` is what it resolves to. What the paper
leaves open is chosen here once, for every run alike, and said in :data:`ASSUMED`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Final

import numpy as np

from blink.model import control_plane, hardware, llm, timing
from blink.model.interference import QUIET, Interference, Neighbour
from blink.model.policy import Limits
from blink.model.random import stream_of
from blink.model.scenario.traffic import ConstantLengths, LognormalLengths, PoissonWorkload
from blink.model.setup import RunSetup
from blink.model.workload import Workload, build_workload
from blink.plan.executor import Job

SYSTEMS: Final = ("blink", "trtllm", "vllm-0.13", "sglang")
BASELINES: Final = SYSTEMS[1:]
MODELS: Final = ("llama3-8b", "phi-4", "qwen3-32b", "qwen3-30b-a3b")
RATES: Final = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 28.0, 32.0)
"""Offered loads, req/s: the paper has 13 from 1 to 32 and one of 4; the others are assumed."""
WINDOW_S: Final = 60
"""Clients ask for so long (paper Table 3; assumed elsewhere)."""
NOISY: Final = Interference(
    (Neighbour("pbzip2", 45), Neighbour("ninja", 45)), pinned_cores=6
)  # paper sec 6.1
CONDITIONS: Final = (QUIET, NOISY)
BATCH_MAX: Final = 48
SEED: Final = 1
ASSUMED: Final = (
    "13 loads from 1 to 32 req/s; only the ends, their number and 4 req/s are stated",
    "clients ask for 60 s, Poisson. Rates count what was complete or streamed by then, latencies "
    "all that was asked: each system has the same requests",
    "prompts of 1019 tokens in the mean as in section 2.2, log-normal with sigma 1.0, 16 to 4096",
    "answers of 293 tokens in the mean: what Tables 6 and B.2 imply, not the 463 of section 2.2; "
    "log-normal with sigma 0.8, 8 to 1500",
    "at most 48 sequences in a batch: not stated; the one value that fits the saturated decode "
    "rates of three models",
    "served: requests complete by 60 s over those that would be, had nobody waited for a first "
    "token; a load is serviceable at 95 %, interpolated between two loads of the grid. Blink's "
    "range: the loads below that; its saturation point: the next one; the plateau: 32 req/s",
    "one draw of requests for all systems: at 1 req/s a p99.9 is the worst of 60. Another draw: "
    "`blink reproduce --seed 2`",
    "96 hyper-threads in the evaluation, 48 cores without in section 2.2 and 3, as either says",
)
"""What the paper does not state, or not consistently, and this evaluation takes."""


@dataclass(frozen=True, slots=True)
class Load:
    """``requests`` of clients who ask at ``rate`` req/s, Poisson, or all at once.

    With ``window`` measuring ends WINDOW_S after the first could have come.
    """

    requests: int
    rate: float | None
    input_tokens: int = 1019
    output_tokens: int = 293
    constant: bool = False
    window: bool = False


MOTIVATION: Final = Load(420, 7.0, output_tokens=463)  # paper sec 2.2; it does not say how many
SYNTHETIC: Final = Load(128, 7.0, 1024, 512, constant=True)  # paper sec 3.2
PINNED: Final = Load(720, 12.0, output_tokens=463, window=True)  # paper sec 3.2: a window of 60 s


def offered(rate: float) -> Load:
    """The evaluation's load of ``rate`` req/s."""
    return Load(round(rate * WINDOW_S), rate, window=True)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: who serves which model under which load, next to whom."""

    system: str
    model: str
    load: Load
    interference: Interference = QUIET
    batch_max: int = BATCH_MAX
    hyper_threads: bool = True


def grid() -> Iterator[Run]:
    """The evaluation: 4 models x 4 systems x 13 loads x 2 conditions."""
    for model, system, rate, noise in product(MODELS, SYSTEMS, RATES, CONDITIONS):
        yield Run(system, model, offered(rate), noise)


def job_of(run: Run, seed: int = SEED) -> Job:
    """``run`` as a job, with the requests that ``seed`` draws."""
    return Job(setup_of(run, seed), extra={"window_s": WINDOW_S if run.load.window else None})


def setup_of(run: Run, seed: int = SEED) -> RunSetup:
    """Resolve ``run`` on the paper's server."""
    sku, gpu, host = llm.lookup(run.model), hardware.gpu("H100 96GB"), hardware.host("paper")
    plane = control_plane.profile(run.system)
    batch_max = run.batch_max
    return RunSetup(
        label=run.system,
        system=run.system,
        condition="interfered" if run.interference.neighbours else "isolated",
        seed=seed,
        workload=_workload(run.load, seed),
        llm=sku,
        gpu=gpu,
        host=host if run.hyper_threads else replace(host, threads=host.physical_cores),
        dpu=hardware.dpu("bluefield-3"),
        link=hardware.link("rdma-200g"),
        plane=plane,
        interference=run.interference,
        limits=Limits(batch_max, min(8, batch_max), plane.prefill_tokens_max),
        kv_blocks_total=timing.kv_blocks_total(gpu, sku),
        graph_cache=plane.scheduling == "inline_prefill",
    )


@cache
def _workload(load: Load, seed: int) -> Workload:
    """Draw it. Whoever serves a load gets the same requests; a higher one begins with a lower's.

    One arrival more than is needed is drawn, and time scaled to bring that one to where it belongs:
    Poisson arrivals of which the number is given, so that chance does not move the rate.
    """
    lengths: ConstantLengths | LognormalLengths
    if load.constant:
        lengths = ConstantLengths(input_tokens=load.input_tokens, output_tokens=load.output_tokens)
    else:
        lengths = LognormalLengths(
            kind="lognormal",
            input_tokens_mean=load.input_tokens,
            input_sigma=1.0,
            input_tokens_min=16,
            input_tokens_max=4096,
            output_tokens_mean=load.output_tokens,
            output_sigma=0.8,
            output_tokens_min=8,
            output_tokens_max=1500,
        )
    rate, count = load.rate or 1.0, load.requests
    spec = PoissonWorkload(kind="poisson", rate=rate, requests=count + 1, lengths=lengths)
    drawn = build_workload(spec, stream_of(seed))
    arrival = drawn.arrival_ns[:count] / drawn.arrival_ns[count] * (count / rate * 1e9)
    return Workload(
        arrival.astype(np.int64) if load.rate else np.zeros(count, dtype=np.int64),
        drawn.input_tokens[:count],
        drawn.output_tokens[:count],
    )
