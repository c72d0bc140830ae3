"""Blink: a CPU-free LLM serving stack and its digital twin, behind one protocol.

Start at ``docs/tour.md``. Nothing is imported here, so that ``import blink.ring_protocol`` needs
the standard library alone.
"""

from __future__ import annotations

__version__ = "0.1.0"
