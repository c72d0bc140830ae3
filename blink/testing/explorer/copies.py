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
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import Read
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
        [_book_parts(book) for book in world.books],
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


# What never changes: a copy names it, and each process makes it once.
_SHARED: Final[dict[type, Callable[[Any], tuple[Any, ...]]]] = {
    Geometry: lambda it: (
        kept,
        (Geometry, (it.slots, it.prompt_tokens_max, it.output_tokens_max)),
    ),
    Config: lambda it: (kept, (Config, tuple(getattr(it, name) for name in Config.__slots__))),
    Limits: lambda it: (kept, (Limits, tuple(getattr(it, name) for name in Limits.__slots__))),
    GraphCache: lambda it: (kept, (GraphCache, (it.decode_batch_max, it.prompt_tokens_max))),
}


def _book_parts(book: Book) -> tuple[Any, ...]:
    """A request that has ended cannot do anything but end again."""
    if book.outcome is not None and book.written is not None:
        return (True, book.claims)
    written = None if book.written is None else int(book.written)
    ended = book.outcome is not None
    return (book.submitted, book.asked, book.received, ended, book.claims, written)


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
