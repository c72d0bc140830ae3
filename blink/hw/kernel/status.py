"""Why the core did not do something: it throws nothing, for a GPU cannot."""

from __future__ import annotations

from enum import IntEnum

from blink.ring_protocol.errors import (
    LayoutMismatch,
    LocalViolation,
    PeerViolation,
    RingError,
    WindowExhausted,
)


class Status(IntEnum):
    """What a function of ``ring.h`` returns; generated into ``protocol.h``."""

    OK = 0
    LOST = 1  # not pending, or somebody else was faster: no error
    # Our own bugs.
    NO_TRANSITION = 2
    WRONG_WRITER = 3
    WRONG_TOKENS = 4
    WRONG_OUTCOME = 5
    TOKENS_OVERFLOW = 6
    NOT_HELD = 7
    BEYOND_LIMIT = 8
    ALREADY_PUBLISHED = 9
    WINDOW_EXHAUSTED = 10
    CLAIMED_TWICE = 11
    LAUNCH_REFUSED = 12
    # The other side's.
    NOT_A_FLAG_WORD = 13
    WRONG_GENERATION = 14
    NO_ROOM = 15
    UNKNOWN_ABORT = 16
    # Of the memory.
    ANOTHER_RING = 17

    @property
    def error(self) -> type[RingError]:
        """The exception that the Python reference raises in such a case."""
        assert self > Status.LOST, f"{self.name} is no error"
        if self is Status.WINDOW_EXHAUSTED:
            return WindowExhausted
        if self is Status.ANOTHER_RING:
            return LayoutMismatch
        return LocalViolation if self < Status.NOT_A_FLAG_WORD else PeerViolation


MEANING = {
    Status.NO_TRANSITION: "the table has no such transition",
    Status.WRONG_WRITER: "another writer may do this",
    Status.WRONG_TOKENS: "this number of tokens does not go with this event",
    Status.WRONG_OUTCOME: "this outcome does not go with this event",
    Status.TOKENS_OVERFLOW: "the tokens overflow the count",
    Status.NOT_HELD: "this scheduler does not hold the slot: claim it first",
    Status.BEYOND_LIMIT: "the tokens exceed the request's limit: complete it with LENGTH",
    Status.ALREADY_PUBLISHED: "these output tokens are published already",
    Status.WINDOW_EXHAUSTED: "the launch window is used up: tail-launch a fresh scheduler first",
    Status.CLAIMED_TWICE: "more claims than slots: two threads won the same compare-and-swap",
    Status.LAUNCH_REFUSED: "the GPU refused to launch a graph",
    Status.NOT_A_FLAG_WORD: "memory holds what is no flag word",
    Status.WRONG_GENERATION: "flag and descriptor disagree: a flag overtook its payload",
    Status.NO_ROOM: "the descriptor holds more tokens than a slot",
    Status.UNKNOWN_ABORT: "the cancel word asks for no known abort",
}
