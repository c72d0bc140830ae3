"""The decoder, in one screen: what it computes with is behind ``ops.Ops``."""

from __future__ import annotations

import torch

from blink.hw.engine.llama.config import ModelConfig
from blink.hw.engine.llama.ops import Batch, Cache, Heads, Ops
from blink.hw.engine.llama.weights import Layer, Weights


class Decoder:
    """A model with its cache: tokens in, logits of the next token out."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        ops: Ops,
        cache: torch.Tensor,
        rope: torch.Tensor,
    ) -> None:
        """``cache``: [layers, 2, blocks + 1, kv_heads, block_tokens, head_dim], 2: keys, values."""
        self._config = config
        self._weights = weights
        self._ops = ops
        self._heads = Heads(config.heads, config.kv_heads, config.head_dim, config.norm_eps)
        self._caches = [Cache(keys, values, rope) for keys, values in cache]

    def logits(self, batch: Batch) -> torch.Tensor:
        """[B, vocab]: of the token that follows each row's last valid one."""
        ops, weights, eps = self._ops, self._weights, self._config.norm_eps
        x = ops.embed(batch, weights.embedding)
        delta: torch.Tensor | None = None  # what the last layer adds; its addition is fused
        for layer, cache in zip(weights.layers, self._caches, strict=True):
            if delta is None:
                normed = ops.norm(x, layer.attention_norm, eps)
            else:
                normed = ops.add_norm(x, delta, layer.attention_norm, eps)
            qkv = ops.linear(normed, layer.qkv, layer.qkv_bias)
            attended = ops.attend(batch, qkv, layer, cache, self._heads)
            delta = ops.linear(attended, layer.output, layer.output_bias)
            delta = self._mlp(ops.add_norm(x, delta, layer.mlp_norm, eps), layer)
        assert delta is not None, "a model has a layer"
        return ops.linear(ops.last_norm(batch, x, delta, weights.norm, eps), weights.head)

    def step(self, batch: Batch) -> None:
        """One token a row, into ``batch.output``."""
        self._ops.sample(batch, self.logits(batch))

    def _mlp(self, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        ops = self._ops
        if layer.router is None or self._config.experts is None:
            return ops.linear(ops.gated(x, layer.gate_up), layer.down)
        return ops.mix(x, ops.linear(x, layer.router), layer, self._config.experts)
