"""Events as the lines of a trace that formal/accept.py reads."""

from __future__ import annotations

from typing import Any

from blink.ring_protocol.events import SlotMoved

Line = dict[str, Any]


def line(move: SlotMoved) -> Line:
    return {
        "slot": move.slot,
        "generation": move.generation,
        "event": move.event.name,
        "writer": move.writer.name,
        "state": move.state.name,
        "tokens": move.tokens,
        "outcome": move.outcome.name,
    }
