"""The ring protocol: how a SmartNIC and a GPU serve requests together without a host CPU.

Pure: no I/O, no clock, no randomness, no threads, nothing beyond the standard library. Begin with
`states.py`; then `slot.py`, `ring.py` (the scheduler's side), `front_end/` (the other side).
"""

from __future__ import annotations

from blink.ring_protocol.descriptor import GREEDY, Descriptor, Sampling
from blink.ring_protocol.errors import (
    InvalidGeometry,
    InvalidSampling,
    LayoutMismatch,
    LocalViolation,
    OutputTooLong,
    PeerViolation,
    PromptTooLong,
    ProtocolViolation,
    QueueFull,
    RequestRefused,
    RingError,
    TransportFailed,
    WindowExhausted,
)
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.loopback import LoopbackMemory, LoopbackTransport
from blink.ring_protocol.ring import Claimed, SchedulerRing
from blink.ring_protocol.slot import CasIntent, SlotWord, pack, step, unpack
from blink.ring_protocol.states import Event, Outcome, State, Writer
from blink.ring_protocol.window import LaunchWindow

__all__ = [
    "GREEDY",
    "CasIntent",
    "Claimed",
    "Descriptor",
    "Event",
    "Geometry",
    "InvalidGeometry",
    "InvalidSampling",
    "LaunchWindow",
    "LayoutMismatch",
    "LocalViolation",
    "LoopbackMemory",
    "LoopbackTransport",
    "Outcome",
    "OutputTooLong",
    "PeerViolation",
    "PromptTooLong",
    "ProtocolViolation",
    "QueueFull",
    "RequestRefused",
    "RingError",
    "Sampling",
    "SchedulerRing",
    "SlotWord",
    "State",
    "TransportFailed",
    "WindowExhausted",
    "Writer",
    "pack",
    "step",
    "unpack",
]
