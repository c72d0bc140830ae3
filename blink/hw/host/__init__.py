"""The scheduler's core on a host: built by g++, bound by ctypes, on threads and shared memory."""

from __future__ import annotations
