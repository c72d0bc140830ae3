"""The front end's half of the protocol: pure, and the same in the twin and in a real server."""

from __future__ import annotations

from blink.ring_protocol.front_end.core import BackPressure, FrontEnd, Submitted, Update
from blink.ring_protocol.front_end.request_tracker import RequestTracker, Tracked
from blink.ring_protocol.front_end.slot_tracker import SlotTracker
from blink.ring_protocol.front_end.submission import (
    OPS_PER_GROUP_MAX,
    Outbox,
    encode_cancel,
    encode_release,
    encode_submission,
)
from blink.ring_protocol.front_end.token_reader import Progress, TokenReader

__all__ = [
    "OPS_PER_GROUP_MAX",
    "BackPressure",
    "FrontEnd",
    "Outbox",
    "Progress",
    "RequestTracker",
    "SlotTracker",
    "Submitted",
    "TokenReader",
    "Tracked",
    "Update",
    "encode_cancel",
    "encode_release",
    "encode_submission",
]
