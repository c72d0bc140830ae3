"""What the C++ core must do as the Python reference does, case by case.

Each ``same_*`` takes one generated case, asks both, and says in one line where they differ. The
tests of this folder run them under the loaded profile; ``benchmarks/differential.py`` runs a
million.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from blink.hw.host.core import Core, HostRing
from blink.hw.host.library import Limits as CLimits
from blink.hw.host.library import library
from blink.hw.host.scheduler import HostScheduler, dump
from blink.hw.kernel.status import Status
from blink.model.policy import Action, GraphCache, Limits, decide
from blink.model.policy.blocks import BlockPool
from blink.model.scheduler import Phase
from blink.ring_protocol.constants import TOKENS_MAX
from blink.ring_protocol.descriptor import Descriptor, cancel_word, outcome_asked
from blink.ring_protocol.errors import LocalViolation, PeerViolation, RingError
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.loopback import LoopbackMemory
from blink.ring_protocol.ring import SchedulerRing
from blink.ring_protocol.slot import pack, step, unpack
from blink.ring_protocol.states import Event, Outcome, State, Writer
from blink.ring_protocol.window import LaunchWindow
from blink.testing import strategies
from blink.testing.explorer.fuzz import drain, draw_config, wander
from blink.testing.explorer.world import World

ACTIONS: Final = list(Action)
WORDS: Final = st.one_of(
    strategies.coherent_words.map(lambda word: pack(*word)),
    strategies.slot_words.map(lambda word: pack(*word)),
    st.integers(0, (1 << 64) - 1),
)

# --- flag words ------------------------------------------------------------------------------

StepCase = tuple[int, Event, Writer, int, Outcome]
STEPS: Final = st.tuples(
    WORDS,
    st.sampled_from(Event),
    st.sampled_from(Writer),
    st.one_of(st.integers(-1, 3), st.integers(TOKENS_MAX - 2, TOKENS_MAX + 2)),
    st.sampled_from(Outcome),
)

_REASONS: Final = {
    "is not a flag word": Status.NOT_A_FLAG_WORD,
    "the table has no such transition": Status.NO_TRANSITION,
    "may do this": Status.WRONG_WRITER,
    "overflow the count": Status.TOKENS_OVERFLOW,
    "tokens do not go with this event": Status.WRONG_TOKENS,
    "does not go with this event": Status.WRONG_OUTCOME,
}


def same_step(case: StepCase) -> None:
    """The same word, or refused for the same reason."""
    word, event, writer, tokens, outcome = case
    desired = c.c_uint64()
    status = Status(library().step(word, event, writer, tokens, outcome, desired))
    try:
        expected = step(word, event, writer, tokens=tokens, outcome=outcome).desired
    except (LocalViolation, PeerViolation) as refused:
        violation = refused
    else:
        assert status is Status.OK, f"SLOT: {case}: {status.name}, Python allows it"
        assert desired.value == expected, f"SLOT: {case}: {desired.value:#x} for {expected:#x}"
        return
    reason = next(found for text, found in _REASONS.items() if text in violation.reason)
    assert status is reason, f"SLOT: {case}: {status.name}, Python says {violation}"
    assert isinstance(violation, status.error), f"SLOT: {case}: {violation!r}"


AskedCase = tuple[int, int]
ASKED: Final = st.one_of(
    st.tuples(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 24) - 1)),
    st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 4)).map(
        lambda parts: (parts[0] << 8 | parts[1], parts[2])
    ),
)


def same_asked(case: AskedCase) -> None:
    """The same abort asked of the same generation."""
    word, generation = case
    outcome = c.c_uint32()
    status = Status(library().outcome_asked(word, generation, outcome))
    try:
        expected = outcome_asked(word, generation)
    except PeerViolation:
        assert status is Status.UNKNOWN_ABORT, f"CONSERVE: {case}: {status.name}"
    else:
        found = (status, outcome.value)
        assert found == (Status.OK, expected), f"CONSERVE: {case}: {found} for {expected!r}"


# --- layout ----------------------------------------------------------------------------------

OffsetCase = tuple[Geometry, int, int]
OFFSETS: Final = strategies.geometries.flatmap(
    lambda ring: st.tuples(
        st.just(ring),
        st.integers(0, ring.slots - 1),
        st.integers(0, ring.output_tokens_max - 1),
    )
)


def same_offsets(case: OffsetCase) -> None:
    """Everything lies where it lies for Python."""
    ring, slot, token = case
    found = (c.c_uint64 * 8)()
    shape = (ring.slots, ring.prompt_tokens_max, ring.output_tokens_max)
    library().geometry(*shape, slot, token, found)
    expected = [
        ring.metadata_offset(slot),
        ring.request_id_offset(slot),
        ring.descriptor_offset(slot),
        ring.cancel_offset(slot),
        ring.prompt_offset(slot),
        ring.output_offset(slot, token),
        ring.control_bytes,
        ring.total_bytes,
    ]
    assert list(found) == expected, f"SLOT: {case}: {list(found)} for {expected}"


# --- policy ----------------------------------------------------------------------------------

CONTEXT_TOKENS_MAX: Final = 96
_DECIDE_GEOMETRY: Final = Geometry(4, CONTEXT_TOKENS_MAX // 2, CONTEXT_TOKENS_MAX // 2)


@dataclass(frozen=True, slots=True)
class DecideCase:
    """Arguments of ``decide``, with what they are made of."""

    waiting: list[int]
    running: int
    headroom: int
    blocks_free: int
    blocks_reserved: int
    block_tokens: int
    limits: Limits
    prompt_tokens_max: int
    prompt_tokens: list[int]
    decode_batches: list[int]


@dataclass(frozen=True, slots=True)
class _Blocks:
    blocks_free: int
    block_tokens: int

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)


_BUCKETS: Final = st.lists(st.integers(1, CONTEXT_TOKENS_MAX), max_size=5, unique=True).map(sorted)


@st.composite
def _decide_cases(draw: st.DrawFn) -> DecideCase:
    batch_max = draw(st.integers(1, 12))
    return DecideCase(
        draw(st.lists(st.integers(1, CONTEXT_TOKENS_MAX), max_size=10)),
        draw(st.integers(0, batch_max + 1)),
        draw(st.integers(0, 4)),
        draw(st.integers(0, 40)),
        draw(st.integers(0, 12)),
        draw(st.integers(1, 20)),
        Limits(batch_max, draw(st.integers(1, batch_max)), draw(st.integers(1, 120))),
        draw(st.integers(1, CONTEXT_TOKENS_MAX)),
        draw(_BUCKETS),
        draw(_BUCKETS),
    )


DECISIONS: Final = _decide_cases()


def same_decision(case: DecideCase) -> None:
    """The same action, for the same number of prompts; and the same graphs."""
    limits = case.limits
    graphs = GraphCache(
        limits.batch_max, case.prompt_tokens_max, case.decode_batches, case.prompt_tokens
    )
    core = Core(
        LoopbackMemory.formatted(_DECIDE_GEOMETRY),
        _DECIDE_GEOMETRY,
        limits=limits,
        graphs=graphs,
        block_tokens=case.block_tokens,
    )
    count = c.c_uint32()
    found = core.value(
        "decide",
        (c.c_uint32 * len(case.waiting))(*case.waiting),
        *(len(case.waiting), case.running, case.headroom, case.blocks_free, case.blocks_reserved),
        CLimits(limits.batch_max, limits.prefill_batch_max, limits.prefill_tokens_max),
        count,
    )
    blocks = _Blocks(case.blocks_free, case.block_tokens)
    expected = decide(
        case.waiting, case.running, case.headroom, blocks, graphs, limits, case.blocks_reserved
    )
    decided = (ACTIONS[found], count.value)
    assert decided == (expected.action, expected.prefill_count), f"WORK: {case}: {decided}"
    for size in {*case.waiting, case.running} & set(range(limits.batch_max + 1)):
        bucket = core.value("decode_batch", size)
        assert bucket == graphs.decode_batch(size), f"WORK: a graph for {bucket}, not {size}"


# --- a ring ----------------------------------------------------------------------------------

RING: Final = Geometry(slots=2, prompt_tokens_max=2, output_tokens_max=3)
RingCase = list[tuple[str, int, Any]]
_SLOT: Final = st.integers(0, RING.slots - 1)
_OPERATIONS: Final = (
    st.tuples(st.just("request"), _SLOT, st.tuples(st.integers(1, 2), st.integers(0, 3))),
    st.tuples(st.just("word"), _SLOT, WORDS),
    st.tuples(st.just("cancel"), _SLOT, ASKED.map(lambda case: case[0])),
    st.tuples(st.sampled_from(["claim", "first_token", "pause", "resume"]), _SLOT, st.none()),
    st.tuples(st.just("claim_seen"), _SLOT, WORDS),
    st.tuples(st.just("advance"), _SLOT, st.integers(-1, 4)),
    st.tuples(st.just("complete"), _SLOT, st.sampled_from(Outcome)),
    st.tuples(st.sampled_from(["cancelled", "adopt", "scan", "beat"]), _SLOT, st.none()),
    st.tuples(st.just("tokens"), _SLOT, st.tuples(st.integers(0, 3), st.binary(max_size=16))),
)
RINGS: Final = st.lists(st.one_of(*_OPERATIONS), min_size=1, max_size=24)


def same_ring(case: RingCase) -> int:
    """Whatever is done to a ring, by whomever: the same results, refusals and bytes."""
    memories = LoopbackMemory.formatted(RING), LoopbackMemory.formatted(RING)
    rings: list[Any] = [SchedulerRing(memories[0], RING), HostRing(memories[1], RING)]
    sides = list(zip(rings, memories, strict=True))
    for place, operation in enumerate(case):
        expected, found = (_outcome_of(operation, *side) for side in sides)
        before = f"OWNER: after {case[:place]}, {operation}"
        assert found == expected, f"{before}: {found}, Python: {expected}"
        whole = [bytes(memory.read(0, RING.total_bytes)) for memory in memories]
        assert whole[0] == whole[1], f"{before}: memory differs"
        if operation[0] == "adopt" and not isinstance(expected, list):
            break  # a violation in the middle: what each holds then is nobody's promise
    return len(case)


def _outcome_of(operation: tuple[str, int, Any], ring: Any, memory: LoopbackMemory) -> Any:
    name, slot, argument = operation
    try:
        return _perform(name, slot, argument, ring, memory)
    except RingError as error:
        return type(error)


def _perform(name: str, slot: int, argument: Any, ring: Any, memory: LoopbackMemory) -> Any:
    flag = RING.metadata_offset(slot)
    match name:
        case "request":
            generation, output_tokens = argument
            descriptor = Descriptor(9, 0, 1, output_tokens, 0.0, 1.0, 0, 7, 0, generation)
            memory.write(RING.descriptor_offset(slot), descriptor.pack())
            memory.store_release(flag + 8, 40 + slot)
            memory.store_release(flag, pack(State.PREFILL_PENDING, Outcome.NONE, 1, 0))
        case "word":
            memory.store_release(flag, argument)
        case "cancel":
            memory.store_release(RING.cancel_offset(slot), argument)
        case "claim_seen":
            return ring.claim(slot, argument)
        case "tokens":
            first, data = argument
            return ring.write_tokens(slot, first, data[: len(data) // 4 * 4])
        case "advance" | "complete":
            return getattr(ring, name)(slot, argument)
        case "adopt" | "scan" | "beat":
            return getattr(ring, name)()
        case _:
            return getattr(ring, name)(slot)
    return None


# --- a whole scheduler -----------------------------------------------------------------------

WALKS: Final = st.integers(0, (1 << 32) - 1)


def same_walk(seed: int, make: Callable[..., HostScheduler] = HostScheduler) -> int:
    """One way through one of ``blink fuzz``'s rings: after every step the same state and bytes."""
    rng = np.random.default_rng(seed)
    config = draw_config(rng)
    python, host = World(config), World(config, make)
    steps = 0
    for action in _way(python, rng):
        assert host.actions() == python.actions(), f"WORK: seed {seed}: other steps are possible"
        expected, found = python.do(action), host.do(action)
        steps += 1
        assert found == expected, f"WORK: seed {seed}, step {steps}: {found}, Python: {expected}"
        states = dump(host.scheduler), dump(python.scheduler)
        assert states[0] == states[1], f"WORK: seed {seed}, step {steps}, {found}: {states}"
        assert host.memory.words == python.memory.words, f"SLOT: seed {seed}, step {steps}: {found}"
    python.check_done()
    host.check_done()
    return steps


def _way(world: World, rng: np.random.Generator) -> Iterator[tuple[str, int, int]]:
    return chain(wander(world, rng), drain(world))


# --- a team ----------------------------------------------------------------------------------

TEAM: Final = Geometry(slots=6, prompt_tokens_max=3, output_tokens_max=4)
_TEAM_LIMITS: Final = Limits(batch_max=4, prefill_batch_max=2, prefill_tokens_max=6)
_TEAM_ROUNDS: Final = 60


class _Stub:
    """The engine of both: a token follows from the slot and how many graphs have run."""

    launches = 0

    def launch(self, graph: int, exec_index: int, slots: Any) -> None:
        self.launches += 1

    def finished(self) -> bool:
        return True

    def token(self, slot: int) -> int:
        return (slot * 31 + self.launches * 7) % 5 + 1

    def tail_launch(self) -> None: ...


def same_turns(seed: int) -> int:
    """A team that shares every phase out ends each in the state that single steps end in."""
    rng = np.random.default_rng(seed)
    blocks, window = int(rng.integers(4, 20)), int(rng.integers(2, 6))
    memories = [LoopbackMemory.formatted(TEAM) for _ in range(2)]
    stepped, teamed = (_team_scheduler(memory, blocks, window) for memory in memories)
    for round_ in range(_TEAM_ROUNDS):
        _disturb(memories, np.random.default_rng([seed, round_]))
        _step_to_scan(stepped)
        _turn_to_scan(teamed)
        assert dump(teamed) == dump(stepped), f"WORK: seed {seed}, round {round_}: other states"
        whole = [bytes(memory.read(0, TEAM.total_bytes)) for memory in memories]
        assert whole[0] == whole[1], f"SLOT: seed {seed}, round {round_}: memory differs"
    return _TEAM_ROUNDS


def _team_scheduler(memory: LoopbackMemory, blocks: int, window: int) -> HostScheduler:
    return HostScheduler(
        memory,
        SchedulerRing(memory, TEAM),
        _Stub(),
        BlockPool(blocks, 2),
        _TEAM_LIMITS,
        GraphCache(4, 3, (1, 2, 4), (2, 3)),
        LaunchWindow(window),
    )


def _step_to_scan(scheduler: HostScheduler) -> None:
    scheduler.step()
    while scheduler.state.phase is not Phase.SCAN:
        scheduler.step()


def _turn_to_scan(scheduler: HostScheduler) -> None:
    scheduler.turn()
    while scheduler.state.phase is not Phase.SCAN:
        scheduler.turn()


def _disturb(memories: list[LoopbackMemory], rng: np.random.Generator) -> None:
    """Front ends submit, cancel and release; the same on both."""
    for slot in range(TEAM.slots):
        flag = TEAM.metadata_offset(slot)
        state, _, generation, _ = unpack(memories[0].load_acquire(flag))
        luck = rng.random()
        for memory in memories:
            if state is State.EMPTY and luck < 0.5:
                sizes = int(luck * 100) % 3 + 1, int(luck * 1000) % 4 + 1
                arrival, stop = int(luck * 1e6), int(luck * 1e4) % 6
                wanted = Descriptor(arrival, 0, *sizes, 0.0, 1.0, 0, stop, 0, generation + 1)
                memory.write(TEAM.descriptor_offset(slot), wanted.pack())
                pending = pack(State.PREFILL_PENDING, Outcome.NONE, generation + 1, 0)
                memory.store_release(flag, pending)
            elif state is State.DECODE_COMPLETED:
                memory.store_release(flag, pack(State.EMPTY, Outcome.NONE, generation, 0))
            elif state is not State.EMPTY and luck < 0.15:
                asked = cancel_word(generation, Outcome.CANCELLED)
                memory.store_release(TEAM.cancel_offset(slot), asked)
