"""Offsets, header and descriptor: where everything lies, and who is told when it does not."""

from __future__ import annotations

import pytest

from blink.ring_protocol.constants import (
    DESCRIPTOR_BYTES,
    GENERATIONS,
    HEADER_BYTES,
    METADATA_BYTES,
    REGION_ALIGNMENT_BYTES,
)
from blink.ring_protocol.descriptor import (
    IGNORE_EOS,
    Descriptor,
    Sampling,
    cancel_word,
    outcome_asked,
)
from blink.ring_protocol.errors import (
    InvalidGeometry,
    InvalidSampling,
    LayoutMismatch,
    PeerViolation,
)
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.states import Outcome


def test_the_metadata_of_a_full_ring_is_one_read_of_64_kib() -> None:
    assert Geometry().metadata_bytes == METADATA_BYTES == 65_536


def test_regions_follow_each_other_on_pages() -> None:
    ring = Geometry(slots=100, prompt_tokens_max=33, output_tokens_max=77)
    assert ring.metadata_offset(0) == HEADER_BYTES
    assert ring.metadata_offset(99) + 16 <= ring.descriptor_offset(0)
    assert ring.descriptor_offset(99) + DESCRIPTOR_BYTES <= ring.control_bytes
    assert ring.control_bytes == ring.prompt_offset(0)
    assert ring.prompt_offset(99) + 33 * 4 <= ring.output_offset(0)
    assert ring.output_offset(99, 77) <= ring.total_bytes
    starts = (ring.metadata_offset(0), ring.descriptor_offset(0), ring.prompt_offset(0))
    for start in (*starts, ring.output_offset(0), ring.total_bytes):
        assert start % REGION_ALIGNMENT_BYTES == 0


def test_a_flag_offset_names_its_slot_and_no_other_offset_does() -> None:
    ring = Geometry(slots=5)
    for slot in range(5):
        assert ring.slot_of_flag(ring.metadata_offset(slot)) == slot
        assert ring.slot_of_flag(ring.request_id_offset(slot)) is None
        assert ring.slot_of_flag(ring.cancel_offset(slot)) is None
    assert ring.slot_of_flag(0) is None
    assert ring.slot_of_flag(ring.metadata_offset(5)) is None


@pytest.mark.parametrize("slots", [0, -1, 4097])
def test_a_ring_has_1_to_4096_slots(slots: int) -> None:
    with pytest.raises(InvalidGeometry, match=f"slots is {slots}"):
        Geometry(slots=slots)


def test_a_header_is_recognised() -> None:
    ring = Geometry(slots=8, prompt_tokens_max=16, output_tokens_max=32)
    header = ring.pack_header()
    assert len(header) == HEADER_BYTES
    ring.check_header(header)


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (Geometry(slots=9, prompt_tokens_max=16, output_tokens_max=32), "slots"),
        (Geometry(slots=8, prompt_tokens_max=17, output_tokens_max=32), "prompt_tokens_max"),
        (Geometry(slots=8, prompt_tokens_max=16, output_tokens_max=33), "output_tokens_max"),
    ],
)
def test_another_rings_header_is_refused_by_field(other: Geometry, field: str) -> None:
    ring = Geometry(slots=8, prompt_tokens_max=16, output_tokens_max=32)
    with pytest.raises(LayoutMismatch, match=field) as caught:
        ring.check_header(other.pack_header())
    assert caught.value.field == field


def test_memory_that_is_no_ring_is_refused() -> None:
    with pytest.raises(LayoutMismatch, match="magic"):
        Geometry().check_header(bytes(HEADER_BYTES))
    with pytest.raises(LayoutMismatch, match="size"):
        Geometry().check_header(b"")


def test_a_descriptor_survives_its_64_bytes() -> None:
    descriptor = Descriptor(1 << 60, (1 << 64) - 1, 1019, 463, 0.5, 0.75, 40, 2, IGNORE_EOS, 9)
    data = descriptor.pack()
    assert len(data) == DESCRIPTOR_BYTES
    assert Descriptor.unpack(data) == descriptor
    assert data[:8] == bytes(8), "a fresh request is not cancelled"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e6),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", -1.0),
        ("top_p", float("nan")),
        ("top_k", -1),
        ("seed", 1 << 64),
        ("stop_token", -5),
    ],
)
def test_sampling_that_no_sampler_can_do_is_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidSampling, match=field) as caught:
        Sampling(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_cancel_word_means_one_generation() -> None:
    word = cancel_word(7, Outcome.TIMED_OUT)
    assert outcome_asked(word, 7) is Outcome.TIMED_OUT
    assert not outcome_asked(word, 8)
    assert not outcome_asked(0, 0)
    assert outcome_asked(cancel_word(GENERATIONS - 1, Outcome.CANCELLED), GENERATIONS - 1)


def test_a_cancel_word_that_asks_for_success_is_the_peers_fault() -> None:
    with pytest.raises(PeerViolation, match="slot 3"):
        outcome_asked((7 << 8) | Outcome.STOP, 7, slot=3)
