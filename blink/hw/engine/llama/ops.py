"""What a decoder computes with, as a port with two implementations.

``reference.py`` is plain torch, readable and the oracle; ``kernels/`` is Triton, for speed. The
tests hold one against the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from blink.hw.engine.llama.config import Experts
from blink.hw.engine.llama.weights import Layer


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of port.Inputs, on the engine's device. B rows of T tokens, N = B * T."""

    tokens: torch.Tensor
    lengths: torch.Tensor
    positions: torch.Tensor
    block_tables: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    seed: torch.Tensor
    output: torch.Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """How a token's row of the fused projection is to be read."""

    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float

    @property
    def scale(self) -> float:
        """Of the scores, before the softmax."""
        return float(self.head_dim**-0.5)


@dataclass(frozen=True, slots=True)
class Cache:
    """One layer's keys and values, and the angles of all positions.

    The last block is the scratch block.
    """

    keys: torch.Tensor
    """[blocks + 1, kv_heads, block_tokens, head_dim]"""
    values: torch.Tensor
    rope: torch.Tensor
    """float32 [positions, 2, head_dim / 2]"""


class Ops(Protocol):
    """Functions of tensors on one device. ``x`` is the residual stream, [N, hidden]."""

    name: str

    def embed(self, batch: Batch, embedding: torch.Tensor) -> torch.Tensor:
        """[N, hidden]; whatever stands beyond a row's length is embedded as token 0."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm of each row."""

    def add_norm(
        self, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add ``delta`` to ``x`` in place; return the norm of the sum."""

    def last_norm(
        self, batch: Batch, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """[B, hidden]: norm of ``x + delta`` at each row's last valid token, or its first."""

    def attend(
        self, batch: Batch, qkv: torch.Tensor, layer: Layer, cache: Cache, heads: Heads
    ) -> torch.Tensor:
        """[N, heads * head_dim]: causal attention; writes the new keys and values to the blocks.

        A prompt (T > 1, or a prefill graph) starts at position 0; a decode row sees its blocks up
        to its position, and itself. ``qkv`` is [N, qkv_width], and may be overwritten.
        """

    def linear(
        self, x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[N, out] of [N, in], a matrix [out, in] and a bias [out]."""

    def gated(self, x: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        """[N, W]: SiLU of the product with the first W rows times that with the others."""

    def mix(
        self, x: torch.Tensor, router_logits: torch.Tensor, layer: Layer, experts: Experts
    ) -> torch.Tensor:
        """[N, hidden]: each token through its experts."""

    def sample(self, batch: Batch, logits: torch.Tensor) -> None:
        """Draw the token at position ``positions + lengths`` of each row into ``output``."""
