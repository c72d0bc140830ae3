"""The hardware backend: a resolved run in, a record out, on a real GPU and the wall clock.

``blink`` is the scheduler that lives on the GPU; ``host_resident`` the same graphs and policy from
a host thread. The front end runs in this process, one-sided, without HTTP and tokenizer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any, Final, Literal

from blink.hw.clients import ClientLoop
from blink.hw.cuda.bench import microbenchmarks
from blink.hw.cuda.graphs import Progress
from blink.hw.cuda.runtime import CudaError, libraries
from blink.hw.cuda.server import Server, metal, server_of
from blink.hw.recording import RanStep, tables_of
from blink.model.errors import BadInput
from blink.model.random import stream_of
from blink.model.record import RunRecord
from blink.model.servable import check_servable
from blink.model.setup import RunSetup
from blink.model.world import requests_of

NAME: Final = "hw"
CLOCK: Final[Literal["virtual", "wall"]] = "wall"
SYSTEMS: Final = ("blink", "host_resident")
CAPABILITIES: Final = frozenset(
    {"ring", "launch_window", "faults.cancel", "faults.client_timeout", "host_resident"}
)
LEAD_NS: Final = 20_000_000  # from the start of the clock to the first arrival


Beside = Callable[[], AbstractContextManager[object]]


class HwBackend:
    """The GPU behind the backend interface. Raises BackendUnavailable where there is none."""

    name = NAME
    clock = CLOCK
    capabilities = CAPABILITIES

    def __init__(self) -> None:
        libraries()
        self.setting_up: Progress = lambda what, done, of: None
        """called as graphs are captured: what, how many are done, of how many"""

    def run(
        self,
        setup: RunSetup,
        *,
        commit: str,
        progress: Callable[[int], None] = lambda ended: None,
        beside: Beside = nullcontext,
    ) -> RunRecord:
        """Run ``setup`` until every request has ended; ``progress(ended)`` is called as they do.

        ``beside()`` is entered when everything is set up, and left when the last request has ended.

        Raises BadInput for a system or a fault that is not to be had on metal, what the scheduler's
        report raises if it stops, and ModelDoesNotFit.
        """
        _check(setup)
        check_servable(setup)
        server = server_of(setup, self.setting_up)
        try:
            record = self._serve(setup, server, commit, progress, beside)
        except BaseException:
            with suppress(CudaError):  # a GPU that is lost gives nothing back; the cause is told
                server.close()
            raise
        server.close()
        return record

    def metal(self) -> dict[str, Any]:
        """Date, GPU, driver, CUDA and clocks."""
        return metal()

    def microbenchmarks(
        self, progress: Callable[[str], None] = lambda what: None
    ) -> dict[str, dict[str, float | int]]:
        """What single things cost here, ns: ``{name: {"p50", "p99", "mean", "count"}}``."""
        return {name: sample.as_dict() for name, sample in microbenchmarks(progress).items()}

    def _serve(
        self,
        setup: RunSetup,
        server: Server,
        commit: str,
        progress: Callable[[int], None],
        beside: Beside,
    ) -> RunRecord:
        clients = ClientLoop(
            setup,
            requests_of(setup, stream_of(setup.seed)),
            server.geometry,
            server.transport,
            stop_token=server.stop_token,
            check=server.check,
            progress=progress,
        )
        with beside():
            server.start()
            start_ns = time.perf_counter_ns() + LEAD_NS
            clients.run(start_ns)
            server.stop()
        ran = [_from(step, start_ns) for step in server.steps()]
        tables = tables_of(clients.book, ran)
        return RunRecord(
            label=setup.label,
            system=setup.system,
            condition=setup.condition,
            backend=NAME,
            seed=setup.seed,
            commit=commit,
            requests=tables.requests,
            steps=tables.steps,
            decode_ranges=tables.decode_ranges,
            counters=dict(sorted({**server.counters(), **_counts(clients, ran)}.items())),
            energy_j=None,
            host_cpu_on_token_path_ns=0 if setup.system == "blink" else None,
            scenario=setup.scenario,
            assumptions={"metal": metal(), "engine": server.describe()},
        )


def _check(setup: RunSetup) -> None:
    if setup.system not in SYSTEMS:
        raise BadInput(
            f"backend 'hw' runs the systems {' and '.join(SYSTEMS)}, not {setup.system!r}: "
            f"--set systems={','.join(SYSTEMS)}"
        )
    if setup.parallel.gpus > 1:
        raise BadInput(
            f"backend 'hw' runs on one GPU, not on engine.tensor_parallel = {setup.parallel.gpus}: "
            "leave it out, or run it on the twin"
        )
    if setup.kv_offload is not None:
        raise BadInput(
            "backend 'hw' recomputes preempted sequences (engine.kv_offload_gb): leave it out, or "
            "run it on the twin"
        )
    if setup.speculation is not None:
        raise BadInput(
            "backend 'hw' does not speculate (speculation.draft_tokens): leave it out, or run it "
            "on the twin"
        )
    if setup.prefix_caching or setup.limits.chunk_tokens is not None:
        name = "prefix_caching" if setup.prefix_caching else "prefill_chunk_tokens"
        raise BadInput(
            f"backend 'hw' does not have engine.{name}: leave it out, or run it on the twin"
        )
    if setup.faults.extra_visibility_ns_max:
        raise BadInput(
            "backend 'hw' cannot delay what a card writes (faults.extra_visibility_us_max): "
            "leave it out, or run it on the twin"
        )


def _from(step: RanStep, start_ns: int) -> RanStep:
    names = ("decided_ns", "launched_ns", "start_ns", "end_ns", "seen_ns")
    return replace(step, **{name: getattr(step, name) - start_ns for name in names})


def _counts(clients: ClientLoop, ran: list[RanStep]) -> dict[str, int]:
    reader = clients.front_end.reader
    return {
        "gpu_busy_ns": sum(step.end_ns - step.start_ns for step in ran),
        "polls": reader.polls,
        "polls_empty": reader.polls_empty,
        "rejected": clients.rejected,
    }
