"""The GPU's clock and the host's, on one scale."""

from __future__ import annotations

import ctypes as c
import time
from collections.abc import Callable

from blink.hw.cuda.runtime import PinnedBytes, Stream, kernel

TRIES = 40


def gpu_offset_ns(now_ns: Callable[[], int] = time.perf_counter_ns) -> int:
    """What to add to the GPU's global timer to get the host's clock, ns.

    Of some tries, the one that took the host least time; it is good to half of that, microseconds.
    """
    stream, cell = Stream(), PinnedBytes(8)
    pointer = c.c_void_p(cell.pointer)
    best: tuple[int, int] | None = None
    for _ in range(TRIES):
        began = now_ns()
        stream.launch(kernel("blink_now"), 1, 1, pointer)
        stream.wait()
        took = now_ns() - began
        gpu_ns = int.from_bytes(cell.view[:8], "little")
        if best is None or took < best[0]:
            best = took, began + took // 2 - gpu_ns
    cell.free()
    assert best is not None
    return best[1]
