"""Shipped with the project: what any new backend needs to test itself against the protocol."""

from __future__ import annotations
