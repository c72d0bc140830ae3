"""How the front end's decisions become operations on a link.

A submission is a handful of unordered writes and one ordered store. The writes may land in any
order, or late; the flag lands after all of them, so whoever sees it sees the rest.

Operations wait in an outbox until the caller rings the doorbell. Requests that arrive together
thus share one doorbell and one completion: coalescing needs no code of its own.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from blink.ring_protocol.constants import WORD_BYTES
from blink.ring_protocol.descriptor import Descriptor, cancel_word
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import Op, Publish, Write
from blink.ring_protocol.slot import CasIntent
from blink.ring_protocol.states import Outcome

OPS_PER_GROUP_MAX: Final = 4
"""A submission: prompt, descriptor, request id, flag."""


def encode_submission(
    geometry: Geometry,
    slot: int,
    intent: CasIntent,
    request_id: int,
    descriptor: Descriptor,
    prompt: bytes | memoryview | None,
) -> tuple[Op, ...]:
    """Payload first, flag last. Without `prompt` (a model moves no payload), no prompt write."""
    flag = geometry.metadata_offset(slot)
    control: tuple[Op, ...] = (
        Write(geometry.descriptor_offset(slot), descriptor.pack()),
        Write(flag + WORD_BYTES, request_id.to_bytes(WORD_BYTES, "little")),
        Publish(flag, intent.desired),
    )
    return control if prompt is None else (Write(geometry.prompt_offset(slot), prompt), *control)


def encode_release(geometry: Geometry, slot: int, intent: CasIntent) -> tuple[Op, ...]:
    """Give a completed slot back."""
    return (Publish(geometry.metadata_offset(slot), intent.desired),)


def encode_cancel(
    geometry: Geometry, slot: int, generation: int, outcome: Outcome
) -> tuple[Op, ...]:
    """Ask the scheduler, who owns the slot, to abort it."""
    return (Publish(geometry.cancel_offset(slot), cancel_word(generation, outcome)),)


class Outbox:
    """Groups of operations waiting for a doorbell, in order. A group is never divided."""

    def __init__(self) -> None:
        self._groups: deque[tuple[Op, ...]] = deque()
        self._ops = 0

    def __len__(self) -> int:
        """Operations waiting."""
        return self._ops

    def put(self, group: tuple[Op, ...]) -> None:
        assert 1 <= len(group) <= OPS_PER_GROUP_MAX, group
        self._groups.append(group)
        self._ops += len(group)

    def take(self, ops_max: int) -> list[Op]:
        """The next batch: whole groups, `ops_max` operations at most; [] if nothing waits.

        Raises ValueError if `ops_max` could never take a submission.
        """
        if ops_max < OPS_PER_GROUP_MAX:
            raise ValueError(f"a batch of {ops_max} cannot hold one of {OPS_PER_GROUP_MAX}")
        batch: list[Op] = []
        while self._groups and len(batch) + len(self._groups[0]) <= ops_max:
            batch += self._groups.popleft()
        self._ops -= len(batch)
        return batch

    def clear(self) -> None:
        self._groups.clear()
        self._ops = 0
