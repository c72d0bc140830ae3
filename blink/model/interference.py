"""What noisy neighbours do to host work: a mechanism of four parts.

1. *Run queue.* ``n`` runnable threads a CPU, the server's own included. Neighbours count with
   ``rival_weight``, for a thread that sleeps often is put before threads that never do. After a
   slice of CPU a thread waits for ``n - 1`` others' slices. Pinning removes the neighbours from the
   server's CPUs, and leaves its own threads with fewer of them.
2. *Hyper-threads.* When more hardware threads are busy than there are cores, a shared one counts as
   ``smt_capacity`` of a CPU in that queue.
3. *Cache.* Neighbours push the server's lines out of the last-level cache; the memory-bound share
   of its work slows with the miss rate. Cache ways given to the server bring the miss rate back.
4. *Translation and memory traffic.* Page walks, TLB shoot-downs and bandwidth slow the same share;
   cache ways do not help, huge pages a little.

1 and 2 add stalls; 3 and 4 multiply work. Everything is neutral on a quiet host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blink.model.control_plane import ControlPlane
from blink.model.hardware import HostSku
from blink.model.provenance import Entry, catalogue, entry


@dataclass(frozen=True, slots=True)
class Neighbour:
    """``threads`` threads of the preset ``kind`` in ``data/interferers.toml``."""

    kind: str
    threads: int


@dataclass(frozen=True, slots=True)
class Interference:
    """The neighbours and what was done against them.

    ``pinned_cores`` are the server's own logical CPUs, ``llc_ways`` the cache ways kept for it,
    ``huge_pages`` whether its own memory lies in them. The two factors scale what the mechanism
    adds, waits and work: 1 as the catalogue has it, or as fitted (:mod:`blink.model.fitted`).
    """

    neighbours: tuple[Neighbour, ...] = ()
    pinned_cores: int | None = None
    llc_ways: int | None = None
    huge_pages: bool = False
    queue_factor: float = 1.0
    memory_factor: float = 1.0


QUIET = Interference()


@dataclass(frozen=True, slots=True)
class HostPressure:
    """How host work stretches.

    ``work_inflation`` multiplies CPU time; every ``slice_ns`` of it the thread waits
    ``stall_mean_ns`` on average (0: no run queue). Rates are for the report.
    """

    work_inflation: float
    runnable_per_cpu: float
    stall_mean_ns: float
    slice_ns: float
    jitter_sigma: float
    llc_miss_rate: float

    @property
    def inflation_mean(self) -> float:
        """Expected wall time over quiet CPU time."""
        return self.work_inflation * (1 + self.stall_mean_ns / self.slice_ns)

    def stall_probability(self, work_ns: float) -> float:
        """The chance that a phase of ``work_ns`` quiet CPU time is descheduled at least once."""
        if not self.stall_mean_ns:
            return 0.0
        return float(-np.expm1(-work_ns * self.work_inflation / self.slice_ns))

    def phases_ns(
        self, work_ns: float | NDArray[np.float64], count: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Wall times of ``count`` phases of ``work_ns`` quiet CPU time each, int64[count].

        Log-normal jitter of mean 1, then the inflation, then a Poisson number of stalls of
        exponential length. Draws from ``rng`` only what it needs.
        """
        quiet = np.broadcast_to(np.asarray(work_ns, dtype=np.float64), (count,))
        work = quiet * self.work_inflation
        if self.jitter_sigma:
            spread = self.jitter_sigma
            work = work * rng.lognormal(-spread * spread / 2, spread, count)
        if self.stall_mean_ns:
            stalls = rng.poisson(work / self.slice_ns)
            work = work + rng.gamma(np.maximum(stalls, 1e-9), self.stall_mean_ns) * (stalls > 0)
        return np.rint(work).astype(np.int64)


def host_pressure(host: HostSku, plane: ControlPlane, interference: Interference) -> HostPressure:
    """The pressure ``interference`` puts on ``plane``'s threads on ``host``.

    Raises ``UnknownName`` for a neighbour of no known kind.
    """
    constants = catalogue("interferers.toml")["_host"]
    kinds: Kinds = [
        (each, entry("interferers.toml", "neighbour", each.kind))
        for each in interference.neighbours
    ]
    rivals = sum(each.threads * kind.number("runnable_share") for each, kind in kinds)
    runnable = _runnable_per_cpu(host, plane, interference, rivals, constants)
    miss_rate = _miss_rate(host, interference, kinds, constants)
    slice_ns = constants.number("slice_ns")
    return HostPressure(
        work_inflation=_memory(host, plane, interference, kinds, miss_rate, constants),
        runnable_per_cpu=runnable,
        stall_mean_ns=(runnable - 1) * slice_ns * interference.queue_factor,
        slice_ns=slice_ns,
        jitter_sigma=plane.jitter_sigma,
        llc_miss_rate=miss_rate,
    )


Kinds = list[tuple[Neighbour, Entry]]


def _runnable_per_cpu(
    host: HostSku, plane: ControlPlane, interference: Interference, rivals: float, constants: Entry
) -> float:
    capacity = _cpu_capacity(host, plane.threads + rivals, constants)
    if interference.pinned_cores:
        return max(1.0, plane.threads / (interference.pinned_cores * capacity))
    weighed = plane.threads + rivals * constants.number("rival_weight")
    return max(1.0, weighed / (host.threads * capacity))


def _cpu_capacity(host: HostSku, busy_threads: float, constants: Entry) -> float:
    """What one logical CPU is worth, in CPUs that nobody shares."""
    busy = min(host.threads, busy_threads)
    shared = min(1.0, max(0.0, busy - host.physical_cores) / host.physical_cores)
    return 1 - shared * (1 - constants.number("smt_capacity"))


def _miss_rate(host: HostSku, interference: Interference, kinds: Kinds, constants: Entry) -> float:
    quiet = constants.number("llc_miss_rate_quiet")
    if not kinds:
        return quiet
    working_set = constants.number("llc_working_set_bytes")
    footprint = sum(each.threads * kind.number("llc_footprint_bytes") for each, kind in kinds)
    kept = host.llc_bytes * working_set / (working_set + footprint)
    if interference.llc_ways is not None:
        kept = host.llc_bytes / host.sockets * min(1.0, interference.llc_ways / host.llc_ways)
    lost = max(0.0, 1 - kept / working_set)
    return quiet + (constants.number("llc_miss_rate_polluted") - quiet) * lost


def _memory(
    host: HostSku,
    plane: ControlPlane,
    interference: Interference,
    kinds: Kinds,
    miss_rate: float,
    constants: Entry,
) -> float:
    if not kinds:
        return 1.0
    quiet = constants.number("llc_miss_rate_quiet")
    cache = constants.number("llc_inflation") * (miss_rate - quiet) / (1 - quiet)
    pressure = sum(each.threads * kind.number("memory_pressure") for each, kind in kinds)
    relief = constants.number("huge_page_relief") if interference.huge_pages else 0.0
    walks = constants.number("tlb_inflation") * min(1.0, pressure / host.physical_cores)
    added = plane.memory_bound_share * (cache + walks * (1 - relief))
    return 1 + added * interference.memory_factor
