"""The C++ core from Python: a handle on it, and its side of the ring.

The ring side has the interface of the Python reference (``ring_protocol/ring.py``), so that what
tests the one tests the other. The whole loop is ``scheduler.py``'s beside this file.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from blink.hw.host.library import (
    CalledMemory,
    Claimed,
    Config,
    Get,
    Load,
    Put,
    Store,
    Swap,
    library,
)
from blink.hw.host.memory import SharedMemory
from blink.hw.kernel.status import MEANING, Status
from blink.model.policy import GraphCache, Limits
from blink.ring_protocol import ring as reference
from blink.ring_protocol.constants import HEADER_BYTES, LAUNCH_WINDOW_MAX, TOKEN_BYTES
from blink.ring_protocol.descriptor import Descriptor
from blink.ring_protocol.errors import LocalViolation, PeerViolation, ProtocolViolation
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import DeviceMemory
from blink.ring_protocol.slot import STATE_MASK, unpack
from blink.ring_protocol.states import Event, Outcome, State, Writer

_PENDING: Final = int(State.PREFILL_PENDING)


class Core:
    """A handle on one scheduler of the host build, over any DeviceMemory.

    blocks_total, block_tokens: its KV cache. Raises what the memory's own calls raise, at the
    end of the call that made them; BackendUnavailable without g++; LayoutMismatch for another ring.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        geometry: Geometry,
        *,
        limits: Limits | None = None,
        graphs: GraphCache | None = None,
        window: int = LAUNCH_WINDOW_MAX,
        blocks_total: int = 1,
        block_tokens: int = 1,
        library_: Any = None,
    ) -> None:
        self.geometry = geometry
        self.memory = memory
        self._library = library_ or library()
        self._raised: BaseException | None = None
        self._called = self._callbacks(memory)
        limits = limits or Limits(1, 1, 1)
        graphs = graphs or GraphCache(limits.batch_max, geometry.prompt_tokens_max)
        batches, prompts = _u32s(graphs.decode_batches), _u32s(graphs.prompt_tokens)
        config = Config(
            *(geometry.slots, geometry.prompt_tokens_max, geometry.output_tokens_max),
            *(blocks_total, block_tokens),
            *(limits.batch_max, limits.prefill_batch_max, limits.prefill_tokens_max),
            *(window, graphs.prompt_tokens_max, len(batches), len(prompts), batches, prompts),
        )
        base = memory.address if isinstance(memory, SharedMemory) else None
        self._handle = self._library.open(config, base, self._called)
        if self.call("check_header") is not Status.OK:
            geometry.check_header(memory.read(0, HEADER_BYTES))  # raises, and says what differs

    def __del__(self) -> None:
        if handle := self.__dict__.get("_handle"):
            self._library.close(handle)

    def call(self, name: str, *arguments: Any) -> Status:
        """Call a function that returns a Status; LOST and OK are no errors."""
        return Status(self.value(name, *arguments))

    def value(self, name: str, *arguments: Any) -> Any:
        """Call a function for what it returns."""
        value = getattr(self._library, name)(self._handle, *arguments)
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised
        return value

    def _callbacks(self, memory: DeviceMemory) -> CalledMemory:
        def get(offset: int, to: int, length: int) -> None:
            c.memmove(to, memory.read(offset, length), length)

        def put(offset: int, source: int, length: int) -> None:
            memory.write(offset, c.string_at(source, length))

        def load(offset: int, acquire: int) -> int:
            return memory.load_acquire(offset) if acquire else memory.load_relaxed(offset)

        return CalledMemory(
            Load(self._kept(load)),
            Store(self._kept(memory.store_release)),
            Swap(self._kept(memory.cas)),
            Get(self._kept(get)),
            Put(self._kept(put)),
        )

    def _kept(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``; what it raises waits until C++ has returned, and nothing more happens."""

        def called(*arguments: Any) -> Any:
            if self._raised is None:
                try:
                    return function(*arguments)
                except BaseException as error:  # noqa: BLE001 - C++ must not see it; call() raises it
                    self._raised = error
            return 0

        return called


class CoreCalls(Protocol):
    """What HostRing asks of a core, wherever it runs: functions of host.cpp by name."""

    def call(self, name: str, *arguments: Any) -> Status: ...

    def value(self, name: str, *arguments: Any) -> Any: ...


class HostRing:
    """``SchedulerRing``, in C++. What it refuses raises the reference's exceptions."""

    def __init__(
        self, memory: DeviceMemory, geometry: Geometry, core: CoreCalls | None = None
    ) -> None:
        self.geometry = geometry
        self._memory = memory
        self._core: CoreCalls = core or Core(memory, geometry)

    def scan(self, slots: Iterable[int] | None = None) -> list[int]:
        """See SchedulerRing."""
        within = range(self.geometry.slots) if slots is None else sorted(slots)
        return [slot for slot in within if self._core.value("ring_scan", slot)]

    def claim(self, slot: int, seen: int | None = None) -> reference.Claimed | None:
        """See SchedulerRing."""
        if seen is None:
            seen = self._memory.load_acquire(self.geometry.metadata_offset(slot))
        found = Claimed()
        status = self._core.call("ring_claim", slot, seen, found)
        return None if status is Status.LOST else self._claimed(status, found, slot, Event.CLAIM)

    def adopt(self) -> list[reference.Claimed]:
        """See SchedulerRing."""
        self._core.value("ring_begin_execution")
        adopted = []
        for slot in range(self.geometry.slots):
            found = Claimed()
            status = self._core.call("ring_adopt", slot, found)
            if status is not Status.LOST:
                adopted.append(self._claimed(status, found, slot, None))
        return adopted

    def first_token(self, slot: int) -> None:
        """See SchedulerRing."""
        self._do("ring_first_token", slot, event=Event.FIRST_TOKEN)

    def advance(self, slot: int, count: int = 1) -> None:
        """See SchedulerRing."""
        self._do("ring_advance", slot, count, event=Event.TOKENS)

    def pause(self, slot: int) -> None:
        """See SchedulerRing."""
        self._do("ring_pause", slot, event=Event.PAUSE)

    def resume(self, slot: int) -> None:
        """See SchedulerRing."""
        self._do("ring_resume", slot, event=Event.RESUME)

    def complete(self, slot: int, outcome: Outcome) -> None:
        """See SchedulerRing."""
        self._do("ring_complete", slot, outcome, event=Event.COMPLETE)

    def cancelled(self, slot: int) -> Outcome:
        """See SchedulerRing."""
        outcome = c.c_uint32()
        self._do("ring_cancelled", slot, outcome)
        return Outcome(outcome.value)

    def read_prompt(self, claimed: reference.Claimed) -> bytes:
        """See SchedulerRing."""
        offset = self.geometry.prompt_offset(claimed.slot)
        return self._memory.read(offset, claimed.prompt_tokens * TOKEN_BYTES)

    def write_tokens(self, slot: int, first_index: int, tokens: bytes | memoryview) -> None:
        """See SchedulerRing."""
        count = len(tokens) // TOKEN_BYTES
        self._do("ring_write_tokens", slot, first_index, bytes(tokens), count)

    def beat(self) -> None:
        """See SchedulerRing."""
        self._core.value("ring_beat")

    def _do(self, name: str, slot: int, *arguments: Any, event: Event | None = None) -> None:
        status = self._core.call(name, slot, *arguments)
        if status is not Status.OK:
            raise self._violation(status, slot, event)

    def _violation(self, status: Status, slot: int, event: Event | None) -> Exception:
        word = self._memory.load_relaxed(self.geometry.metadata_offset(slot))
        if status is Status.NOT_HELD:
            unpack(word, slot=slot)  # raises, if nobody can have written what is there
        state = State(word & STATE_MASK) if word & STATE_MASK < len(State) else None
        return fault_of(status, slot, state, event)

    def _claimed(
        self, status: Status, found: Claimed, slot: int, event: Event | None
    ) -> reference.Claimed:
        if status is not Status.OK:
            raise self._violation(status, slot, event)
        descriptor = Descriptor.unpack(bytes(found)[16:])
        return reference.Claimed(
            slot,
            descriptor.generation,
            found.request_id,
            descriptor.prompt_tokens,
            descriptor.output_tokens_max,
            descriptor.arrival_ns,
            descriptor,
        )


def fault_of(
    status: Status, slot: int, state: State | None = None, event: Event | None = None
) -> ProtocolViolation:
    """The exception that the reference raises where the core returns `status`."""
    error = status.error
    assert issubclass(error, LocalViolation | PeerViolation)
    return error(MEANING[status], slot=slot, state=state, event=event, writer=Writer.SCHEDULER)


def _u32s(numbers: Iterable[int]) -> Any:
    values = list(numbers)
    return (c.c_uint32 * len(values))(*values)
