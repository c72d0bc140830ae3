"""The scheduler's core in C++17 (``csrc/``), and the part of it that is made from the protocol."""

from __future__ import annotations
