"""What a request asks for, as 64 bytes in ring memory.

     0  cancel word          front end; the only word here that changes while a request lives
     8  arrival, ns          when the front end accepted it (its own clock): the FCFS order
    16  seed                 of the request's own random stream
    24  prompt tokens        32  temperature     40  top k           48  flags
    28  output tokens, max   36  top p           44  stop token      52  generation
    56  reserved, zero

The generation is written with the descriptor and again in the flag word that publishes it. A
scheduler that finds them different has seen a flag overtake its payload, and says so.

The cancel word carries the generation it means, so that a client's late farewell cannot hit the
request that has the slot now.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from blink.ring_protocol.constants import DESCRIPTOR_BYTES, NO_TOKEN
from blink.ring_protocol.errors import InvalidSampling, PeerViolation
from blink.ring_protocol.slot import OUTCOME_MASK
from blink.ring_protocol.states import OUTCOMES_OF, Event, Outcome

IGNORE_EOS: Final = 1 << 0
"""Flag: generate up to the limit whatever the model says (benchmarks)."""

FIELDS: Final = struct.Struct("<8xQQIIffIIII8x")
assert FIELDS.size == DESCRIPTOR_BYTES

CANCEL_GENERATION_SHIFT: Final = 8


class Descriptor(NamedTuple):
    """A request as the scheduler sees it. The fields are in the order of their bytes.

    A tuple, not a dataclass: one is packed and one unpacked for every request.
    """

    arrival_ns: int
    seed: int
    prompt_tokens: int
    output_tokens_max: int
    temperature: float
    top_p: float
    top_k: int
    stop_token: int
    flags: int
    generation: int

    def pack(self) -> bytes:
        """64 bytes, with a cancel word of zero."""
        return FIELDS.pack(*self)

    @staticmethod
    def unpack(data: bytes | memoryview) -> Descriptor:
        return Descriptor._make(FIELDS.unpack(data))


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose tokens. Raises InvalidSampling for what no sampler can do.

    temperature: 0 is greedy, 2 the most that OpenAI's API allows. top_p: in (0, 1].
    top_k: 0 is off. seed: 64 bits. stop_token: a token id, or NO_TOKEN.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_token: int = NO_TOKEN
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        # `not (a <= x <= b)` rather than `x < a or x > b`: NaN must fail.
        if not (0.0 <= self.temperature <= 2.0 and math.isfinite(self.temperature)):
            raise InvalidSampling("temperature", self.temperature, "0 to 2")
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidSampling("top_p", self.top_p, "above 0, up to 1")
        if not 0 <= self.top_k < 1 << 32:
            raise InvalidSampling("top_k", self.top_k, "0 (off) to 2**32 - 1")
        if not 0 <= self.seed < 1 << 64:
            raise InvalidSampling("seed", self.seed, "0 to 2**64 - 1")
        if not 0 <= self.stop_token <= NO_TOKEN:
            raise InvalidSampling("stop_token", self.stop_token, "a token id of 32 bits")

    @property
    def flags(self) -> int:
        return IGNORE_EOS if self.ignore_eos else 0


GREEDY: Final = Sampling()


def cancel_word(generation: int, outcome: Outcome) -> int:
    """The word that asks the scheduler to abort this generation with this outcome."""
    assert outcome in OUTCOMES_OF[Event.ABORT], outcome
    return (generation << CANCEL_GENERATION_SHIFT) | outcome


def outcome_asked(word: int, generation: int, *, slot: int | None = None) -> Outcome:
    """What a cancel word asks of `generation`: NONE (falsy) if it means nobody or another one.

    Raises PeerViolation if it asks for something that is not an abort.
    """
    if word == 0 or word >> CANCEL_GENERATION_SHIFT != generation:
        return Outcome.NONE
    asked = word & OUTCOME_MASK
    if asked not in OUTCOMES_OF[Event.ABORT]:
        raise PeerViolation(f"the cancel word {word:#x} asks for no known abort", slot=slot)
    return Outcome(asked)
