"""Capacity planning: the largest load that meets an SLO, and what it takes to serve a demand."""

from __future__ import annotations
