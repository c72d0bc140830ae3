"""Named random streams: each purpose draws from a stream of its own, all from one seed."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

RandomStreams = Callable[[str], np.random.Generator]
"""A function from a purpose ("arrivals") to its generator."""


def stream_of(seed: int) -> RandomStreams:
    """Return the streams of ``seed``. Adding a purpose never shifts the draws of another."""

    def stream(name: str) -> np.random.Generator:
        return np.random.default_rng([seed, zlib.crc32(name.encode())])

    return stream
