"""The DPU's front end as a server: OpenAI's HTTP API in, a ring out."""

from __future__ import annotations
