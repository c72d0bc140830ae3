"""Memory that processes share, and building the host's C++."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blink.hw.host import build
from blink.hw.host.memory import SharedMemory
from blink.model.errors import BackendUnavailable
from blink.ring_protocol.constants import HEADER_BYTES
from blink.ring_protocol.errors import LayoutMismatch
from blink.ring_protocol.layout import Geometry

pytestmark = pytest.mark.usefixtures("host_build")

RING = Geometry(slots=2, prompt_tokens_max=2, output_tokens_max=3)


@pytest.fixture
def memory() -> SharedMemory:
    return SharedMemory.formatted(RING)


def test_another_mapping_shows_what_was_stored(memory: SharedMemory) -> None:
    other = SharedMemory.attached(RING, memory.fd)
    flag = RING.metadata_offset(1)
    memory.store_release(flag, 1 << 63 | 5)
    assert other.load_acquire(flag) == other.load_relaxed(flag) == 1 << 63 | 5
    assert other.cas(flag, 4, 9) == 1 << 63 | 5
    assert other.cas(flag, 1 << 63 | 5, 9) == 1 << 63 | 5
    assert memory.read(HEADER_BYTES, RING.metadata_bytes)[16:24] == bytes([9, *7 * [0]])
    memory.write(RING.prompt_offset(0), b"\1\2\3\4")
    assert other.read(RING.prompt_offset(0), 4) == b"\1\2\3\4"


@pytest.mark.parametrize("geometry", [Geometry(2, 2, 4), Geometry(4096, 512, 512)])
def test_a_ring_of_another_shape_is_refused(memory: SharedMemory, geometry: Geometry) -> None:
    with pytest.raises(LayoutMismatch):
        SharedMemory.attached(geometry, memory.fd)


def test_memory_without_a_header_is_refused() -> None:
    fd = os.memfd_create("blink-test")
    os.ftruncate(fd, RING.total_bytes)
    with pytest.raises(LayoutMismatch):
        SharedMemory.attached(RING, fd)


@pytest.mark.parametrize("offset", [HEADER_BYTES + 4, HEADER_BYTES + 1])
def test_a_word_is_aligned(memory: SharedMemory, offset: int) -> None:
    with pytest.raises(ValueError, match="no word begins"):
        memory.load_relaxed(offset)
    with pytest.raises(ValueError, match="no word begins"):
        memory.store_release(offset, 1)


def test_memory_ends(memory: SharedMemory) -> None:
    for offset in (-8, RING.total_bytes):
        with pytest.raises(IndexError):
            memory.load_acquire(offset)
        with pytest.raises(IndexError):
            memory.write(offset, b"12345678")


def test_without_a_compiler_the_message_is_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendUnavailable, match="apt-get install g"):
        build.build("library")


def test_the_command_prints_where_the_build_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "blink.hw.host.build", "library"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).is_file()
