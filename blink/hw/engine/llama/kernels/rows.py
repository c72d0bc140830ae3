"""Row by row: embedding, RMS norm with the residual sum, gated SiLU.

Roundings are those of the plain torch functions: a sum or a norm is rounded to the model's dtype
before the next step takes it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def embed(tokens, lengths, embedding, x, T, vocab, H: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (N, H / BLOCK). ``x`` [N, H]; a token beyond its row's length counts as token 0."""
    place = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = place % T < tl.load(lengths + place // T)
    token = tl.where(valid, tl.load(tokens + place), 0)
    token = tl.minimum(tl.maximum(token, 0), vocab - 1).to(tl.int64)
    inside = column < H
    row = tl.load(embedding + token * H + column, mask=inside)
    tl.store(x + place.to(tl.int64) * H + column, row, mask=inside)


@triton.jit
def norm(x, delta, weight, out, eps, H: tl.constexpr, H_PAD: tl.constexpr, ADD: tl.constexpr):
    """Grid (N). With ADD, ``x`` becomes ``x + delta`` first. ``out`` [N, H]: its RMS norm."""
    start = tl.program_id(0).to(tl.int64) * H
    column = tl.arange(0, H_PAD)
    inside = column < H
    row = tl.load(x + start + column, mask=inside, other=0.0)
    if ADD:
        row = _sum(row, tl.load(delta + start + column, mask=inside, other=0.0))
        tl.store(x + start + column, row, mask=inside)
    normed = _normed(row, tl.load(weight + column, mask=inside, other=0.0), eps, H)
    tl.store(out + start + column, normed, mask=inside)


@triton.jit
def last_norm(lengths, x, delta, weight, out, eps, T, H: tl.constexpr, H_PAD: tl.constexpr):
    """Grid (B). ``out`` [B, H]: norm of ``x + delta`` at each row's last valid token."""
    batch_row = tl.program_id(0)
    last = tl.minimum(tl.maximum(tl.load(lengths + batch_row) - 1, 0), T - 1)
    start = (batch_row * T + last).to(tl.int64) * H
    column = tl.arange(0, H_PAD)
    inside = column < H
    row = tl.load(x + start + column, mask=inside, other=0.0)
    row = _sum(row, tl.load(delta + start + column, mask=inside, other=0.0))
    normed = _normed(row, tl.load(weight + column, mask=inside, other=0.0), eps, H)
    tl.store(out + batch_row * H + column, normed, mask=inside)


@triton.jit
def gate(gate_up, out, W: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (N, W / BLOCK). ``out`` [N, W]: SiLU of ``gate_up``'s first half times its second."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < W
    opened = tl.load(gate_up + row * 2 * W + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * W + W + column, mask=inside, other=0.0).to(tl.float32)
    gated = opened * tl.sigmoid(opened) * up
    tl.store(out + row * W + column, gated.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _sum(row, delta):
    return (row.to(tl.float32) + delta.to(tl.float32)).to(row.dtype)


@triton.jit
def _normed(row, weight, eps, H: tl.constexpr):
    wide = row.to(tl.float32)
    normed = (wide * tl.rsqrt(tl.sum(wide * wide) / H + eps)).to(row.dtype)
    return (normed.to(tl.float32) * weight.to(tl.float32)).to(row.dtype)
