"""Bugs to plant. Each is one wrong line, as somebody might write it, and must be found.

    with planted("paused_request_starved"):
        ...   # explore, or run a conformance check: it must fail

Each replaces a function of the real code while it is planted. What finds it, and how fast, is in
``tests/canaries/test_canaries.py``; ``blink check --plant NAME`` shows the way there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

from blink.model.errors import UnknownName
from blink.model.policy.blocks import BlockPool
from blink.model.scheduler import PREFILL_GRAPH, Phase, ResidentScheduler, SlotState
from blink.ring_protocol import ring as ring_module
from blink.ring_protocol.descriptor import outcome_asked
from blink.ring_protocol.front_end import core, token_reader
from blink.ring_protocol.front_end.core import FrontEnd
from blink.ring_protocol.front_end.submission import encode_release, encode_submission
from blink.ring_protocol.front_end.token_reader import TokenReader
from blink.ring_protocol.ports import Op
from blink.ring_protocol.ring import Claimed, SchedulerRing
from blink.ring_protocol.slot import STATE_MASK, CasIntent, SlotWord, may_become, step
from blink.ring_protocol.states import Event, Outcome, State, Writer
from blink.ring_protocol.window import LaunchWindow
from blink.testing.explorer.machine import Memory

Patch = tuple[Any, str, Any]


def _flag_before_payload(*arguments: Any) -> tuple[Op, ...]:
    *writes, flag = encode_submission(*arguments)
    return (flag, *writes)


def _release_twice(*arguments: Any) -> tuple[Op, ...]:
    return encode_release(*arguments) * 2


def _cas_always_wins(self: Memory, offset: int, expected: int, desired: int) -> int:
    self.store_release(offset, desired)
    return expected


def _claim_whatever_cas_says(
    self: SchedulerRing, slot: int, seen: int | None = None
) -> Claimed | None:
    flag = self._flags[slot]
    word = self._memory.load_acquire(flag) if seen is None else seen
    if word & STATE_MASK != State.PREFILL_PENDING:
        return None
    intent = step(word, Event.CLAIM, Writer.SCHEDULER, slot=slot)
    self._memory.cas(flag, intent.expected, intent.desired)
    claimed = self._read_request(slot, intent.desired)
    self._hold(slot, intent.desired, claimed.output_tokens_max)
    return claimed


def _one_launch_too_many(self: LaunchWindow, count: int = 1) -> None:
    self.launches += count
    self.launches_total += count


def _one_more_headroom(self: LaunchWindow) -> int:
    return self.max_launches + 1 - self.launches


def _always_the_first_exec(self: LaunchWindow, graph: object) -> int:
    return 0


def _relaunch_that_adopts_nothing(self: ResidentScheduler) -> None:
    self.engine.tail_launch()
    self.window.relaunch()
    self.ring = SchedulerRing(self.memory, self.ring.geometry)
    self.go_on(Phase.SCAN)


def _relaunch_that_never_comes(self: ResidentScheduler) -> None:
    self.go_on(Phase.SCAN)


def _publish_then_write(self: ResidentScheduler, each: SlotState) -> None:
    token = self.engine.token(each.slot)
    (self.ring.advance if each.tokens else self.ring.first_token)(each.slot)
    self.ring.write_tokens(each.slot, each.tokens, token.to_bytes(4, "little"))
    each.tokens += 1


def _cancel_lost_in_prefill(self: SchedulerRing, slot: int) -> Outcome:
    if self._word_of(slot) & STATE_MASK == State.PREFILL_PROCESSING:
        return Outcome.NONE
    return _cancelled(self, slot)


def _cancel_of_any_generation(word: int, generation: int, *, slot: int | None = None) -> Outcome:
    return outcome_asked(word, word >> 8, slot=slot)


def _abort_keeps_its_blocks(self: ResidentScheduler, each: SlotState, outcome: Outcome) -> None:
    self.ring.complete(each.slot, outcome)
    if outcome in (Outcome.STOP, Outcome.LENGTH):
        self.blocks.release(each.slot)


def _resume_forgets_the_last(self: ResidentScheduler) -> None:
    if self.state.cursor == 0 and self.state.running:
        self.state.running.pop()
    _resume(self)


def _table_that_never_grows(self: BlockPool, slot: int, tokens: int) -> None:
    if slot not in self.tables:
        _extend(self, slot, tokens)


def _block_of_two_owners(self: BlockPool, slot: int) -> None:
    table = self.tables.pop(slot, [])
    self.free += [*table, *table[-1:]]


def _any_generation_will_do(before: SlotWord, after: SlotWord) -> bool:
    return may_become(before, after._replace(generation=before.generation))


def _only_steady_slots(self: TokenReader, words: memoryview) -> list[tuple[int, int, int]]:
    urgent, self._urgent = self._urgent, {}
    changed = _changed(self, words)
    self._urgent = urgent
    return changed


def _attach_without_cancel(self: FrontEnd, metadata: bytes | memoryview) -> None:
    self.slots.refresh(metadata)


def _same_generation_again(word: int, event: Event, writer: Writer, **arguments: Any) -> CasIntent:
    intent = step(word, event, writer, **arguments)
    if event is Event.SUBMIT:
        return intent._replace(desired=intent.desired - (1 << 16) if word >> 16 else intent.desired)
    return intent


def _pause_nobody(self: ResidentScheduler, count: int) -> None:
    """The batch is not paused for the prompt, and is resumed all the same."""
    state = self.state
    state.filling, state.waiting = state.waiting[:count], state.waiting[count:]
    for each in state.filling:
        self.blocks.extend(each.slot, each.context_tokens)
    self._start(PREFILL_GRAPH, state.filling)


_cancelled: Final[Callable[[SchedulerRing, int], Outcome]] = SchedulerRing.cancelled
_resume: Final[Callable[[ResidentScheduler], None]] = ResidentScheduler.resume
_extend: Final[Callable[[BlockPool, int, int], None]] = BlockPool.extend
_changed: Final[Callable[..., list[tuple[int, int, int]]]] = TokenReader._changed

BUGS: Final[dict[str, list[Patch]]] = {
    "flag_before_payload": [(core, "encode_submission", _flag_before_payload)],
    "missing_generation": [(core, "step", _same_generation_again)],
    "cas_always_wins": [(Memory, "cas", _cas_always_wins)],
    "claim_whatever_cas_says": [(SchedulerRing, "claim", _claim_whatever_cas_says)],
    "window_of_one_more": [
        (LaunchWindow, "launch", _one_launch_too_many),
        (LaunchWindow, "headroom", property(_one_more_headroom)),
    ],
    "exec_reused_while_running": [(LaunchWindow, "alternate", _always_the_first_exec)],
    "relaunch_adopts_nothing": [(ResidentScheduler, "relaunch", _relaunch_that_adopts_nothing)],
    "relaunch_lost": [(ResidentScheduler, "relaunch", _relaunch_that_never_comes)],
    "token_published_before_written": [(ResidentScheduler, "_publish_token", _publish_then_write)],
    "slot_freed_twice": [(core, "encode_release", _release_twice)],
    "cancel_lost_in_prefill": [(SchedulerRing, "cancelled", _cancel_lost_in_prefill)],
    "cancel_of_any_generation": [(ring_module, "outcome_asked", _cancel_of_any_generation)],
    "kv_block_leaked_on_abort": [(ResidentScheduler, "_end", _abort_keeps_its_blocks)],
    "paused_request_starved": [(ResidentScheduler, "resume", _resume_forgets_the_last)],
    "prompt_without_a_pause": [(ResidentScheduler, "_prefill", _pause_nobody)],
    "stale_block_table": [(BlockPool, "extend", _table_that_never_grows)],
    "block_of_two_owners": [(BlockPool, "release", _block_of_two_owners)],
    "late_completion_of_a_reused_slot": [(token_reader, "may_become", _any_generation_will_do)],
    "urgent_slot_forgotten": [(TokenReader, "_changed", _only_steady_slots)],
    "orphans_forgotten": [(FrontEnd, "attach", _attach_without_cancel)],
}
"""Each bug: which function is replaced by which."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug while the block runs. Raises UnknownName for no such bug."""
    if name not in BUGS:
        raise UnknownName("planted bug", name, BUGS)
    with ExitStack() as stack:
        for target, attribute, wrong in BUGS[name]:
            stack.enter_context(mock.patch.object(target, attribute, wrong))
        yield
