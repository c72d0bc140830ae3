"""Small synthetic records for tests of whatever reads a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blink.model.record import (
    ABSENT,
    STEP_DECODE,
    STEP_PREFILL,
    DecodeRanges,
    Int64Array,
    Mark,
    RequestTable,
    RunRecord,
    StepTable,
)
from blink.ring_protocol.states import Outcome

MS = 1_000_000
SUBMIT_NS = 30_000


def build_record(
    *,
    system: str = "blink",
    condition: str = "isolated",
    requests: int = 40,
    rate_per_s: float = 20.0,
    control_ns: int = 20_000,
    jitter_ns: int = 0,
    delivery_ns: int = 60_000,
    output_tokens_mean: int = 60,
    batch_max: int = 32,
    seed: int = 1,
    unfinished: int = 0,
) -> RunRecord:
    """Serve random requests with inline prefill; ``control_ns`` precedes each step.

    The arrivals and lengths depend on ``seed`` only, so systems can be compared. The last
    ``unfinished`` requests are turned away by the front end.
    """
    rng = np.random.default_rng(seed)
    world = _World(
        arrival_ns=np.cumsum(rng.exponential(1e9 / rate_per_s, requests)).astype(np.int64),
        input_tokens=rng.integers(50, 1500, requests),
        output_tokens=1 + rng.geometric(1 / output_tokens_mean, requests),
        control_ns=control_ns,
        jitter_ns=jitter_ns,
        delivery_ns=delivery_ns,
        rng=np.random.default_rng(seed + 1),
    )
    world.serve(requests - unfinished, batch_max)
    steps, ranges = world.tables()
    return RunRecord(
        label=f"{system} {condition}",
        system=system,
        condition=condition,
        backend="sim",
        seed=seed,
        commit="0" * 40,
        requests=world.request_table(steps, requests - unfinished),
        steps=steps,
        decode_ranges=ranges,
        counters={"launches": len(steps), "relaunches": len(steps) // 120},
        energy_j=0.4 * float(world.output_tokens.sum()),
        host_cpu_on_token_path_ns=0 if system == "blink" else control_ns * len(steps),
        scenario={"title": "A synthetic run", "question": "Does it look right?", "seed": seed},
        assumptions={"step": "8 ms"},
        marks=[]
        if not requests
        else [Mark("scheduler", "tail relaunch", 5 * MS, 4_000, {"window": 120})],
    )


@dataclass
class _World:
    """An engine that prefills one prompt at a time and else decodes everything it holds."""

    arrival_ns: Int64Array
    input_tokens: Int64Array
    output_tokens: Int64Array
    control_ns: int
    jitter_ns: int
    delivery_ns: int
    rng: np.random.Generator
    now_ns: int = 0
    ordinal: int = 0
    steps: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    ranges: list[tuple[int, int, int]] = field(default_factory=list)
    scheduled: dict[int, int] = field(default_factory=dict)
    first_step: dict[int, int] = field(default_factory=dict)

    def serve(self, count: int, batch_max: int) -> None:
        running: dict[int, int] = {}  # request -> ordinal of its first decode step
        arrived = 0
        while arrived < count or running:
            if arrived < count and len(running) < batch_max:
                if not running:
                    self.now_ns = max(self.now_ns, int(self.arrival_ns[arrived]) + SUBMIT_NS)
                if self.arrival_ns[arrived] + SUBMIT_NS <= self.now_ns:
                    self._prefill(arrived, running)
                    arrived += 1
                    continue
            self._step(8 * MS + 40_000 * len(running), len(running), 0)
            self.ordinal += 1
            for request, first in list(running.items()):
                if self.ordinal - first >= self.output_tokens[request] - 1:
                    del running[request]
                    self.ranges.append((request, first, self.ordinal))

    def _prefill(self, request: int, running: dict[int, int]) -> None:
        self.scheduled[request] = self.now_ns
        self.first_step[request] = len(self.steps)
        tokens = int(self.input_tokens[request])
        self._step(2 * MS + 20_000 * tokens, 0, tokens)
        if self.output_tokens[request] > 1:
            running[request] = self.ordinal

    def _step(self, gpu_ns: int, batch: int, prefill_tokens: int) -> None:
        launched = self.now_ns
        start = launched + self.control_ns + int(self.rng.exponential(1) * self.jitter_ns)
        self.now_ns = start + gpu_ns
        self.steps.append((launched, start, self.now_ns, batch, prefill_tokens))

    def tables(self) -> tuple[StepTable, DecodeRanges]:
        columns = np.array(self.steps, dtype=np.int64).reshape(-1, 5).T
        batch = columns[3]
        kind = np.where(batch > 0, STEP_DECODE, STEP_PREFILL).astype(np.int8)
        return (
            StepTable(
                launched_ns=columns[0],
                start_ns=columns[1],
                end_ns=columns[2],
                delivered_ns=columns[2] + self.delivery_ns,
                kind=kind,
                decode_batch=batch,
                prefill_tokens=columns[4],
                context_tokens=batch * 700,
            ),
            decode_ranges(self.ranges),
        )

    def request_table(self, steps: StepTable, served: int) -> RequestTable:
        count = len(self.arrival_ns)
        first_step = np.full(count, ABSENT, dtype=np.int64)
        scheduled, last_step = first_step.copy(), first_step.copy()
        for request, row in self.first_step.items():
            first_step[request], last_step[request] = row, row
            scheduled[request] = self.scheduled[request]
        for request, _, end in self.ranges:
            last_step[request] = steps.decodes[end - 1]
        here = np.arange(count) < served
        delivered = np.append(steps.delivered_ns, ABSENT)  # row ABSENT gives ABSENT
        return RequestTable(
            arrival_ns=self.arrival_ns,
            input_tokens=self.input_tokens,
            output_tokens_wanted=self.output_tokens,
            output_tokens=np.where(here, self.output_tokens, 0),
            submitted_ns=np.where(here, self.arrival_ns + SUBMIT_NS, ABSENT),
            scheduled_ns=scheduled,
            first_token_ns=delivered[first_step],
            finish_ns=np.where(here, delivered[last_step], self.arrival_ns),
            outcome=np.where(here, int(Outcome.STOP), int(Outcome.REJECTED)).astype(np.int8),
            slot=np.where(here, np.arange(count) % 64, ABSENT),
            preemptions=np.zeros(count, dtype=np.int64),
            first_step=first_step,
        )


def decode_ranges(rows: Sequence[tuple[int, int, int]]) -> DecodeRanges:
    """Rows of (request, first ordinal, end ordinal) as a table."""
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return DecodeRanges(request=columns[0], first=columns[1], end=columns[2])


def build_pair(system: str = "blink", *, slowdown: float = 1.0, **options: Any) -> list[RunRecord]:
    """The same system isolated, and interfered with ``slowdown`` on its control plane."""
    control = options.pop("control_ns", 20_000)
    return [
        build_record(system=system, control_ns=control, **options),
        build_record(
            system=system, condition="interfered", control_ns=int(control * slowdown), **options
        ),
    ]
