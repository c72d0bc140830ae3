"""The scheduler on an NVIDIA GPU: the only door to ``cupy`` and ``cuda.bindings``."""

from __future__ import annotations
