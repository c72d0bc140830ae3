"""The life of a slot. This file is the protocol; everything else carries it out.

Two rules keep it true:

Rule 1: everything that decides which state follows which lives here. No other file assigns a
state, not even an obviously right one: a transition that is not in the table does not exist.

Rule 2: this file does not know which side it plays. The front end on the SmartNIC and the
scheduler on the GPU are judged by the same table, so neither can be kinder to itself than to the
other.

Theory of operation
===================

A ring is a set of slots in GPU memory. A slot carries one request at a time, from a prompt to an
outcome. Two parties write it, and neither ever asks the other for permission:

* the *front end* (FRONT_END), across a network card, which can write payload and then one ordered
  8-byte store;
* the *scheduler* (SCHEDULER), a GPU kernel that never returns, which sees those stores arrive.

No atomic operation spans the two: a compare-and-swap by the card is not atomic towards one by the
GPU. So the protocol must never need one, and this is how it does not:

    In every state exactly one party may write the flag word.

That party is the *owner* of the state. It need not look before it writes, because nobody else can
have written since. Handing a slot over *is* a write: the store that moves the slot into a state
that the other party owns. Ownership is not a second table that could disagree with the first one;
it is read off the transitions below (OWNER_OF), and the module refuses to be imported if two
parties could leave the same state.

One state is contested within its class. Any scheduler thread may find a pending prompt, and so
could a second scheduler; CLAIM is the only event that leaves PREFILL_PENDING, and it is the only
one that must be made by compare-and-swap. Every other move is a plain release store by an owner.

A life
------

    EMPTY               Nobody's request. The front end writes the prompt, the descriptor and the
                        request id, and then, in one store, SUBMIT.
    PREFILL_PENDING     The scheduler will find it in its next scan.
    PREFILL_PROCESSING  Claimed. It waits for admission or its prompt is being computed; nothing
                        has been generated.
    DECODE_PROCESSING   The first token is out. Each further step publishes TOKENS.
    DECODE_PAUSED       Its decode stands still while another prompt is computed, or its cache was
                        taken and must be computed anew. It produces nothing, so it cannot finish,
                        but it can be aborted.
    DECODE_COMPLETED    An outcome stands beside the last token count. The front end reads what is
                        left, answers its client, and RELEASEs.

Even a request of one output token passes through DECODE_PROCESSING: there is one way in
(FIRST_TOKEN) and one way out (COMPLETE), and a reader that polls slowly may miss any of them.

Outcomes
--------

COMPLETE and ABORT lead to the same state and differ in what they may say. COMPLETE is the model's
own end: it met a stop token (STOP) or its limit (LENGTH). ABORT is everything else: the client
went away (CANCELLED), its time was up (TIMED_OUT), the engine could not go on (FAILED). A client
that leaves does not move the slot: it does not own it. The front end leaves word in the request
descriptor, and the scheduler, who owns the slot, aborts it within one step. If the request
completes first, then it has completed: the outcome in the slot is the only one there is.

REJECTED never appears in a slot. It is the outcome of a request that the front end turned away,
kept here so that "every request ends in exactly one outcome" can be said with one type.

What this file cannot show
--------------------------

Generations. Each SUBMIT begins a new generation of its slot, and every flag word carries its
generation, so whoever looks late can tell a reused slot from the one it knew. That, and the token
count, live in `slot.py`, which applies this table to words.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class State(IntEnum):
    """Where a slot is in its life. The value is the lowest byte of its flag word."""

    EMPTY = 0  # all-zero memory is an empty ring
    PREFILL_PENDING = 1
    PREFILL_PROCESSING = 2
    DECODE_PROCESSING = 3
    DECODE_PAUSED = 4
    DECODE_COMPLETED = 5


class Event(IntEnum):
    """What can happen to a slot."""

    SUBMIT = 0
    CLAIM = 1
    FIRST_TOKEN = 2
    TOKENS = 3
    PAUSE = 4
    RESUME = 5
    COMPLETE = 6
    ABORT = 7
    RELEASE = 8


class Writer(IntEnum):
    """The two classes of writer. Each owns some of the states."""

    FRONT_END = 0
    SCHEDULER = 1


class Outcome(IntEnum):
    """How a request ended. NONE is falsy: it has not."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    TIMED_OUT = 4
    FAILED = 5
    REJECTED = 6


TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = MappingProxyType(
    {
        # The front end fills a slot and gives it away ...
        (State.EMPTY, Event.SUBMIT): State.PREFILL_PENDING,
        # ... the scheduler takes it, by compare-and-swap ...
        (State.PREFILL_PENDING, Event.CLAIM): State.PREFILL_PROCESSING,
        # ... and works on it ...
        (State.PREFILL_PROCESSING, Event.FIRST_TOKEN): State.DECODE_PROCESSING,
        (State.DECODE_PROCESSING, Event.TOKENS): State.DECODE_PROCESSING,
        (State.DECODE_PROCESSING, Event.PAUSE): State.DECODE_PAUSED,
        (State.DECODE_PAUSED, Event.RESUME): State.DECODE_PROCESSING,
        # ... until it is done, or must be given up ...
        (State.DECODE_PROCESSING, Event.COMPLETE): State.DECODE_COMPLETED,
        (State.PREFILL_PROCESSING, Event.ABORT): State.DECODE_COMPLETED,
        (State.DECODE_PROCESSING, Event.ABORT): State.DECODE_COMPLETED,
        (State.DECODE_PAUSED, Event.ABORT): State.DECODE_COMPLETED,
        # ... and the front end takes it back.
        (State.DECODE_COMPLETED, Event.RELEASE): State.EMPTY,
    }
)

WRITER_OF: Final[Mapping[Event, Writer]] = MappingProxyType(
    {
        Event.SUBMIT: Writer.FRONT_END,
        Event.CLAIM: Writer.SCHEDULER,
        Event.FIRST_TOKEN: Writer.SCHEDULER,
        Event.TOKENS: Writer.SCHEDULER,
        Event.PAUSE: Writer.SCHEDULER,
        Event.RESUME: Writer.SCHEDULER,
        Event.COMPLETE: Writer.SCHEDULER,
        Event.ABORT: Writer.SCHEDULER,
        Event.RELEASE: Writer.FRONT_END,
    }
)

OUTCOMES_OF: Final[Mapping[Event, frozenset[Outcome]]] = MappingProxyType(
    {
        Event.COMPLETE: frozenset({Outcome.STOP, Outcome.LENGTH}),
        Event.ABORT: frozenset({Outcome.CANCELLED, Outcome.TIMED_OUT, Outcome.FAILED}),
    }
)
"""The outcomes that an event may write. An event that is not listed writes none."""

TOKEN_EVENTS: Final = frozenset({Event.FIRST_TOKEN, Event.TOKENS})
"""The events that add to the token count, by at least one."""

CONTESTED_EVENTS: Final = frozenset({Event.CLAIM})
"""The events that several writers of one class may attempt: they need a compare-and-swap."""


# --- Read off the table ----------------------------------------------------------------------


def _owners() -> dict[State, Writer]:
    """The one class of writer that may leave each state."""
    owners: dict[State, Writer] = {}
    for state, event in TRANSITIONS:
        writer = WRITER_OF[event]
        assert owners.setdefault(state, writer) is writer, f"two writers may leave {state.name}"
    return owners


def _futures() -> dict[State, frozenset[State]]:
    """The states that the scheduler alone can bring a slot to, itself included.

    This is what a front end may find when it looks again after a while.
    """
    futures = {state: {state} for state in State}
    for _ in State:  # a path visits each state at most once
        for (state, event), target in TRANSITIONS.items():
            if WRITER_OF[event] is Writer.SCHEDULER:
                futures[state] |= futures[target]
    return {state: frozenset(found) for state, found in futures.items()}


OWNER_OF: Final[Mapping[State, Writer]] = MappingProxyType(_owners())
FUTURES_OF: Final[Mapping[State, frozenset[State]]] = MappingProxyType(_futures())

assert set(OWNER_OF) == set(State), "no state is a dead end"
assert set(WRITER_OF) == set(Event) == {event for _, event in TRANSITIONS}, "no event is idle"
assert all(
    event in CONTESTED_EVENTS
    for state, event in TRANSITIONS
    if any((state, contested) in TRANSITIONS for contested in CONTESTED_EVENTS)
), "a contested state is left by compare-and-swap only"
