"""The host build as Python functions.

ctypes, because it needs nothing but g++: no Python headers, no build system, and the same C ABI
can be called from anywhere. It costs about a microsecond a call, which matters to nobody here: what
must be fast (the stress run, the threads) calls no Python.
"""

from __future__ import annotations

import ctypes as c
from functools import cache
from typing import Any, Final

from blink.hw.host.build import build


class Claimed(c.Structure):
    """``struct Claimed`` of ring.h, its descriptor's fields in line."""

    _fields_ = [
        ("slot", c.c_uint32),
        ("request_id", c.c_uint64),
        ("cancel", c.c_uint64),
        ("descriptor", c.c_char * 56),
    ]


class Config(c.Structure):
    """``struct Config`` of core.h."""

    _fields_ = [
        *((name, c.c_uint32) for name in ("slots", "prompt_tokens_max", "output_tokens_max")),
        *((name, c.c_uint32) for name in ("blocks_total", "block_tokens")),
        *((name, c.c_uint32) for name in ("batch_max", "prefill_batch_max", "prefill_tokens_max")),
        *((name, c.c_uint32) for name in ("window", "graph_prompt_tokens_max")),
        *((name, c.c_uint32) for name in ("decode_batch_count", "prompt_token_count")),
        *((name, c.POINTER(c.c_uint32)) for name in ("decode_batches", "prompt_tokens")),
    ]


class Limits(c.Structure):
    """``struct Limits`` of policy.h."""

    _fields_ = [
        (name, c.c_uint32) for name in ("batch_max", "prefill_batch_max", "prefill_tokens_max")
    ]


Load: Final = c.CFUNCTYPE(c.c_uint64, c.c_uint64, c.c_uint32)
Store: Final = c.CFUNCTYPE(None, c.c_uint64, c.c_uint64)
Swap: Final = c.CFUNCTYPE(c.c_uint64, c.c_uint64, c.c_uint64, c.c_uint64)
Get: Final = c.CFUNCTYPE(None, c.c_uint64, c.c_void_p, c.c_uint32)
Put: Final = c.CFUNCTYPE(None, c.c_uint64, c.c_void_p, c.c_uint32)


class CalledMemory(c.Structure):
    """``struct CalledMemory`` of memory.h."""

    _fields_ = [("load", Load), ("store", Store), ("swap", Swap), ("get", Get), ("put", Put)]


_U32, _U64, _I64, _PTR = c.c_uint32, c.c_uint64, c.c_int64, c.c_void_p
_U32S, _U64S = c.POINTER(c.c_uint32), c.POINTER(c.c_uint64)

_SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    # name: result, arguments
    "step": (_U32, _U64, _U32, _U32, _I64, _U32, _U64S),
    "outcome_asked": (_U32, _U64, _U32, _U32S),
    "geometry": (None, _U32, _U32, _U32, _U32, _U32, _U64S),
    "bucket": (_U32, _U32S, _U32, _U32, _U32),
    "decide": (_U32, _PTR, _U32S, _U32, _U32, _U32, _U32, _U64, c.POINTER(Limits), _U32S),
    "decode_batch": (_U32, _PTR, _U32),
    "load_relaxed": (_U64, _PTR, _U64),
    "load_acquire": (_U64, _PTR, _U64),
    "store_relaxed": (None, _PTR, _U64, _U64),
    "store_release": (None, _PTR, _U64, _U64),
    "cas": (_U64, _PTR, _U64, _U64, _U64),
    "read_words": (None, _PTR, _U64, _PTR, _U32),
    "open": (_PTR, c.POINTER(Config), _PTR, c.POINTER(CalledMemory)),
    "close": (None, _PTR),
    "check_header": (_U32, _PTR),
    "ring_scan": (_U64, _PTR, _U32),
    "ring_claim": (_U32, _PTR, _U32, _U64, c.POINTER(Claimed)),
    "ring_begin_execution": (None, _PTR),
    "ring_adopt": (_U32, _PTR, _U32, c.POINTER(Claimed)),
    "ring_first_token": (_U32, _PTR, _U32),
    "ring_advance": (_U32, _PTR, _U32, _I64),
    "ring_pause": (_U32, _PTR, _U32),
    "ring_resume": (_U32, _PTR, _U32),
    "ring_complete": (_U32, _PTR, _U32, _U32),
    "ring_cancelled": (_U32, _PTR, _U32, _U32S),
    "ring_write_tokens": (_U32, _PTR, _U32, _U32, c.c_char_p, _U32),
    "ring_beat": (None, _PTR),
    "scheduler_step": (_U32, _PTR),
    "scheduler_turn": (None, _PTR),
    "scheduler_claim": (None, _PTR, _U32, _U64),
    "scheduler_end_scan": (None, _PTR),
    "scheduler_relaunch": (None, _PTR),
    "scheduler_fault": (_U32, _PTR, _U32S),
    "scheduler_dump": (_U64, _PTR, _U64S, _U64),
    "threads_start": (_U32, _PTR, _U32, _U32, _U32),
    "threads_stop": (None, _PTR),
    "threads_fault": (_U32, _PTR, _U32S),
    "blocks_free": (_U32, _PTR),
    "engine_sequence": (_U64, _PTR, _U32, _U64S, _U64),
    "engine_launched": (_U64, _PTR, _U32S, _U32S, _U32S, _U32S),
    "engine_view": (None, _PTR, _PTR, _U64S, _U64S),
    "host_engine_start": (None, _PTR, _PTR),
    "host_engine_stop": (None, _PTR),
    "host_engine_error": (c.c_int, _PTR),
    "host_engine_steps": (_U64, _PTR, _PTR, _U64),
    "host_engine_prompts": (_U64, _PTR, _U64S, _U64),
    "engine_tail_launches": (_U64, _PTR),
    "engine_set_token": (None, _PTR, _U32, _U32),
    "engine_finish": (None, _PTR),
}


class Library:
    """The functions of host.cpp without their prefix, each with its types."""

    def __init__(self, path: str) -> None:
        loaded = c.CDLL(path)
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(loaded, f"blink_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"host.cpp has no function blink_{name} that library.py knows")


@cache
def library(sanitizer: str = "plain", defines: tuple[str, ...] = ()) -> Library:
    """The library, built if need be. Raises BackendUnavailable if it cannot be."""
    return Library(str(build("library", sanitizer, defines)))
