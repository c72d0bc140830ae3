"""The C++ scheduler on threads of its own: it serves a ring while Python computes.

    memory = SharedMemory.formatted(geometry)
    with HostThreads(memory, limits=limits, blocks_total=64, block_tokens=16) as scheduler:
        while serving:
            if (graph := scheduler.running()) is not None:
                scheduler.finish({each.slot: compute(each) for each in graph.sequences})

Front ends, in this process or in others, reach it only through the memory.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from blink.hw.host.core import Core, fault_of
from blink.hw.host.memory import SharedMemory
from blink.hw.kernel.status import Status
from blink.model.policy import GraphCache, Limits
from blink.model.scheduler import PREFILL_GRAPH
from blink.ring_protocol.constants import LAUNCH_WINDOW_MAX, SCHEDULER_THREADS

_FIXED = 4  # numbers of a sequence before its block table


@dataclass(frozen=True, slots=True)
class Sequence:
    """One request in the running graph.

    tokens: published so far; the graph computes the next one, unless `recomputing`: then it only
    fills the sequence's KV blocks again. blocks: its KV blocks, oldest token first.
    """

    slot: int
    request_id: int
    prompt_tokens: int
    tokens: int
    recomputing: bool
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph that the scheduler has launched and waits for."""

    prefill: bool
    sequences: tuple[Sequence, ...]


class HostThreads:
    """See the module. Threads run from here to :meth:`stop`, which leaving a ``with`` calls.

    scanners: logical threads that look for work; threads: real ones that they are dealt to, or,
    `contested`, that each play all of them, so that they race for every slot. The rest as in
    ResidentScheduler. Raises BackendUnavailable without g++, LayoutMismatch for another ring.
    """

    def __init__(
        self,
        memory: SharedMemory,
        *,
        limits: Limits,
        graphs: GraphCache | None = None,
        window: int = LAUNCH_WINDOW_MAX,
        blocks_total: int,
        block_tokens: int,
        scanners: int = SCHEDULER_THREADS,
        threads: int = 2,
        contested: bool = False,
    ) -> None:
        geometry = memory.geometry
        self._core = Core(
            memory,
            geometry,
            limits=limits,
            graphs=graphs,
            window=window,
            blocks_total=blocks_total,
            block_tokens=block_tokens,
        )
        self._slots = (c.c_uint32 * geometry.slots)()
        self._numbers = (c.c_uint64 * (_FIXED + blocks_total))()
        self._finished = 0
        started = self._core.value("threads_start", scanners, threads, contested)
        assert started, "SharedMemory is memory of this process"

    def running(self) -> Graph | None:
        """The graph that waits to be finished, or None. Raises what stopped the scheduler."""
        graph, exec_index, count = c.c_uint32(), c.c_uint32(), c.c_uint32()
        launches = self._core.value("engine_launched", graph, exec_index, count, self._slots)
        if launches == self._finished:
            self._raise_fault()
            return None
        sequences = tuple(self._sequence(slot) for slot in self._slots[: count.value])
        return Graph(graph.value == PREFILL_GRAPH, sequences)

    def check(self) -> None:
        """Raises what stopped the scheduler."""
        self._raise_fault()

    def finish(self, tokens: Mapping[int, int]) -> None:
        """End the running graph: the next token by slot."""
        for slot, token in tokens.items():
            self._core.value("engine_set_token", slot, token)
        self._core.value("engine_finish")
        self._finished += 1

    def value(self, name: str, *arguments: Any) -> Any:
        """Call a function of the core."""
        return self._core.value(name, *arguments)

    def stop(self) -> None:
        """End the threads, between two steps. What the scheduler holds stays held."""
        self._core.value("threads_stop")

    def blocks_free(self) -> int:
        """KV blocks that no sequence holds. Only when stopped."""
        found: int = self._core.value("blocks_free")
        return found

    def __enter__(self) -> HostThreads:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _sequence(self, slot: int) -> Sequence:
        count = self._core.value("engine_sequence", slot, self._numbers, len(self._numbers))
        request_id, prompt_tokens, tokens, recomputing, *blocks = self._numbers[:count]
        return Sequence(slot, request_id, prompt_tokens, tokens, bool(recomputing), tuple(blocks))

    def _raise_fault(self) -> None:
        slot = c.c_uint32()
        fault = self._core.call("threads_fault", slot)
        if fault is not Status.OK:
            raise fault_of(fault, slot.value)
