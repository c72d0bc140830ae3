"""Real machines: the scheduler's core in C++, and what runs it on a host's threads or on a GPU."""

from __future__ import annotations
