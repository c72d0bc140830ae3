"""The same functions in plain torch: readable, on any device, and what the kernels must equal.

Sums, norms and softmax are taken in float32 whatever the model's dtype is.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear, silu

from blink.hw.engine.llama.config import Experts
from blink.hw.engine.llama.ops import Batch, Cache, Heads
from blink.hw.engine.llama.sampling import draw
from blink.hw.engine.llama.weights import Layer


class ReferenceOps:
    """See ops.Ops."""

    name = "torch"

    def embed(self, batch: Batch, embedding: torch.Tensor) -> torch.Tensor:
        """See Ops."""
        tokens = torch.where(_valid(batch), batch.tokens, 0).clamp(0, len(embedding) - 1)
        return embedding[tokens.flatten()]

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See Ops."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return weight * normed.to(x.dtype)

    def add_norm(
        self, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See Ops."""
        return self.norm(x.add_(delta), weight, eps)

    def last_norm(
        self, batch: Batch, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See Ops."""
        rows, tokens = batch.tokens.shape
        start = torch.arange(rows, device=x.device) * tokens
        last = start + (batch.lengths - 1).clamp(0, tokens - 1)
        return self.norm(x[last] + delta[last], weight, eps)

    def attend(
        self, batch: Batch, qkv: torch.Tensor, layer: Layer, cache: Cache, heads: Heads
    ) -> torch.Tensor:
        """See Ops."""
        rows, tokens = batch.tokens.shape
        positions = _positions(batch)
        split = qkv.view(rows, tokens, -1, heads.head_dim)
        q, k, v = split.split((heads.heads, heads.kv_heads, heads.kv_heads), dim=2)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = self.norm(q, layer.q_norm, heads.norm_eps)
            k = self.norm(k, layer.k_norm, heads.norm_eps)
        angles = cache.rope[positions.clamp(0, len(cache.rope) - 1)]
        q, k = _turn(q, angles), _turn(k, angles)
        _write(batch, positions, k, v, cache)
        return _attention(batch, positions, q, cache, heads).reshape(rows * tokens, -1)

    def linear(
        self, x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See Ops."""
        return linear(x, matrix, bias)

    def gated(self, x: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        """See Ops."""
        gate, up = linear(x, gate_up).chunk(2, dim=-1)
        return silu(gate) * up

    def mix(
        self, x: torch.Tensor, router_logits: torch.Tensor, layer: Layer, experts: Experts
    ) -> torch.Tensor:
        """See Ops."""
        weights, chosen = route(router_logits, experts)
        mixed = torch.zeros_like(x)
        for number in range(experts.count):
            token, place = torch.where(chosen == number)
            part = linear(
                self.gated(x[token], layer.gate_up[number]), layer.down[number]
            ) * weights[token, place, None].to(x.dtype)
            mixed.index_add_(0, token, part)
        return mixed

    def sample(self, batch: Batch, logits: torch.Tensor) -> None:
        """See Ops."""
        drawn = draw(
            logits,
            temperature=batch.temperature,
            top_k=batch.top_k,
            top_p=batch.top_p,
            seed=batch.seed,
            position=batch.positions + batch.lengths,
        )
        batch.output.copy_(drawn)


def route(router_logits: torch.Tensor, experts: Experts) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 weights and int64 numbers of each token's experts, both [N, chosen]."""
    weights, chosen = router_logits.float().softmax(-1).topk(experts.chosen, dim=-1)
    if experts.normalised:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, chosen


def _valid(batch: Batch) -> torch.Tensor:
    """Whether, in a bool [B, T], there is a token."""
    tokens = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    return tokens < batch.lengths[:, None]


def _positions(batch: Batch) -> torch.Tensor:
    """int64 [B, T]: of each new token; 0 in a padding row."""
    steps = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    return torch.where(batch.lengths[:, None] > 0, batch.positions[:, None] + steps, 0)


def _turn(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """``x`` [B, T, heads, head_dim] by ``angles`` [B, T, 2, head_dim / 2]."""
    cos, sin = angles[:, :, None].unbind(3)
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


def _write(
    batch: Batch, positions: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache: Cache
) -> None:
    """Keys and values of the new tokens to their blocks; those of no token to the scratch block."""
    scratch, block_tokens = len(cache.keys) - 1, cache.keys.shape[2]
    index = (positions // block_tokens).clamp(max=batch.block_tables.shape[1] - 1)
    blocks = torch.where(_valid(batch), batch.block_tables.long().gather(1, index), scratch)
    places = positions % block_tokens
    cache.keys[blocks, :, places] = k
    cache.values[blocks, :, places] = v


def _attention(
    batch: Batch, positions: torch.Tensor, q: torch.Tensor, cache: Cache, heads: Heads
) -> torch.Tensor:
    """[B, T, heads, head_dim]: every query over its row's blocks, up to its own position."""
    context = torch.where(batch.lengths > 0, batch.positions + batch.lengths, 0)
    keys = _gathered(batch, cache.keys, context)
    values = _gathered(batch, cache.values, context)
    groups = q.float().unflatten(2, (heads.kv_heads, -1))
    scores = torch.einsum("bthgd,bshd->bthgs", groups, keys) * heads.scale
    seen = torch.arange(keys.shape[1], device=q.device) <= positions[:, :, None]
    scores = scores.masked_fill(~seen[:, :, None, None], -torch.inf)
    mixed = torch.einsum("bthgs,bshd->bthgd", scores.softmax(-1), values)
    return mixed.flatten(2, 3).to(q.dtype)


def _gathered(batch: Batch, cache: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    """float32 [B, M * block_tokens, kv_heads, head_dim]; zero beyond the context, not garbage."""
    block_tokens = cache.shape[2]
    tables = batch.block_tables.long()
    starts = torch.arange(tables.shape[1], device=tables.device) * block_tokens
    tables = torch.where(starts < context[:, None], tables, len(cache) - 1)
    rows = cache[tables].transpose(2, 3).flatten(1, 2).float()
    held = torch.arange(rows.shape[1], device=tables.device) < context[:, None]
    return torch.where(held[:, :, None, None], rows, 0)
