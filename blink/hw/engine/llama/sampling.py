"""How the next token is drawn: an exact rule, so that every implementation draws the same one.

Given are a row's logits and its temperature, top-k, top-p, seed, and the position of the token to
be drawn. Nothing else has a say: not the batch, the row, the padding, nor how often a graph ran.

* *Rank.* Tokens are ranked by logit (as float32), the greater first, the lower id first at ties.
* *Greedy.* Unless the temperature is above 0 the first in rank is the answer.
* *Weight.* Else a token has e = exp((logit - greatest) / temperature), in float64, and the integer
  weight floor(e * 2**40): sums of integers are the same in whatever order they are taken.
* *Top-k* keeps the first k ranks; 0, or more than there are, keeps all.
* *Top-p* keeps, of these, the first in rank, and each whose predecessors weigh less than top_p
  times what all of these weigh; 1 or more keeps all.
* *Draw.* Each kept token waits -log(u) / e; the one that waits least is the answer. Exponential
  waiting times of rates e: each token is first with a probability proportional to its e.
* *Random numbers.* u is 52 bits of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy
  as 1, 2, 3", SC 2011) with the seed as key and (token id, position, 0, 0) as counter: the first
  word and the upper 20 bits of the second, plus one half, over 2**52. So 0 < u < 1, exactly.

Functions of float64 may differ between machines in the last bit. That changes an answer with a
probability of the order of 1e-12 a token.
"""

from __future__ import annotations

from typing import Final

import torch

WEIGHT_BITS: Final = 40
"""2**40 * 2**17 tokens is 2**57: a sum of weights fits 64 bits"""

_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_ROUNDS: Final = 10
_WORD: Final = 0xFFFFFFFF


def draw(
    logits: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
) -> torch.Tensor:
    """int64 [B] of logits [B, vocab]; the other tensors are [B]. By sorting: the oracle."""
    ranked, ids = logits.float().sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(logits.shape[1], device=logits.device)
    warm = temperature > 0
    heat = torch.where(warm, temperature, 1).double()[:, None]
    rate = ((ranked.double() - ranked[:, :1].double()) / heat).exp()
    count = torch.where(top_k > 0, top_k, len(ranks))[:, None]
    weight = torch.where(ranks < count, (rate * 2**WEIGHT_BITS).long(), 0)
    before = (weight.cumsum(-1) - weight).double()
    share = top_p.double()[:, None] * weight.sum(-1, keepdim=True).double()
    kept = (ranks < count) & ((before < share) | (ranks == 0) | (top_p[:, None] >= 1))
    wait = -uniform(seed[:, None], position[:, None], ids).log() / rate
    wait = torch.where(kept, wait, torch.inf)
    first = wait == wait.min(-1, keepdim=True).values
    drawn = torch.where(first, ids, len(ranks)).min(-1).values
    return torch.where(warm, drawn, ids[:, 0])


def uniform(seed: torch.Tensor, position: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """float64, above 0 and below 1, of integer tensors that broadcast; see the module."""
    zero = torch.zeros_like(token.long())
    counter = (token.long() + zero, position.long() + zero, zero, zero)
    high, low, _, _ = philox(counter, (seed.long() & _WORD, (seed.long() >> 32) & _WORD))
    return ((high << 20 | low >> 12).double() + 0.5) * 2.0**-52


def philox(
    counter: tuple[torch.Tensor, ...], key: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Philox4x32-10: four 32-bit words of a counter of four and a key of two, all in int64."""
    a, b, c, d = counter
    left, right = key
    for _ in range(_ROUNDS):
        low, high = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c  # int64 wraps; its bits are right
        a, b, c, d = (
            (high >> 32 & _WORD) ^ b ^ left,
            high & _WORD,
            (low >> 32 & _WORD) ^ d ^ right,
            low & _WORD,
        )
        left, right = left + _WEYL[0] & _WORD, right + _WEYL[1] & _WORD
    return a, b, c, d
