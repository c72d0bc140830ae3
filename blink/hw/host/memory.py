"""Ring memory that processes share, seen through both doors, with real atomics.

The words are ``std::atomic`` of the host build. A process makes the ring and hands its file
descriptor on (``fork``, or ``pass_fds``); another attaches to it. There is no name in any file
system, and nothing is left behind when the last process ends.
"""

from __future__ import annotations

import ctypes as c
import mmap
import os

from blink.hw.host.library import library
from blink.ring_protocol.constants import HEADER_BYTES, WORD_BYTES
from blink.ring_protocol.layout import Geometry

_MISALIGNED = WORD_BYTES - 1


class SharedMemory:
    """A ``DeviceMemory`` over memory that other processes may map too.

    fd: the descriptor of a ring's memory. The mapping lives as long as this object.
    """

    def __init__(self, geometry: Geometry, fd: int) -> None:
        self.geometry = geometry
        self.fd = fd
        self._mapped = mmap.mmap(fd, geometry.total_bytes)
        self._bytes = memoryview(self._mapped)
        self._library = library()
        self.address = c.addressof(c.c_char.from_buffer(self._mapped))
        self._metadata_end = HEADER_BYTES + geometry.metadata_bytes

    @classmethod
    def formatted(cls, geometry: Geometry) -> SharedMemory:
        """An empty ring with its header, in memory of no file."""
        fd = os.memfd_create("blink-ring")
        os.ftruncate(fd, geometry.total_bytes)
        made = cls(geometry, fd)
        made.write(0, geometry.pack_header())
        return made

    @classmethod
    def attached(cls, geometry: Geometry, fd: int) -> SharedMemory:
        """Another process's ring. Raises LayoutMismatch if it is one of another shape."""
        if os.fstat(fd).st_size < geometry.total_bytes:
            geometry.check_header(os.pread(fd, HEADER_BYTES, 0))
        made = cls(geometry, fd)
        geometry.check_header(made.read(0, HEADER_BYTES))
        return made

    def load_relaxed(self, offset: int) -> int:
        """See DeviceMemory."""
        found: int = self._library.load_relaxed(self.address, self._word(offset))
        return found

    def load_acquire(self, offset: int) -> int:
        """See DeviceMemory."""
        found: int = self._library.load_acquire(self.address, self._word(offset))
        return found

    def store_release(self, offset: int, value: int) -> None:
        """See DeviceMemory."""
        self._library.store_release(self.address, self._word(offset), value)

    def cas(self, offset: int, expected: int, desired: int) -> int:
        """See DeviceMemory."""
        found: int = self._library.cas(self.address, self._word(offset), expected, desired)
        return found

    def read(self, offset: int, length: int) -> bytes:
        """See DeviceMemory. Metadata is read word by word, each an acquire."""
        self._check(offset, length)
        if not HEADER_BYTES <= offset < self._metadata_end:
            return bytes(self._bytes[offset : offset + length])
        words = (c.c_uint64 * (length // WORD_BYTES))()
        self._library.read_words(self.address, self._word(offset), words, len(words))
        return bytes(words)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """See DeviceMemory. A word of the metadata is written whole."""
        self._check(offset, len(data))
        if HEADER_BYTES <= offset < self._metadata_end:
            for at in range(0, len(data), WORD_BYTES):
                value = int.from_bytes(data[at : at + WORD_BYTES], "little")
                self._library.store_relaxed(self.address, self._word(offset + at), value)
        else:
            self._bytes[offset : offset + len(data)] = data

    def _word(self, offset: int) -> int:
        if offset & _MISALIGNED:
            raise ValueError(f"no word begins at offset {offset}")
        self._check(offset, WORD_BYTES)
        return offset

    def _check(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > len(self._bytes):
            raise IndexError(f"{length} bytes at {offset} are not within {len(self._bytes)}")
