"""The cache of captured graphs: O(1) look-up by shape, one fallback for whatever it lacks.

The paper (section 4.2) captures 650-1000 graphs over (batch size, sequence length), looks them up
in a precomputed table and falls back to one graph of the maximal shape. A captured graph computes
its whole shape: what does not fill it is padding that the GPU still works through.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

# Decode batches as vLLM captures them: 1, 2, 4, then every 8 (measured/..RTX4090..meta.json,
# cudagraph_capture_sizes). Prompt lengths: every 64 tokens to 2048, then every 256: padding stays
# under 64 tokens where most prompts are.
DECODE_BATCHES = (1, 2, 4, *range(8, 257, 8), *range(272, 1025, 16))
PROMPT_TOKENS = (16, 32, *range(64, 2049, 64), *range(2304, 8193, 256))
PREFILL_BATCHES = (1, 2, 4, 8)


@dataclass(slots=True)
class GraphCache:
    """Which captured graph serves a shape. Immutable but for the fallback counter.

    ``prompt_tokens_max`` and ``decode_batch_max`` are the maximal (fallback) shape.
    """

    decode_batch_max: int
    prompt_tokens_max: int
    decode_batches: Sequence[int] = DECODE_BATCHES
    prompt_tokens: Sequence[int] = PROMPT_TOKENS
    fallbacks: int = 0
    _decode_table: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._decode_table = [
            self._bucket(self.decode_batches, batch, self.decode_batch_max)
            for batch in range(self.decode_batch_max + 1)
        ]

    @staticmethod
    def _bucket(buckets: Sequence[int], size: int, maximum: int) -> int:
        index = bisect_left(buckets, size)
        return min(buckets[index], maximum) if index < len(buckets) else maximum

    def decode_batch(self, batch: int) -> int:
        """Return the batch size of the graph that decodes ``batch`` sequences."""
        return self._decode_table[batch]

    def prompt_bucket(self, tokens: int) -> int:
        """Return the prompt length (tokens) of the graph that prefills ``tokens``."""
        return self._bucket(self.prompt_tokens, tokens, max(tokens, self.prompt_tokens_max))

    def prefill(self, prompts: Sequence[int]) -> int:
        """Return the tokens that the chosen prefill graph computes, padding included.

        A group larger than every captured batch, or a prompt beyond every captured length, takes
        the fallback and is counted.
        """
        longest = max(prompts)
        index = bisect_left(PREFILL_BATCHES, len(prompts))
        known = self.prompt_tokens[-1] if self.prompt_tokens else 0
        if index == len(PREFILL_BATCHES) or longest > known:
            self.fallbacks += 1
            return len(prompts) * self.prompt_bucket(longest)
        return PREFILL_BATCHES[index] * self.prompt_bucket(longest)

    @property
    def graphs(self) -> int:
        """How many graphs are captured (the paper: 650-1000)."""
        prompts = sum(tokens <= self.prompt_tokens_max for tokens in self.prompt_tokens)
        decodes = sum(batch <= self.decode_batch_max for batch in self.decode_batches)
        return prompts * len(PREFILL_BATCHES) + decodes
