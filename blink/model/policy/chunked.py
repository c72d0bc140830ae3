"""The token-budget scheduler of host-resident engines: decodes first, then prompts in chunks.

Each step has a budget of new tokens. Running decodes take one token each; what is left goes to
prompts in order of arrival, each as far as the budget reaches (chunked prefill).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """``tokens`` new tokens of the prompt at ``position`` in the queue, after ``done_tokens``."""

    position: int
    done_tokens: int
    tokens: int


def plan_chunks(
    prompts: Sequence[tuple[int, int]], budget_tokens: int, chunk_tokens_max: int | None = None
) -> list[Chunk]:
    """Spend ``budget_tokens`` on ``prompts``: pairs of (prompt tokens, tokens already done).

    No prompt gets more than ``chunk_tokens_max`` tokens in one step, if that is set.
    """
    chunks: list[Chunk] = []
    for position, (total, done) in enumerate(prompts):
        tokens = min(total - done, budget_tokens, chunk_tokens_max or total)
        if tokens <= 0:
            break
        chunks.append(Chunk(position, done, tokens))
        budget_tokens -= tokens
    return chunks
