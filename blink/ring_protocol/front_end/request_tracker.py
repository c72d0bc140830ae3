"""Every request that the front end has in the ring, and how each one ends: exactly once.

The tracker is where three promises are kept that no single slot can keep: tokens reach the client
in order and each once, a request has exactly one outcome, and nothing is ever in two slots.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from blink.ring_protocol.errors import LocalViolation, PeerViolation, ProtocolViolation
from blink.ring_protocol.front_end.token_reader import Progress
from blink.ring_protocol.states import Outcome, Writer


@dataclass(slots=True)
class Tracked:
    """A request in the ring. `tokens` have been delivered, `reads` token reads are under way.

    `ending` is an outcome without tokens of its own that waits for those reads.
    """

    request_id: int
    slot: int
    generation: int
    output_tokens_max: int
    deadline_ns: int | None
    tokens: int = 0
    reads: int = 0
    abort_asked: Outcome = Outcome.NONE
    ending: Progress | None = None


class RequestTracker:
    """Requests by id and by slot, from submission to outcome.

    outcomes: how many requests have ended in each.
    """

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(Outcome, 0)
        self._by_id: dict[int, Tracked] = {}
        self._by_slot: dict[int, Tracked] = {}
        self._deadlines: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Tracked]:
        return iter(self._by_id.values())

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._by_id

    def open(self, tracked: Tracked) -> None:
        """Begin to track a request. Its id and its slot must not be in use."""
        if tracked.request_id in self._by_id:
            raise LocalViolation(f"request {tracked.request_id} is already in the ring")
        if tracked.slot in self._by_slot:
            raise LocalViolation(
                f"request {self._by_slot[tracked.slot].request_id} is still in it",
                slot=tracked.slot,
                writer=Writer.FRONT_END,
            )
        self._by_id[tracked.request_id] = tracked
        self._by_slot[tracked.slot] = tracked
        if tracked.deadline_ns is not None:
            heapq.heappush(self._deadlines, (tracked.deadline_ns, tracked.request_id))

    def find(self, request_id: int) -> Tracked | None:
        """The request, or None if it is not (or no longer) in the ring."""
        return self._by_id.get(request_id)

    def in_slot(self, slot: int) -> Tracked:
        """The request in a slot that is known to hold one."""
        return self._by_slot[slot]

    def deliver(self, progress: Progress) -> Tracked:
        """Count tokens as handed to the client: they must follow those before, up to the limit."""
        self.deliver_all((progress,))
        return self._by_slot[progress.slot]

    def deliver_all(self, news: Iterable[Progress]) -> None:
        """`deliver` all of a poll's news."""
        by_slot = self._by_slot
        for slot, first, tokens, _ in news:
            tracked = by_slot[slot]
            total = first + tokens
            if first != tracked.tokens or total > tracked.output_tokens_max:
                raise self._cannot_deliver(tracked, first, total)
            tracked.tokens = total

    def _cannot_deliver(self, tracked: Tracked, first: int, total: int) -> ProtocolViolation:
        if first != tracked.tokens:
            return LocalViolation(
                f"token {first} of request {tracked.request_id} follows {tracked.tokens} tokens",
                slot=tracked.slot,
            )
        return PeerViolation(
            f"{total} tokens for request {tracked.request_id}, "
            f"which asked for {tracked.output_tokens_max} at most",
            slot=tracked.slot,
            writer=Writer.SCHEDULER,
        )

    def close(self, tracked: Tracked, outcome: Outcome) -> None:
        """End a request. A second end is a LocalViolation."""
        if self._by_id.get(tracked.request_id) is not tracked or outcome is Outcome.NONE:
            raise LocalViolation(
                f"request {tracked.request_id} ends with {outcome.name}, but it has ended already",
                slot=tracked.slot,
            )
        del self._by_id[tracked.request_id]
        del self._by_slot[tracked.slot]
        self.outcomes[outcome] += 1

    def expired(self, now_ns: int) -> list[Tracked]:
        """The requests whose deadline has passed, each once, earliest first."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            deadline_ns, request_id = heapq.heappop(self._deadlines)
            tracked = self._by_id.get(request_id)
            if tracked is not None and tracked.deadline_ns == deadline_ns:
                late.append(tracked)
        return late
