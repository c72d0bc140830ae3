"""Copies of worlds, and what makes two of them the same.

A world is pickled; what never changes in it is named, not copied. Its key leaves out what cannot
matter any more: counters, the names of blocks and execs, how a request that has ended came to.
"""

from __future__ import annotations

import hashlib
import io
import marshal
import pickle
from collections.abc import Callable
from typing import Any, Final

from blink.model.policy import GraphCache, Limits
from blink.ring_protocol.constants import HEADER_BYTES
from blink.ring_protocol.front_end import TokenReader
from blink.ring_protocol.front_end.request_tracker import RequestTracker, Tracked
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import Read
from blink.ring_protocol.ring import SchedulerRing
from blink.testing.explorer.machine import Memory
from blink.testing.explorer.parts import Book, Client, Config, kept
from blink.testing.explorer.world import World


def dump(world: World) -> bytes:
    """A copy, to be :func:`load`-ed. What never changes is shared, not copied."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=5)
    pickler.dispatch_table = _SHARED
    world.edges = []
    pickler.dump(world)
    return buffer.getvalue()


def digest(world: World) -> bytes:
    """16 bytes of :func:`key`: two of a million worlds share them with probability 1e-27."""
    return hashlib.blake2b(key(world), digest_size=16).digest()


def key(world: World) -> bytes:
    """Equal for two worlds whose futures are the same, up to the names of blocks and execs."""
    scheduler, state = world.scheduler, world.scheduler.state
    retiring = world.gpu.retiring
    parts = (
        sorted(item for item in world.memory.words.items() if item[0] >= HEADER_BYTES),
        [_client_parts(client) for client in world.clients],
        [_book_parts(book, world.config.endings) for book in world.books],
        [
            [(each.slot, each.tokens, each.recomputing) for each in part]
            for part in (state.waiting, state.running, state.filling, state.claimed)
        ],
        (int(state.phase), state.cursor, state.graph, world.budget),
        sorted(world.seen),
        (scheduler.window.launches, world.gpu.launched),
        retiring and (retiring[0], scheduler.window._turn_of.get(retiring[0]) == retiring[1]),
        sorted((slot, len(table)) for slot, table in scheduler.blocks.tables.items()),
        scheduler.ring._held,
    )
    return marshal.dumps(parts, 2)  # later versions note which objects are the same one


def load(copy: bytes) -> World:
    """The world that :func:`dump` copied."""
    world: World = pickle.loads(copy)
    return world


def _reader(slots: int, urgent: dict[int, int], steady: dict[int, int]) -> TokenReader:
    reader = TokenReader.__new__(TokenReader)
    reader.__dict__.update(kept(TokenReader, (1, 1, slots)).__dict__)
    reader._urgent, reader._steady = urgent, steady
    return reader


def _tracker(requests: list[Tracked]) -> RequestTracker:
    tracker = RequestTracker.__new__(RequestTracker)
    tracker.outcomes, tracker._deadlines = kept(RequestTracker, ()).outcomes, []  # nobody looks
    tracker._by_id = {each.request_id: each for each in requests}
    tracker._by_slot = {each.slot: each for each in requests}
    return tracker


def _ring(memory: Memory, held: list[int], ceiling: list[int], limit: list[int]) -> SchedulerRing:
    ring = SchedulerRing.__new__(SchedulerRing)
    ring.geometry, ring._memory, ring._store = memory.geometry, memory, memory.store_release
    ring._flags = kept(_Flags, (memory.geometry,)).offsets
    ring._held, ring._ceiling, ring._limit = held, ceiling, limit
    return ring


class _Flags:
    def __init__(self, geometry: Geometry) -> None:
        self.offsets = [geometry.metadata_offset(slot) for slot in range(geometry.slots)]


# What never changes is named by a copy, and made once in each process. What has much beside its
# state is made again around it.
_SHARED: Final[dict[type, Callable[[Any], tuple[Any, ...]]]] = {
    Geometry: lambda it: (
        kept,
        (Geometry, (it.slots, it.prompt_tokens_max, it.output_tokens_max)),
    ),
    Config: lambda it: (kept, (Config, tuple(getattr(it, name) for name in Config.__slots__))),
    Limits: lambda it: (kept, (Limits, tuple(getattr(it, name) for name in Limits.__slots__))),
    TokenReader: lambda it: (_reader, (it.slots_per_poll_max, it._urgent, it._steady)),
    RequestTracker: lambda it: (_tracker, (list(it),)),
    SchedulerRing: lambda it: (_ring, (it._memory, it._held, it._ceiling, it._limit)),
    GraphCache: lambda it: (kept, (GraphCache, (it.decode_batch_max, it.prompt_tokens_max))),
}


def _book_parts(book: Book, endings: bool) -> tuple[Any, ...]:
    """A request that has ended, and whose slot has, cannot do anything but end again."""
    outcome = None if book.outcome is None else int(book.outcome)
    written = None if book.written is None else int(book.written)
    if outcome is None or written is None:
        ended = outcome if endings else outcome is not None
        return (book.submitted, book.asked, book.received, ended, book.claims, written)
    return (outcome, book.received, written) if endings else (True, book.claims)


def _client_parts(client: Client) -> tuple[Any, ...]:
    front_end, link = client.front_end, client.link
    tags = {tag: place for place, tag in enumerate(sorted(front_end._token_reads))}
    return (
        bytes(front_end.slots._use),
        front_end.slots._words,
        [
            (each.request_id, each.slot, each.tokens, each.reads, int(each.abort_asked))
            for each in front_end.requests
        ],
        sorted(front_end.reader._urgent.items()),
        sorted(front_end.reader._steady.items()),
        sorted(front_end._orphans.items()),
        [(tags[tag], tuple(map(int, each[:3]))) for tag, each in front_end._token_reads.items()],
        [_op_parts(op, tags) for op in link.posted],
        [(tags.get(done.tag or 0, -1), done.data) for done in link.answers],
        (client.todo, client.attached, client.last),
    )


def _op_parts(op: Any, tags: dict[int, int]) -> tuple[Any, ...]:
    if isinstance(op, Read):
        return (op.remote, op.length, tags.get(op.tag or 0, -1))
    return (op[0], op[1])
