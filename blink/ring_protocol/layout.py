"""Where everything lies in ring memory. The single owner of offsets.

    +------------------+ 0
    | header           | magic, version, geometry; heartbeat; scheduler generation
    +------------------+ 4096
    | slot metadata    | slots x 16 B: flag word, request id        read in bulk by the front end
    +------------------+
    | descriptors      | slots x 64 B: cancel word, limits, sampling
    +------------------+ .control_bytes
    | prompts          | slots x prompt_tokens_max x 4 B
    +------------------+
    | outputs          | slots x output_tokens_max x 4 B
    +------------------+ .total_bytes

Everything is little-endian. Every region begins on a page. Everything that is published (flag
words, cancel words, heartbeat) is an aligned 8-byte word. The part below `control_bytes` is
complete without the token regions: a model of the ring that moves no payload needs no more.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass, field
from typing import Final

from blink.ring_protocol.constants import (
    DESCRIPTOR_BYTES,
    HEADER_BYTES,
    LAYOUT_VERSION,
    MAGIC,
    REGION_ALIGNMENT_BYTES,
    SLOT_METADATA_BYTES,
    SLOTS_MAX,
    TOKEN_BYTES,
    TOKENS_MAX,
    WORD_BYTES,
)
from blink.ring_protocol.errors import InvalidGeometry, LayoutMismatch

assert sys.byteorder == "little", "ring words are read in place: this needs a little-endian host"

HEARTBEAT_OFFSET: Final = 64
SCHEDULER_GENERATION_OFFSET: Final = 72
"""Words the scheduler writes lie a cache line away from the identity nobody writes again."""

IDENTITY: Final = struct.Struct("<Q7I4xQQ")
IDENTITY_FIELDS: Final = (
    "magic",
    "version",
    "header_bytes",
    "slots",
    "slot_metadata_bytes",
    "descriptor_bytes",
    "prompt_tokens_max",
    "output_tokens_max",
    "control_bytes",
    "total_bytes",
)
assert IDENTITY.size <= HEARTBEAT_OFFSET
assert SCHEDULER_GENERATION_OFFSET + WORD_BYTES <= HEADER_BYTES


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of one ring: three sizes, and the offsets that follow from them.

    slots: 1 to 4096. prompt_tokens_max, output_tokens_max: tokens a slot has room for.
    Raises InvalidGeometry if one is out of range.
    """

    slots: int = SLOTS_MAX
    prompt_tokens_max: int = 8192
    output_tokens_max: int = 8192

    metadata_bytes: int = field(init=False, repr=False)
    descriptors_offset: int = field(init=False, repr=False)
    prompts_offset: int = field(init=False, repr=False)
    outputs_offset: int = field(init=False, repr=False)
    control_bytes: int = field(init=False, repr=False)
    total_bytes: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_range("slots", self.slots, SLOTS_MAX)
        _check_range("prompt_tokens_max", self.prompt_tokens_max, TOKENS_MAX)
        _check_range("output_tokens_max", self.output_tokens_max, TOKENS_MAX)
        metadata_bytes = self.slots * SLOT_METADATA_BYTES
        descriptors = _page(HEADER_BYTES + metadata_bytes)
        prompts = _page(descriptors + self.slots * DESCRIPTOR_BYTES)
        outputs = _page(prompts + self.slots * self.prompt_tokens_max * TOKEN_BYTES)
        total = _page(outputs + self.slots * self.output_tokens_max * TOKEN_BYTES)
        # A frozen value fills in what follows from its fields once, not at every look-up.
        object.__setattr__(self, "metadata_bytes", metadata_bytes)
        object.__setattr__(self, "descriptors_offset", descriptors)
        object.__setattr__(self, "prompts_offset", prompts)
        object.__setattr__(self, "control_bytes", prompts)
        object.__setattr__(self, "outputs_offset", outputs)
        object.__setattr__(self, "total_bytes", total)

    def metadata_offset(self, slot: int) -> int:
        """Offset of the slot's flag word. Its request id follows, 8 bytes on."""
        return HEADER_BYTES + slot * SLOT_METADATA_BYTES

    def request_id_offset(self, slot: int) -> int:
        return HEADER_BYTES + slot * SLOT_METADATA_BYTES + WORD_BYTES

    def descriptor_offset(self, slot: int) -> int:
        return self.descriptors_offset + slot * DESCRIPTOR_BYTES

    def cancel_offset(self, slot: int) -> int:
        """Offset of the slot's cancel word: the first of its descriptor."""
        return self.descriptors_offset + slot * DESCRIPTOR_BYTES

    def prompt_offset(self, slot: int) -> int:
        return self.prompts_offset + slot * self.prompt_tokens_max * TOKEN_BYTES

    def output_offset(self, slot: int, token: int = 0) -> int:
        """Offset of the slot's output token number `token`."""
        return self.outputs_offset + (slot * self.output_tokens_max + token) * TOKEN_BYTES

    def slot_of_flag(self, offset: int) -> int | None:
        """The slot whose flag word lies at `offset`, or None if none does."""
        slot, within = divmod(offset - HEADER_BYTES, SLOT_METADATA_BYTES)
        return slot if within == 0 and 0 <= slot < self.slots else None

    def pack_header(self) -> bytes:
        """The first HEADER_BYTES of a fresh ring: identity, then zeros."""
        return IDENTITY.pack(*self._identity()).ljust(HEADER_BYTES, b"\0")

    def check_header(self, header: bytes | memoryview) -> None:
        """Raise LayoutMismatch, naming the first field that differs, if it is another ring's."""
        if len(header) < IDENTITY.size:
            raise LayoutMismatch("size", HEADER_BYTES, len(header))
        found = IDENTITY.unpack_from(header)
        for name, expected, value in zip(IDENTITY_FIELDS, self._identity(), found, strict=True):
            if value != expected:
                raise LayoutMismatch(name, expected, value)

    def _identity(self) -> tuple[int, ...]:
        return (
            MAGIC,
            LAYOUT_VERSION,
            HEADER_BYTES,
            self.slots,
            SLOT_METADATA_BYTES,
            DESCRIPTOR_BYTES,
            self.prompt_tokens_max,
            self.output_tokens_max,
            self.control_bytes,
            self.total_bytes,
        )


def _check_range(name: str, value: int, maximum: int) -> None:
    if not 1 <= value <= maximum:
        raise InvalidGeometry(name, value, maximum)


def _page(offset: int) -> int:
    return -(-offset // REGION_ALIGNMENT_BYTES) * REGION_ALIGNMENT_BYTES
