"""The whole scheduler in C++, driven from Python one step at a time.

It is a :class:`ResidentScheduler` whose steps are the host build's; what they leave is copied back
into the Python objects beside it after every step: whoever watches the one can watch the other.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator
from typing import Any, Final

from blink.hw.host.core import Core, fault_of
from blink.hw.kernel.status import Status
from blink.model.policy import GraphCache, Limits
from blink.model.policy.blocks import BlockPool
from blink.model.scheduler import (
    DECODE_GRAPH,
    PREFILL_GRAPH,
    Engine,
    Phase,
    ResidentScheduler,
    SlotState,
)
from blink.ring_protocol.ports import DeviceMemory
from blink.ring_protocol.ring import SchedulerRing
from blink.ring_protocol.window import LaunchWindow

_GRAPHS: Final = (PREFILL_GRAPH, DECODE_GRAPH)


class HostScheduler(ResidentScheduler):
    """See the module. library: one that was built otherwise, by default the plain one."""

    def __init__(
        self,
        memory: DeviceMemory,
        ring: SchedulerRing,
        engine: Engine,
        blocks: BlockPool,
        limits: Limits,
        graphs: GraphCache,
        window: LaunchWindow,
        *,
        library: Any = None,
    ) -> None:
        super().__init__(memory, ring, engine, blocks, limits, graphs, window)
        self.core = Core(
            memory,
            ring.geometry,
            limits=limits,
            graphs=graphs,
            window=window.max_launches,
            blocks_total=blocks.blocks_total,
            block_tokens=blocks.block_tokens,
            library_=library,
        )
        self._launches = 0
        self._tail_launches = 0

    def step(self) -> Phase:
        """See ResidentScheduler."""
        state = self.state
        if state.phase is Phase.WAIT and state.graph >= 0 and self.engine.finished():
            self.core.value("engine_finish")
        if state.phase is Phase.PUBLISH:
            self._hand_over_token()
        phase = Phase(self.core.value("scheduler_step"))
        self._follow()
        return phase

    def turn(self) -> None:
        """A step, or a whole phase as a team of threads shares it out (``team.h``)."""
        state = self.state
        if state.phase is Phase.WAIT and state.graph >= 0 and self.engine.finished():
            self.core.value("engine_finish")
        if state.phase is Phase.PUBLISH:
            for each in state.filling if state.graph == PREFILL_GRAPH else state.running:
                self.core.value("engine_set_token", each.slot, self.engine.token(each.slot))
        self.core.value("scheduler_turn")
        self._follow()

    def claim(self, slot: int, seen: int | None = None) -> bool:
        """See ResidentScheduler."""
        if seen is None:
            seen = self.memory.load_acquire(self.ring.geometry.metadata_offset(slot))
        before = len(self.state.claimed)
        self.core.value("scheduler_claim", slot, seen)
        self._follow()
        return len(self.state.claimed) > before

    def end_scan(self) -> None:
        """See ResidentScheduler."""
        self.core.value("scheduler_end_scan")
        self._follow()

    def relaunch(self) -> None:
        """See ResidentScheduler."""
        self.core.value("scheduler_relaunch")
        self._follow()

    def dump(self) -> list[int]:
        """All of its state, in the order of :func:`dump`."""
        size = self.core.value("scheduler_dump", (c.c_uint64 * 0)(), 0)
        numbers = (c.c_uint64 * size)()
        self.core.value("scheduler_dump", numbers, size)
        return list(numbers)

    def _hand_over_token(self) -> None:
        state = self.state
        batch = state.filling if state.graph == PREFILL_GRAPH else state.running
        if state.cursor < len(batch) and not batch[state.cursor].recomputing:
            slot = batch[state.cursor].slot
            self.core.value("engine_set_token", slot, self.engine.token(slot))

    def _follow(self) -> None:
        """Copy what the core holds now; pass on what it launched; raise what stopped it."""
        self._copy(iter(self.dump()))
        graph, exec_index, count = c.c_uint32(), c.c_uint32(), c.c_uint32()
        slots = (c.c_uint32 * self.core.geometry.slots)()
        launches = self.core.value("engine_launched", graph, exec_index, count, slots)
        tail_launches = self.core.value("engine_tail_launches")
        if tail_launches > self._tail_launches:
            self._tail_launches = tail_launches
            self.engine.tail_launch()
        if launches > self._launches:
            self._launches = launches
            self.engine.launch(graph.value, exec_index.value, slots[: count.value])
        self._raise_fault()

    def _raise_fault(self) -> None:
        slot = c.c_uint32()
        fault = self.core.call("scheduler_fault", slot)
        if fault is not Status.OK:
            raise fault_of(fault, slot.value)

    def _copy(self, numbers: Iterator[int]) -> None:
        state, window, blocks = self.state, self.window, self.blocks
        state.phase, state.cursor = Phase(next(numbers)), next(numbers)
        state.graph = next(numbers) - 1
        window.launches, window.launches_total = next(numbers), next(numbers)
        window.relaunches = next(numbers)
        for graph in _GRAPHS:
            window._turn_of[graph] = next(numbers)
        for part in (state.waiting, state.running, state.filling, state.claimed):
            part[:] = [_slot_state(numbers) for _ in range(next(numbers))]
        blocks.free[:] = [next(numbers) for _ in range(next(numbers))]
        blocks.tables.clear()
        for slot in range(self.core.geometry.slots):
            if table := [next(numbers) for _ in range(next(numbers))]:
                blocks.tables[slot] = table
            next(numbers)  # the flag word that it holds


def dump(scheduler: ResidentScheduler) -> list[int]:
    """All of a scheduler's state as whole numbers: ``dump_of`` in host.cpp has the same order."""
    if isinstance(scheduler, HostScheduler):
        return scheduler.dump()
    state, window, blocks = scheduler.state, scheduler.window, scheduler.blocks
    numbers = [state.phase, state.cursor, state.graph + 1]
    numbers += [window.launches, window.launches_total, window.relaunches]
    numbers += [window._turn_of.get(graph, 0) for graph in _GRAPHS]
    for part in (state.waiting, state.running, state.filling, state.claimed):
        numbers.append(len(part))
        for each in part:
            numbers += [each.slot, each.generation, each.request_id, each.arrival_ns]
            numbers += [each.prompt_tokens, each.output_tokens_max, each.stop_token]
            numbers += [each.flags, each.tokens, each.recomputing]
    numbers += [len(blocks.free), *blocks.free]
    for slot, held in enumerate(scheduler.ring._held):
        table = blocks.tables.get(slot, [])
        numbers += [len(table), *table, held]
    return numbers


def _slot_state(numbers: Iterator[int]) -> SlotState:
    fields: dict[str, Any] = dict(zip(SlotState.__slots__, numbers, strict=False))
    return SlotState(**fields)
