"""A host thread's time: quiet work in, wall time out.

How much noise there is, and why, is the model's business (:mod:`blink.model.interference`); here it
becomes durations. Work is stretched by the pressure's inflation and a log-normal jitter. After
every slice of CPU time the thread has used, on average, it loses its core and waits: stalls are a
Poisson process over the thread's own CPU time. That makes them independent of how the twin cuts its
segments.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from blink.model.interference import HostPressure

_BLOCK: Final = 4096


class NoiseState(NamedTuple):
    """Where a thread stands in its noise; restoring it replays the same durations."""

    phases: int
    stalls: int
    cpu_ns: float
    stall_at_ns: float


class ThreadNoise:
    """One thread under a pressure. ``speed`` is its core's, relative to the profile's host."""

    def __init__(self, pressure: HostPressure, speed: float, rng: np.random.Generator) -> None:
        self._pressure = pressure
        self._stretch = pressure.work_inflation / speed
        self._jitter_rng, self._gap_rng, self._stall_rng = rng.spawn(3)
        self._factors: list[float] = []
        self._gaps: list[float] = []
        self._waits: list[float] = []
        self._stalling = pressure.stall_mean_ns > 0
        self._phases = 0
        self._stalls = 0
        self._cpu_ns = 0.0
        self._stall_at_ns = self._gap(0) if self._stalling else float("inf")

    def run(self, quiet_ns: float) -> int:
        """Return the wall time in ns of a phase of ``quiet_ns`` CPU time on a quiet core."""
        phase = self._phases
        self._phases = phase + 1
        if phase >= len(self._factors):
            self._draw_factors()
        work = quiet_ns * self._factors[phase]
        self._cpu_ns += work
        if self._cpu_ns < self._stall_at_ns:
            return round(work)
        wall = work
        while self._cpu_ns >= self._stall_at_ns:
            wall += self._waits[self._stalls]
            self._stalls += 1
            self._stall_at_ns += self._gap(self._stalls)
        return round(wall)

    @property
    def cpu_ns(self) -> int:
        """CPU time used so far, waits excluded."""
        return round(self._cpu_ns)

    def state(self) -> NoiseState:
        """Remember this point."""
        return NoiseState(self._phases, self._stalls, self._cpu_ns, self._stall_at_ns)

    def restore(self, state: NoiseState) -> None:
        """Go back to a remembered point: the phases after it have not happened."""
        self._phases, self._stalls, self._cpu_ns, self._stall_at_ns = state

    def _draw_factors(self) -> None:
        sigma = self._pressure.jitter_sigma
        draws = self._jitter_rng.lognormal(-sigma * sigma / 2, sigma, _BLOCK) * self._stretch
        self._factors += draws.tolist()

    def _gap(self, index: int) -> float:
        """CPU time between stalls ``index - 1`` and ``index``; their waits are drawn alongside."""
        if index >= len(self._gaps):
            pressure = self._pressure
            self._gaps += self._gap_rng.exponential(pressure.slice_ns, _BLOCK).tolist()
            self._waits += self._stall_rng.exponential(pressure.stall_mean_ns, _BLOCK).tolist()
        return self._gaps[index]
