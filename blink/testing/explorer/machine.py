"""The machine of an exploration: ring memory, queue pairs and a GPU, one visible effect at a time.

Nothing here happens by itself. What a front end posted lands when the search says so, a graph ends
when the search says so, and each of these is a step that everything else may come before or after.

Bytes that are being written must not be read: a queue pair keeps a Write apart until the flag that
follows it lands, and the scheduler's reading of such bytes is an error. That is how all orders in
which Writes may land are covered without going through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from blink.model.policy.blocks import BlockPool
from blink.model.scheduler import DECODE_GRAPH, SchedulerState
from blink.ring_protocol.constants import TOKEN_BYTES, WORD_BYTES
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import Capabilities, Completion, Op, Publish, Read, Status, Write
from blink.ring_protocol.slot import explain, unpack
from blink.ring_protocol.states import OWNER_OF, TOKEN_EVENTS, WRITER_OF, Event, Writer

_WORD: Final = WORD_BYTES - 1


class Broken(Exception):
    """An invariant does not hold: ``NAME: what is wrong``."""


class Memory:
    """Ring memory as words, zero where nothing was written; the header is the geometry's.

    It is the scheduler's DeviceMemory. Every flag word that is written must be an event of the
    table by the writer who owns the slot.
    """

    __slots__ = ("geometry", "links", "moves", "words")

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.words: dict[int, int] = {}
        self.links: list[Link] = []
        self.moves: list[tuple[int, int, int, Event]] = []  # slot, word before and after

    def load_relaxed(self, offset: int) -> int:
        """See DeviceMemory."""
        assert offset & _WORD == 0
        self._check_race(offset, WORD_BYTES)
        return self.words.get(offset, 0)

    load_acquire = load_relaxed

    def store_release(self, offset: int, value: int) -> None:
        """See DeviceMemory."""
        self.put(offset, value, Writer.SCHEDULER)

    def cas(self, offset: int, expected: int, desired: int) -> int:
        """See DeviceMemory."""
        found = self.load_relaxed(offset)
        if found == expected:
            self.put(offset, desired, Writer.SCHEDULER)
        return found

    def read(self, offset: int, length: int) -> bytes:
        """See DeviceMemory."""
        self._check_race(offset, length)
        return self.peek(offset, length)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """See DeviceMemory."""
        first = offset & ~_WORD
        size = -(-(offset + len(data)) // WORD_BYTES) * WORD_BYTES - first
        whole = bytearray(self.peek(first, size))
        whole[offset - first : offset - first + len(data)] = data
        for at in range(0, size, WORD_BYTES):
            self.words[first + at] = int.from_bytes(whole[at : at + WORD_BYTES], "little")

    def peek(self, offset: int, length: int) -> bytes:
        """Bytes, whoever may be writing them."""
        if offset == 0:
            return self.geometry.pack_header()[:length]
        first, get = offset & ~_WORD, self.words.get
        words = range(first, offset + length, WORD_BYTES)
        whole = b"".join([get(at, 0).to_bytes(WORD_BYTES, "little") for at in words])
        return whole[offset - first : offset - first + length]

    def put(self, offset: int, value: int, writer: Writer) -> None:
        """Store a word; a flag word must be the writer's to write."""
        slot = self.geometry.slot_of_flag(offset)
        if slot is not None:
            self._check_move(slot, self.words.get(offset, 0), value, writer)
        self.words[offset] = value

    def _check_move(self, slot: int, before: int, after: int, writer: Writer) -> None:
        event = explain(before, after)
        if event is None:
            raise Broken(f"SLOT: slot {slot}: {unpack(before)} cannot become {unpack(after)}")
        if WRITER_OF[event] is not writer:
            owner = OWNER_OF[unpack(before).state].name
            raise Broken(f"OWNER: slot {slot}: {writer.name} makes {event.name}, owner is {owner}")
        if event in TOKEN_EVENTS:
            self._check_written(slot, unpack(before).tokens, unpack(after).tokens)
        self.moves.append((slot, before, after, event))
        if event is Event.RELEASE:
            self._forget(slot)

    def _check_written(self, slot: int, first: int, end: int) -> None:
        offset = self.geometry.output_offset(slot, first)
        written = self.peek(offset, (end - first) * TOKEN_BYTES)
        tokens = memoryview(written).cast("I")
        if not all(tokens):
            raise Broken(f"ORDER: slot {slot} publishes tokens {first} to {end}: {list(tokens)}")

    def _forget(self, slot: int) -> None:
        """Nobody may read what lies in an empty slot: zeros there are as good as any bytes.

        Nor does a cancel word outlive it: a submission writes over the whole descriptor.
        """
        geometry = self.geometry
        prompt, output = geometry.prompt_offset(slot), geometry.output_offset(slot)
        dead = [geometry.request_id_offset(slot)]
        dead += range(geometry.cancel_offset(slot), geometry.descriptor_offset(slot + 1))
        dead += range(prompt & ~_WORD, prompt + geometry.prompt_tokens_max * TOKEN_BYTES)
        dead += range(output & ~_WORD, output + geometry.output_tokens_max * TOKEN_BYTES)
        for offset in dead:
            self.words.pop(offset, None)

    def _check_race(self, offset: int, length: int) -> None:
        for link in self.links:
            for op in link.posted:
                if (
                    isinstance(op, Write)
                    and op.remote < offset + length
                    and offset < op.remote + len(op.data)
                ):
                    raise Broken(
                        f"CAUSAL: the scheduler reads {length} bytes at {offset} while the front "
                        "end's write of them may not have landed"
                    )


class Link:
    """One front end's queue pair, its Transport. ``land``: the next ordered operation happens."""

    __slots__ = ("answers", "memory", "posted")

    capabilities = Capabilities(outstanding_max=1 << 20)

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.posted: list[Op] = []
        self.answers: list[Completion] = []

    def post(self, ops: Sequence[Op]) -> None:
        """See Transport."""
        self.posted += ops

    def poll(self, limit: int) -> list[Completion]:
        """See Transport."""
        taken, self.answers = self.answers[:limit], self.answers[limit:]
        return taken

    def ordered(self) -> Op | None:
        """The next operation that is not a Write, if there is one."""
        return next((op for op in self.posted if not isinstance(op, Write)), None)

    def land(self) -> str:
        """The next Publish or Read happens, and with it every Write before it; says what."""
        ordered = self.ordered()
        while self.posted and isinstance(op := self.posted.pop(0), Write):
            self.memory.write(op.remote, op.data)
        if ordered is None:
            return "writes land that no flag follows"
        if isinstance(ordered, Read):
            data = self.memory.peek(ordered.remote, ordered.length)
            self.answers.append(Completion(ordered.tag, Status.OK, data))
            return f"a read of {ordered.length} bytes at {ordered.remote} looks"
        assert isinstance(ordered, Publish)
        self.memory.put(ordered.remote, ordered.value, Writer.FRONT_END)
        return f"{ordered.value:#x} at {ordered.remote} becomes visible"


class Gpu:
    """The scheduler's Engine: at most one graph runs, and it reads block tables.

    ``launched`` counts launches since the last tail launch, whatever the scheduler's own window
    says. An exec retires when a graph that was launched after it has finished. What a sequence's
    n-th token is follows from its request alone (:func:`token_of`).
    """

    __slots__ = ("blocks", "done", "launched", "limit", "retiring", "running", "state")

    def __init__(self, blocks: BlockPool, limit: int) -> None:
        self.blocks = blocks
        self.limit = limit
        self.state = SchedulerState()
        self.launched = 0
        self.running: tuple[int, int] | None = None
        self.done = False
        self.retiring: tuple[int, int] | None = None

    def launch(self, graph: int, exec_index: int, slots: Sequence[int]) -> None:
        """See Engine."""
        if self.launched >= self.limit:
            raise Broken(f"WINDOW: launch {self.launched + 1} of one execution")
        if self.running is not None:
            raise Broken("CLOCK: a graph is launched while another runs")
        if (graph, exec_index) == self.retiring:
            raise Broken(f"WINDOW: exec {exec_index} of graph {graph} has not retired")
        self.launched += 1
        self.running = (graph, exec_index)
        self.done = False
        self._check_blocks(slots, 1 if graph == DECODE_GRAPH else 0)

    def _check_blocks(self, slots: Sequence[int], more_tokens: int) -> None:
        tables = self.blocks.tables
        held = [block for table in tables.values() for block in table]
        if len({*held, *self.blocks.free}) != len(held) + self.blocks.blocks_free:
            raise Broken("KV: a block has two owners")
        if len(held) + self.blocks.blocks_free != self.blocks.blocks_total:
            raise Broken("KV: a block has no owner")
        for each in self.state.running + self.state.filling:
            if each.slot in slots:
                tokens = each.context_tokens + more_tokens
                if len(tables.get(each.slot, ())) != self.blocks.blocks_for(tokens):
                    table = tables.get(each.slot)
                    raise Broken(f"KV: slot {each.slot} has blocks {table} for {tokens} tokens")

    def finish(self) -> None:
        """The running graph sets its completion flag."""
        assert self.running is not None and not self.done
        self.done = True

    def finished(self) -> bool:
        """See Engine. Seen once: then nothing runs any more."""
        if self.done:
            self.retiring, self.running, self.done = self.running, None, False
            return True
        return False

    def token(self, slot: int) -> int:
        """See Engine."""
        [each] = [each for each in self.state.running + self.state.filling if each.slot == slot]
        return token_of(each.request_id, each.tokens)

    def tail_launch(self) -> None:
        """See Engine: everything retires."""
        if self.running is not None:
            raise Broken("WINDOW: a tail launch while a graph runs")
        self.launched = 0
        self.retiring = None


def token_of(request_id: int, index: int) -> int:
    """The token id that request ``request_id`` generates at output index ``index``."""
    return 1000 * request_id + index + 1
