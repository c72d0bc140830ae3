"""What stands between the HTTP shell and whoever generates: token ids in, token ids out.

The shell owns HTTP, text and its event loop; a :class:`Generator` owns a ring, or the twin in its
place. Everything here is called from the shell's one thread, and nothing here blocks::

    ticket = generator.submit(generation, listener, now_ns)   whenever a client asks
    due_ns = generator.poll(now_ns)                           at due_ns, or at the next tick
    generator.cancel(ticket, Outcome.CANCELLED)               when the client goes away

Times are of ``time.monotonic_ns``, and the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from blink.ring_protocol.descriptor import Sampling
from blink.ring_protocol.states import Outcome


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a shell must know of the model that a generator serves.

    name: as clients say it. vocabulary: token ids are below this. stop_tokens: ids that end an
    answer by themselves, the first of them the ring's. source: where its tokenizer is to be found
    (a folder, a ``tokenizer.json`` or a GGUF file), or None for the built-in synthetic one.
    logprobs: how many alternatives a token the engine gives; 0: none.
    """

    name: str
    context_tokens_max: int
    output_tokens_max: int
    vocabulary: int
    stop_tokens: tuple[int, ...] = ()
    source: str | None = None
    logprobs: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer that is asked for; a request with ``n`` = 3 is three of them.

    prompt: token ids, at least one, each below the vocabulary. output_tokens_min: the stop token
    does not end the answer before. deadline_ns: it is timed out then.
    """

    prompt: Sequence[int]
    output_tokens_max: int
    sampling: Sampling
    output_tokens_min: int = 0
    deadline_ns: int | None = None


class Ticket(NamedTuple):
    """A generation that is under way."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Busy:
    """No slot, and no place to wait for one; nothing has changed. Try again in so many seconds."""

    retry_after_s: float


class Listener(Protocol):
    """Whoever waits for an answer. Called from ``poll``; it must not block, and may ``cancel``."""

    def tokens(self, ids: Sequence[int]) -> None:
        """More tokens, in order, each once."""

    def ended(self, outcome: Outcome) -> None:
        """The one and only end, after the last token."""


@dataclass(frozen=True, slots=True)
class RingView:
    """The ring as it is now, for people: ``states`` holds a byte (``State``) a slot."""

    states: bytes
    kv_blocks_free: int
    kv_blocks_total: int
    window_launches: int
    window_launches_max: int
    batch: int
    waiting: int
    extra: Mapping[str, float] = field(default_factory=dict)

    @property
    def slots(self) -> dict[str, int]:
        """How many slots are in each state, by its lower-case name; states without one too."""
        from blink.ring_protocol.states import State

        return {state.name.lower(): self.states.count(int(state)) for state in State}


class Generator(Protocol):
    """Serves generations. ``start`` before, ``close`` after; see the module."""

    card: ModelCard

    def start(self) -> None:
        """Load, capture, start threads: may take long, and is called off the event loop.

        Raises BackendUnavailable, BadInput, ModelDoesNotFit.
        """

    def submit(self, generation: Generation, listener: Listener, now_ns: int) -> Ticket | Busy:
        """Put a generation into the ring, or into the short queue before it.

        Raises BadInput for what this model could never serve (a prompt that is too long, an id
        beyond the vocabulary): nothing of it has reached the ring.
        """

    def cancel(self, ticket: Ticket, outcome: Outcome) -> None:
        """Ask for a generation's end. Its ``ended`` still comes; a late cancel does nothing."""

    def poll(self, now_ns: int) -> int:
        """Move operations and tokens on; return when to come again at the latest.

        Raises BackendFailed if whoever generates has broken down: every open answer has ended with
        FAILED before.
        """

    def ring(self) -> RingView:
        """The ring as it is now."""

    def counters(self) -> Mapping[str, float]:
        """Counts since the start, by name, for ``/metrics``: polls, doorbells, launches, ..."""

    def drain(self) -> None:
        """Take no more; what is under way goes on."""

    def close(self) -> None:
        """Stop everything, and give every slot and every block back."""
