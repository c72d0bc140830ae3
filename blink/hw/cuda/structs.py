"""What host and GPU hand each other: ``device.h``, ``graph.cu`` and ``ops.cu`` as ctypes."""

from __future__ import annotations

import ctypes as c
from typing import Final

from blink.hw.host.library import Claimed, Config

_U32, _U64, _PTR = c.c_uint32, c.c_uint64, c.c_void_p
GRAPHS: Final = 2


class StepLog(c.Structure):
    """One graph that ran; times in ns of the GPU's global timer."""

    _fields_ = [
        *((name, _U64) for name in ("decided_ns", "launched_ns", "start_ns", "end_ns", "seen_ns")),
        *((name, _U32) for name in ("graph", "count", "tokens", "exec_index")),
    ]


class PrefillLog(c.Structure):
    """One prompt that a graph computed, and the number of its step."""

    _fields_ = [("request_id", _U64), ("step", _U64)]


class Report(c.Structure):
    """What the host may see of a scheduler that runs."""

    _fields_ = [
        ("heartbeat", _U64),
        ("executions", _U64),
        *((name, _U32) for name in ("stop", "running", "fault", "fault_slot")),
        *((name, _U32) for name in ("launch_error", "blocks_free")),
        *((name, _U64) for name in ("launches_total", "relaunches", "steps")),
        *((name, _U64) for name in ("prefills", "tails")),
    ]


class Geometry(c.Structure):
    """``struct Geometry`` of ring.h."""

    _fields_ = [
        *((name, _U32) for name in ("slots", "prompt_tokens_max", "output_tokens_max")),
        *((name, _U64) for name in ("descriptors_offset", "prompts_offset")),
        *((name, _U64) for name in ("outputs_offset", "total_bytes")),
    ]


class HeldSlots(c.Structure):
    """``struct HeldSlots`` of ring.h."""

    _fields_ = [("words", _PTR), ("ceilings", _PTR), ("limits", _PTR)]


class Launch(c.Structure):
    """The running graph, for gather and scatter; times by odd and even launches."""

    _fields_ = [
        ("launched", _U64),
        ("finished", _U64),
        ("start_ns", _U64 * 2),
        ("end_ns", _U64 * 2),
        ("slots", _PTR),
        ("count", _U32),
        ("graph", _U32),
    ]


class View(c.Structure):
    """What gather and scatter read."""

    _fields_ = [
        *((name, _PTR) for name in ("requests", "tables", "counts")),
        *((name, _U32) for name in ("table_blocks_max", "scratch_block")),
        ("ring", _PTR),
        ("geometry", Geometry),
        ("launch", _PTR),
        ("tokens", _PTR),
    ]


class Setup(c.Structure):
    """What ``blink_setup`` is given."""

    _fields_ = [
        ("config", Config),
        *((name, _PTR) for name in ("ring", "report", "steps", "prefills", "tails")),
        ("log_capacity", _U64),
        *((name, _PTR) for name in ("decode_execs", "prefill_execs")),
        *((name, _PTR) for name in ("token_buckets", "prefill_batches")),
        *((name, _U32) for name in ("token_bucket_count", "prefill_batch_count")),
        ("modes", _U32 * GRAPHS),
    ]


class GraphInputs(c.Structure):
    """The arrays of one graph: ``Inputs`` of the engine's port."""

    _fields_ = [
        *((name, _PTR) for name in ("tokens", "lengths", "positions", "block_tables")),
        *((name, _PTR) for name in ("temperature", "top_k", "top_p", "seed", "output")),
        *((name, _U32) for name in ("batch", "tokens_max", "blocks_max")),
    ]


class RingCall(c.Structure):
    """One operation on a ring, and what came of it."""

    _fields_ = [
        ("op", _U32),
        ("slot", _U32),
        ("word", _U64),
        ("desired", _U64),
        ("count", c.c_int64),
        *((name, _U32) for name in ("outcome", "first", "status", "unused")),
        ("claimed", Claimed),
        ("tokens", _U32 * 64),
    ]
