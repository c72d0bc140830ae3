"""Speculative decoding: a draft proposes ``k`` tokens, one step of the model verifies them.

Of the draft's tokens those before the first wrong one are kept, and the verification adds one of
its own. With a chance ``a`` that a token is right, each independent of the others, ``n`` tokens are
kept with probability ``a^n (1 - a)`` (``a^k`` for all ``k``), and a step gives on average::

    (1 - a^(k+1)) / (1 - a) tokens          Leviathan et al., ICML 2023, equation 1

What a step gives one sequence depends on nothing but that sequence, so the world draws it when the
sequence begins to decode (:func:`tokens_of_steps`), from a stream of the sequence's own: it does
not change with the system, the load or the batch.

A step of the batch then takes::

    k x the draft model's decode step                    (nothing without a draft model)
    + one step of the model over (k+1) tokens a sequence, k+1 rows each in the vocabulary projection

and writes keys and values of k+1 tokens, of which the wrong ones are overwritten by the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blink.model.llm import LlmSku
from blink.model.timing import StepTime


@dataclass(frozen=True, slots=True)
class Speculation:
    """``draft_tokens`` a step, each right with probability ``acceptance``; who drafts, if a model.

    Without a model the draft is looked up in the text so far and costs the GPU nothing.
    """

    draft_tokens: int
    acceptance: float
    draft: LlmSku | None = None

    @property
    def tokens_per_step_mean(self) -> float:
        """What a step gives a sequence on average, its end aside."""
        k, a = self.draft_tokens, self.acceptance
        return k + 1.0 if a == 1 else (1 - a ** (k + 1)) / (1 - a)


def tokens_of_steps(speculation: Speculation, tokens: int, rng: np.random.Generator) -> list[int]:
    """How many tokens each decode step gives a sequence until it has ``tokens`` of them.

    Each is 1 to ``draft_tokens`` + 1; the last one is cut where the answer ends.
    """
    k = speculation.draft_tokens
    if speculation.acceptance == 1:
        each = np.full(tokens, k + 1, dtype=np.int64)
    else:
        each = np.minimum(rng.geometric(1 - speculation.acceptance, tokens), k + 1)
    total = np.cumsum(each)
    steps = int(np.searchsorted(total, tokens)) + 1 if tokens else 0
    found: list[int] = each[:steps].tolist()
    if found:
        found[-1] -= int(total[steps - 1]) - tokens
    return found


class SpeculativeStepTime(StepTime):
    """Step times of a model that verifies, its draft's included."""

    __slots__ = ("_draft", "_rows")

    def __init__(self, draft_tokens: int, draft: StepTime | None, *model: Any) -> None:
        """``model``: the arguments of StepTime."""
        super().__init__(*model)
        self._rows = draft_tokens + 1
        self._draft = draft

    def decode_ns(
        self, batch: int, context_sum: int, steps: int, computed: int | None = None
    ) -> NDArray[np.int64]:
        """See StepTime; one step, since what the next one finds in the cache is not known yet."""
        assert steps == 1, "how far a step comes is known after it"
        computed = batch if computed is None else computed
        verify_ns = self.verify_ns(computed * self._rows, computed * self._rows, context_sum, 0)
        return np.array([verify_ns + self._draft_ns(batch, context_sum, computed)], dtype=np.int64)

    def prefill_ns(self, tokens: int, pairs: int) -> int:
        """See StepTime; the draft model computes the prompt, too."""
        drafted = self._draft.prefill_ns(tokens, pairs) if self._draft else 0
        return super().prefill_ns(tokens, pairs) + drafted

    def mixed_ns(
        self, decode_batch: int, context_sum: int, prefill_tokens: int, prefill_pairs: int
    ) -> int:
        """See StepTime."""
        rows = decode_batch * self._rows
        verify_ns = self.verify_ns(
            rows + prefill_tokens, rows + (prefill_tokens > 0), context_sum, prefill_pairs
        )
        drafted = self._draft_ns(decode_batch, context_sum, decode_batch)
        if self._draft and prefill_tokens:
            drafted += self._draft.prefill_ns(prefill_tokens, prefill_pairs)
        return verify_ns + drafted

    def _draft_ns(self, batch: int, context_sum: int, computed: int) -> int:
        if self._draft is None or self._rows == 1:
            return 0
        return int(self._draft.decode_ns(batch, context_sum, self._rows - 1, computed).sum())
