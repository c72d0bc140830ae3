"""The host's engine thread: it launches graphs that the scheduler on the host decides on.

``csrc/host_engine.h`` from Python. It knows CUDA only as two function pointers, so that a test may
give it others.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from blink.hw.host.threads import HostThreads

LaunchFunction: Final = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p)
WaitFunction: Final = c.CFUNCTYPE(c.c_int, c.c_void_p)


class Launcher(c.Structure):
    """``struct Launcher``."""

    _fields_ = [
        *((name, c.c_void_p) for name in ("launch", "wait", "stream", "shared", "slots")),
        ("tokens", c.c_void_p),
        *((name, c.c_void_p) for name in ("decode_execs", "prefill_execs")),
        *((name, c.c_void_p) for name in ("decode_index", "prefill_index", "tokens_index")),
        ("token_buckets", c.c_uint32),
    ]


class HostStep(c.Structure):
    """``struct HostStep``: one graph that ran."""

    _fields_ = [
        *((name, c.c_uint64) for name in ("decided_ns", "launched_ns", "seen_ns")),
        *((name, c.c_uint64) for name in ("gpu_start_ns", "gpu_end_ns")),
        *((name, c.c_uint32) for name in ("graph", "count", "tokens", "prompts")),
    ]


@dataclass(frozen=True, slots=True)
class Tables:
    """Which executable serves what: handles, and indices into them by count and by tokens."""

    decode_execs: Sequence[int]
    prefill_execs: Sequence[int]
    """rows by batch, columns by tokens; 0 where there is none"""
    decode_index: Sequence[int]
    prefill_index: Sequence[int]
    tokens_index: Sequence[int]
    token_buckets: int


class HostEngine:
    """See the module. Begins at once, and ends with :meth:`stop`.

    launch, wait: addresses of ``cuGraphLaunch`` and ``cuStreamSynchronize``, or of what does as
    they do. shared, slots, tokens: addresses of the GPU-visible ``struct Launch``, and of a word
    for each slot of the ring, twice.
    """

    def __init__(
        self,
        scheduler: HostThreads,
        tables: Tables,
        *,
        launch: int,
        wait: int,
        stream: int,
        shared: int,
        slots: int,
        tokens: int,
    ) -> None:
        self._scheduler = scheduler
        execs = [_array(c.c_void_p, each) for each in (tables.decode_execs, tables.prefill_execs)]
        indices = [
            _array(c.c_uint32, each)
            for each in (tables.decode_index, tables.prefill_index, tables.tokens_index)
        ]
        self._kept = (execs, indices)
        addresses = [c.addressof(each) for each in (*execs, *indices)]
        launcher = Launcher(
            launch, wait, stream, shared, slots, tokens, *addresses, tables.token_buckets
        )
        scheduler.value("host_engine_start", c.addressof(launcher))

    def error(self) -> int:
        """The ``CUresult`` that stopped it, or 0."""
        return int(self._scheduler.value("host_engine_error"))

    def stop(self) -> None:
        """End it between two graphs."""
        self._scheduler.value("host_engine_stop")

    def steps(self) -> tuple[list[HostStep], list[int]]:
        """The graphs that ran, and the request ids of all prompts in order. Only when stopped."""
        count = self._scheduler.value("host_engine_steps", None, 0)
        steps = (HostStep * count)()
        self._scheduler.value("host_engine_steps", c.addressof(steps), count)
        size = self._scheduler.value("host_engine_prompts", None, 0)
        prompts = (c.c_uint64 * size)()
        self._scheduler.value("host_engine_prompts", prompts, size)
        return list(steps), list(prompts)


def _array(kind: Any, values: Sequence[int]) -> Any:
    return (kind * len(values))(*values)
