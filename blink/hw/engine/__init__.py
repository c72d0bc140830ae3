"""Engines: what a captured graph computes. One port (``port.py``), several engines behind it."""

from __future__ import annotations
