"""The GPU-resident scheduler as one loop over the ring: the reference of ``hw/kernel/csrc``.

It owns no thread and no clock. Whoever drives it calls :meth:`ResidentScheduler.step` again and
again; each call is one step that others can see: a look at a slot, a claim, a launch, one slot's
tokens published. Between two calls anything may happen in ring memory.

::

    SCAN      each thread looks at its slots and claims what is pending    (while a graph runs)
    WAIT      if the graph still runs, look for work again
    PUBLISH   its tokens, slot by slot; ends whoever is done
    CANCEL    aborts whoever's client has left, held or waiting
    LAUNCH    decides (``policy.decide``), pauses for a prompt, gives out KV blocks, launches
    RELAUNCH  the window is used up: a fresh instance adopts what this one held

Everything that outlives an instance is in :class:`SchedulerState`, which on a GPU lies in its
memory; it is whole numbers and lists of them, so that two schedulers can be compared to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Protocol

from blink.model.policy import Action, GraphCache, Limits, decide
from blink.model.policy.blocks import BlockPool
from blink.ring_protocol.constants import TOKEN_BYTES
from blink.ring_protocol.descriptor import IGNORE_EOS
from blink.ring_protocol.ports import DeviceMemory
from blink.ring_protocol.ring import Claimed, SchedulerRing
from blink.ring_protocol.states import Outcome
from blink.ring_protocol.window import LaunchWindow

PREFILL_GRAPH: Final = 0
DECODE_GRAPH: Final = 1


class Phase(IntEnum):
    """Where in its loop the scheduler is."""

    SCAN = 0
    WAIT = 1
    PUBLISH = 2
    RESUME = 3
    CANCEL = 4
    LAUNCH = 5
    RELAUNCH = 6


@dataclass(slots=True)
class SlotState:
    """What the scheduler keeps of a request it holds."""

    slot: int
    generation: int
    request_id: int
    arrival_ns: int
    prompt_tokens: int
    output_tokens_max: int
    stop_token: int
    flags: int
    tokens: int = 0
    recomputing: bool = False  # its blocks were taken: what they held is computed again

    @property
    def context_tokens(self) -> int:
        """Keys and values that the next step needs to find: all but the last token's."""
        return self.prompt_tokens + max(0, self.tokens - 1)


@dataclass(slots=True)
class SchedulerState:
    """What outlives an instance of the scheduler.

    waiting: held, not in the batch, in the order of service. running: the batch, in the order of
    joining. filling: those whose prompt the running graph computes. claimed: what this scan has
    claimed. graph: which one runs, or -1.
    """

    waiting: list[SlotState] = field(default_factory=list)
    running: list[SlotState] = field(default_factory=list)
    filling: list[SlotState] = field(default_factory=list)
    claimed: list[SlotState] = field(default_factory=list)
    graph: int = -1
    phase: Phase = Phase.SCAN
    cursor: int = 0


class Engine(Protocol):
    """What the scheduler launches: graphs that read block tables and leave a token a sequence."""

    def launch(self, graph: int, exec_index: int, slots: Sequence[int]) -> None:
        """Start a captured graph on these sequences, in this order."""

    def finished(self) -> bool:
        """Whether the graph that was launched last has set its completion flag."""

    def token(self, slot: int) -> int:
        """The token that the last finished graph left for this sequence."""

    def tail_launch(self) -> None:
        """Replace the running scheduler by a fresh instance."""


class ResidentScheduler:
    """One scheduler; see the module.

    window: launches an execution may make. Raises what :class:`SchedulerRing` raises.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        ring: SchedulerRing,
        engine: Engine,
        blocks: BlockPool,
        limits: Limits,
        graphs: GraphCache,
        window: LaunchWindow,
    ) -> None:
        self.memory = memory
        self.ring = ring
        self.engine = engine
        self.blocks = blocks
        self.limits = limits
        self.graphs = graphs
        self.window = window
        self.state = SchedulerState()

    def step(self) -> Phase:
        """Do one thing that others can see; return the phase it belonged to."""
        phase = self.state.phase
        match phase:
            case Phase.SCAN:
                self.scan()
            case Phase.WAIT:
                self.wait()
            case Phase.PUBLISH:
                self.publish()
            case Phase.RESUME:
                self.resume()
            case Phase.CANCEL:
                self.cancel()
            case Phase.LAUNCH:
                self.launch()
            case Phase.RELAUNCH:
                self.relaunch()
        return phase

    @property
    def idle(self) -> bool:
        """Whether nothing is held: only a new request can change anything."""
        state = self.state
        return not (state.waiting or state.running or state.filling or state.claimed)

    def go_on(self, phase: Phase) -> None:
        """Enter a phase at its beginning."""
        self.state.phase = phase
        self.state.cursor = 0

    # --- finding work ------------------------------------------------------------------------

    def scan(self) -> None:
        """All threads look and claim at once; a driver may let them take turns instead."""
        for slot in self.ring.scan():
            self.claim(slot)
        self.end_scan()

    def claim(self, slot: int, seen: int | None = None) -> bool:
        """One thread's claim of a slot that it saw pending. False if somebody was faster."""
        claimed = self.ring.claim(slot, seen)
        if claimed is None:
            return False
        self.state.claimed.append(_held(claimed))
        return True

    def end_scan(self) -> None:
        """All threads have met: what they claimed waits in order of arrival."""
        state = self.state
        state.claimed.sort(key=lambda each: (each.arrival_ns, each.slot))
        state.waiting += state.claimed
        state.claimed = []
        self.go_on(Phase.WAIT)

    # --- a graph that ran --------------------------------------------------------------------

    def wait(self) -> None:
        """Go on once nothing runs; until then look for work again and again."""
        if self.state.graph < 0:
            self.go_on(Phase.CANCEL)
        else:
            self.go_on(Phase.PUBLISH if self.engine.finished() else Phase.SCAN)

    def publish(self) -> None:
        """Publish one sequence's token, and its end; the last one ends the phase."""
        state = self.state
        batch = state.filling if state.graph == PREFILL_GRAPH else state.running
        if state.cursor < len(batch):
            each = batch[state.cursor]
            if not each.recomputing:
                self._publish_token(each)
            state.cursor += 1
            return
        batch[:] = [each for each in batch if each.slot in self.blocks.tables]
        self.go_on(Phase.RESUME if state.graph == PREFILL_GRAPH else Phase.CANCEL)
        if state.graph == DECODE_GRAPH:
            state.graph = -1

    def _publish_token(self, each: SlotState) -> None:
        token = self.engine.token(each.slot)
        self.ring.write_tokens(each.slot, each.tokens, token.to_bytes(TOKEN_BYTES, "little"))
        if each.tokens:
            self.ring.advance(each.slot)
        else:
            self.ring.first_token(each.slot)
        each.tokens += 1
        outcome = _outcome(each, token)
        if outcome:
            self._end(each, outcome)

    def resume(self) -> None:
        """The prompts are computed: the batch decodes on, one slot a step, with the new ones."""
        state = self.state
        paused = state.running + [each for each in state.filling if each.recomputing]
        if state.cursor < len(paused):
            self.ring.resume(paused[state.cursor].slot)
            state.cursor += 1
            return
        for each in state.filling:
            each.recomputing = False
        state.running += state.filling
        state.filling = []
        state.graph = -1
        self.go_on(Phase.CANCEL)

    # --- between graphs ----------------------------------------------------------------------

    def cancel(self) -> None:
        """Look at one held request's cancel word."""
        state = self.state
        held = state.waiting + state.running
        if state.cursor >= len(held):
            self.go_on(Phase.LAUNCH)
            return
        each = held[state.cursor]
        asked = self.ring.cancelled(each.slot)
        if not asked and not self._can_go_on(each):
            asked = Outcome.FAILED  # it would wait for ever
        if not asked:
            state.cursor += 1
            return
        self._end(each, asked)
        state.waiting = [other for other in state.waiting if other is not each]
        state.running = [other for other in state.running if other is not each]

    def launch(self) -> None:
        """Decide, and launch what was decided."""
        state = self.state
        decision = decide(
            [each.context_tokens for each in state.waiting],
            len(state.running),
            self.window.headroom,
            self.blocks,
            self.graphs,
            self.limits,
            self._blocks_of_step(),
        )
        if decision.action is Action.RELAUNCH:
            self.go_on(Phase.RELAUNCH)
            return
        if decision.action is Action.PREFILL:
            self._prefill(decision.prefill_count)
        elif decision.action is Action.DECODE:
            self._decode()
        self.go_on(Phase.SCAN)

    def relaunch(self) -> None:
        """A fresh instance takes over: it knows nothing but memory."""
        self.engine.tail_launch()
        self.window.relaunch()
        self.ring = SchedulerRing(self.memory, self.ring.geometry)
        self.ring.adopt()
        self.go_on(Phase.SCAN)

    def _prefill(self, count: int) -> None:
        state = self.state
        for each in state.running:
            self.ring.pause(each.slot)
        state.filling, state.waiting = state.waiting[:count], state.waiting[count:]
        for each in state.filling:
            self.blocks.extend(each.slot, each.context_tokens)
        self._start(PREFILL_GRAPH, state.filling)

    def _decode(self) -> None:
        state = self.state
        while self._blocks_of_step() > self.blocks.blocks_free:
            self._preempt()
        for each in state.running:
            self.blocks.extend(each.slot, each.context_tokens + 1)
        self._start(DECODE_GRAPH, state.running)

    def _start(self, graph: int, batch: Sequence[SlotState]) -> None:
        self.window.launch()
        self.state.graph = graph
        exec_index = self.window.alternate(graph)
        self.engine.launch(graph, exec_index, [each.slot for each in batch])

    def _preempt(self) -> None:
        """The newest sequence stands still, without its blocks, first in line."""
        newest = self.state.running.pop()
        self.ring.pause(newest.slot)
        self.blocks.release(newest.slot)
        newest.recomputing = True
        self.state.waiting.insert(0, newest)

    def _blocks_of_step(self) -> int:
        return sum(
            self.blocks.blocks_short(each.slot, each.context_tokens + 1)
            for each in self.state.running
        )

    def _can_go_on(self, each: SlotState) -> bool:
        """Whether the whole cache holds the request's next step.

        Its limit does not matter: most requests end long before it.
        """
        return self.blocks.blocks_for(each.context_tokens + 1) <= self.blocks.blocks_total

    def _end(self, each: SlotState, outcome: Outcome) -> None:
        self.ring.complete(each.slot, outcome)
        self.blocks.release(each.slot)


def _held(claimed: Claimed) -> SlotState:
    descriptor = claimed.descriptor
    return SlotState(
        claimed.slot,
        claimed.generation,
        claimed.request_id,
        claimed.arrival_ns,
        claimed.prompt_tokens,
        claimed.output_tokens_max,
        descriptor.stop_token,
        descriptor.flags,
    )


def _outcome(each: SlotState, token: int) -> Outcome:
    """How the request ends with this token, or NONE."""
    if token == each.stop_token and not each.flags & IGNORE_EOS:
        return Outcome.STOP
    return Outcome.LENGTH if each.tokens == each.output_tokens_max else Outcome.NONE
