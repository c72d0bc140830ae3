"""Scheduling decisions, pure: no I/O, no clock, no randomness, and no true output length.

``batching`` decides what a step-level scheduler does next (FCFS, continuous batching, inline
prefill under the paper's three conditions); ``chunked`` is the token-budget scheduler of
host-resident engines; ``kv`` is the paged KV ledger that both consult, ``prefix`` the beginnings of
prompts that it keeps, ``lookahead`` that ledger for speculation, ``offload`` the caches that lie in
the host's memory; ``graphs`` the table of captured graphs.
"""

from __future__ import annotations

from blink.model.policy.batching import Action, Decision, Limits, decide, decide_chunk
from blink.model.policy.chunked import Chunk, plan_chunks
from blink.model.policy.graphs import GraphCache
from blink.model.policy.kv import KvLedger
from blink.model.policy.lookahead import LookaheadLedger
from blink.model.policy.offload import OffloadPool
from blink.model.policy.prefix import PrefixCache

__all__ = [
    "Action",
    "Chunk",
    "Decision",
    "GraphCache",
    "KvLedger",
    "Limits",
    "LookaheadLedger",
    "OffloadPool",
    "PrefixCache",
    "decide",
    "decide_chunk",
    "plan_chunks",
]
