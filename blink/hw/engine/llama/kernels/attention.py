"""Attention: all of a decode step's between two matrix products in one kernel; a prompt's rope.

``qkv`` is [N, qkv_width]: a token's query heads, its key heads, its value heads. Heads are turned
by halves: element i and element i + D / 2 are a pair.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode(
    qkv, q_norm, k_norm, rope, keys, values, tables, positions, lengths, out,
    parts, maxima, sums, arrived, eps, scale, table_width, last_angle,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, D: tl.constexpr,
    HALF_PAD: tl.constexpr, D_PAD: tl.constexpr, BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr, NORMED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (B, KV_HEADS, SPLITS): a row's query heads of one key head, over a part of its blocks.

    Norms and turns the queries and the new key, writes the new key and value to their block (part
    0, which also begins with them: no other part reads them), attends, and the part that comes
    last adds all up. A row is divided into as few parts as its context can keep busy.

    parts float32 [B, KV_HEADS, SPLITS, GROUP, D], maxima and sums [.., GROUP]: what parts leave;
    arrived int32 [B, KV_HEADS]: zero before and after.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    part = tl.program_id(2)
    group = tl.arange(0, GROUP_PAD)
    wide = tl.arange(0, D_PAD)
    out_at = ((row * KV_HEADS + head) * GROUP + group)[:, None] * D + wide[None, :]
    out_inside = (group < GROUP)[:, None] & (wide < D)[None, :]
    if tl.load(lengths + row) == 0:
        if part == 0:
            tl.store(out + out_at, tl.zeros_like(out_at).to(out.dtype.element_ty), mask=out_inside)
        return
    position = tl.load(positions + row)
    tiles = tl.cdiv(position, TILE)
    tiles_a_part = tl.maximum(tl.cdiv(tiles, SPLITS), 1)
    active = tl.maximum(tl.cdiv(tiles, tiles_a_part), 1)
    if part >= active:
        return

    half = tl.arange(0, HALF_PAD)
    half_inside = half < D // 2
    token = qkv + row * (GROUP + 2) * KV_HEADS * D
    angle = rope + tl.minimum(position, last_angle) * D + half
    cos = tl.load(angle, mask=half_inside, other=0.0)
    sin = tl.load(angle + D // 2, mask=half_inside, other=0.0)
    q_at = token + (head * GROUP + group)[:, None] * D + half[None, :]
    q_inside = (group < GROUP)[:, None] & half_inside[None, :]
    q_low, q_high = _turned(
        q_at, q_inside, q_norm + half[None, :], half_inside[None, :], cos[None, :], sin[None, :],
        eps, D, NORMED,
    )  # fmt: skip
    k_at = token + (GROUP * KV_HEADS + head) * D + half[None, :]
    k_low, k_high = _turned(
        k_at, half_inside[None, :], k_norm + half[None, :], half_inside[None, :], cos[None, :],
        sin[None, :], eps, D, NORMED,
    )  # fmt: skip
    v = tl.load(token + ((GROUP + 1) * KV_HEADS + head) * D + wide, mask=wide < D, other=0.0)

    table = tables + row * table_width
    if part == 0:
        block = tl.load(table + position // BLOCK_TOKENS).to(tl.int64)
        new = ((block * KV_HEADS + head) * BLOCK_TOKENS + position % BLOCK_TOKENS) * D
        tl.store(keys + new + half[None, :], k_low, mask=half_inside[None, :])
        tl.store(keys + new + D // 2 + half[None, :], k_high, mask=half_inside[None, :])
        tl.store(values + new + wide, v, mask=wide < D)
    score = tl.sum(q_low.to(tl.float32) * k_low.to(tl.float32), 1)
    score = (score + tl.sum(q_high.to(tl.float32) * k_high.to(tl.float32), 1)) * scale
    greatest = tl.where(part == 0, score, float("-inf"))
    total = tl.where(part == 0, 1.0, tl.zeros_like(score))
    mixed = tl.where(part == 0, v.to(tl.float32), tl.zeros_like(v).to(tl.float32))[None, :]
    mixed = tl.broadcast_to(mixed, (GROUP_PAD, D_PAD))

    begin = part * tiles_a_part * TILE
    end = tl.minimum(begin + tiles_a_part * TILE, position)
    for start in range(begin, end, TILE):
        old = start + tl.arange(0, TILE)
        held = old < end
        block = tl.load(table + old // BLOCK_TOKENS, mask=held, other=0).to(tl.int64)
        at = ((block * KV_HEADS + head) * BLOCK_TOKENS + old % BLOCK_TOKENS) * D
        inside = held[:, None] & half_inside[None, :]
        low = tl.load(keys + at[:, None] + half[None, :], mask=inside, other=0.0)
        high = tl.load(keys + at[:, None] + D // 2 + half[None, :], mask=inside, other=0.0)
        scores = tl.dot(q_low, tl.trans(low), input_precision=PRECISION)
        scores = tl.dot(q_high, tl.trans(high), scores, input_precision=PRECISION)
        scores = tl.where(held[None, :], scores * scale, float("-inf"))
        greater = tl.maximum(greatest, tl.max(scores, 1))
        shrink = tl.exp(greatest - greater)
        shares = tl.exp(scores - greater[:, None])
        inside = held[:, None] & (wide < D)[None, :]
        value = tl.load(values + at[:, None] + wide[None, :], mask=inside, other=0.0)
        mixed = mixed * shrink[:, None]
        mixed = tl.dot(shares.to(value.dtype), value, mixed, input_precision=PRECISION)
        total = total * shrink + tl.sum(shares, 1)
        greatest = greater

    if active > 1:
        first = (row * KV_HEADS + head) * SPLITS
        _leave(parts, maxima, sums, mixed, greatest, total, first + part, GROUP, D, group, wide)
        tl.debug_barrier()  # all threads' stores, then one thread's release
        if tl.atomic_add(arrived + row * KV_HEADS + head, 1, sem="acq_rel") < active - 1:
            return
        mixed, total = _gathered(parts, maxima, sums, first, active, GROUP, D, group, wide)
        tl.store(arrived + row * KV_HEADS + head, 0)
    tl.store(out + out_at, (mixed / total[:, None]).to(out.dtype.element_ty), mask=out_inside)


@triton.jit
def prompt_rope(
    qkv, q_norm, k_norm, rope, keys, values, tables, positions, lengths,
    eps, T, table_width, last_angle,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, D: tl.constexpr,
    HALF_PAD: tl.constexpr, D_PAD: tl.constexpr, BLOCK_TOKENS: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """Grid (N, KV_HEADS). Norms and turns queries and keys in place; keys, values to the blocks.

    What lies beyond a row's length is turned too (attention wants numbers there), and written
    nowhere.
    """
    place = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row, step = place // T, place % T
    length = tl.load(lengths + row)
    position = tl.where(length > 0, tl.load(positions + row), 0) + step.to(tl.int32)
    half = tl.arange(0, HALF_PAD)
    half_inside = half < D // 2
    angle = rope + tl.minimum(position, last_angle) * D + half
    cos = tl.load(angle, mask=half_inside, other=0.0)
    sin = tl.load(angle + D // 2, mask=half_inside, other=0.0)
    token = qkv + place * (GROUP + 2) * KV_HEADS * D
    group = tl.arange(0, GROUP_PAD)
    q_at = token + (head * GROUP + group)[:, None] * D + half[None, :]
    q_inside = (group < GROUP)[:, None] & half_inside[None, :]
    low, high = _turned(
        q_at, q_inside, q_norm + half[None, :], half_inside[None, :], cos[None, :], sin[None, :],
        eps, D, NORMED,
    )  # fmt: skip
    tl.store(q_at, low, mask=q_inside)
    tl.store(q_at + D // 2, high, mask=q_inside)
    k_at = token + (GROUP * KV_HEADS + head) * D + half[None, :]
    inside = half_inside[None, :]
    low, high = _turned(
        k_at, inside, k_norm + half[None, :], inside, cos[None, :], sin[None, :], eps, D, NORMED
    )
    tl.store(k_at, low, mask=inside)
    tl.store(k_at + D // 2, high, mask=inside)
    if step < length:
        wide = tl.arange(0, D_PAD)
        v = tl.load(token + ((GROUP + 1) * KV_HEADS + head) * D + wide, mask=wide < D, other=0.0)
        block = tl.load(tables + row * table_width + position // BLOCK_TOKENS).to(tl.int64)
        new = ((block * KV_HEADS + head) * BLOCK_TOKENS + position % BLOCK_TOKENS) * D
        tl.store(keys + new + half[None, :], low, mask=inside)
        tl.store(keys + new + D // 2 + half[None, :], high, mask=inside)
        tl.store(values + new + wide, v, mask=wide < D)


@triton.jit
def _turned(
    at, inside, weight, weight_inside, cos, sin, eps, D: tl.constexpr, NORMED: tl.constexpr
):
    """Both halves of heads [rows, D / 2], normed if the model norms them, turned by the angles."""
    kind = at.dtype.element_ty
    low = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(at + D // 2, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        squares = tl.sum(low * low, 1) + tl.sum(high * high, 1)
        shrink = tl.rsqrt(squares / D + eps)[:, None]
        low_weight = tl.load(weight, mask=weight_inside, other=0.0).to(tl.float32)
        high_weight = tl.load(weight + D // 2, mask=weight_inside, other=0.0).to(tl.float32)
        low = ((low * shrink).to(kind).to(tl.float32) * low_weight).to(kind).to(tl.float32)
        high = ((high * shrink).to(kind).to(tl.float32) * high_weight).to(kind).to(tl.float32)
    return (low * cos - high * sin).to(kind), (high * cos + low * sin).to(kind)


@triton.jit
def _leave(
    parts, maxima, sums, mixed, greatest, total, slot, GROUP: tl.constexpr, D: tl.constexpr, group, wide
):
    """A part's unfinished softmax, for the part that comes last."""
    inside = (group < GROUP)[:, None] & (wide < D)[None, :]
    at = (slot * GROUP + group)[:, None] * D + wide[None, :]
    tl.store(parts + at, mixed, mask=inside)
    tl.store(maxima + slot * GROUP + group, greatest, mask=group < GROUP)
    tl.store(sums + slot * GROUP + group, total, mask=group < GROUP)


@triton.jit
def _gathered(parts, maxima, sums, first, active, GROUP: tl.constexpr, D: tl.constexpr, group, wide):
    """All parts together. Part 0 has a score, so the maximum is a number from the first step on.

    Loads pass by the first-level cache (.cg), which other multiprocessors' stores do not reach.
    """
    known = group < GROUP
    inside = known[:, None] & (wide < D)[None, :]
    greatest = tl.full(group.shape, float("-inf"), tl.float32)
    total = tl.zeros(group.shape, tl.float32)
    mixed = tl.zeros((group.shape[0], wide.shape[0]), tl.float32)
    for slot in range(first, first + active):
        maximum = tl.load(maxima + slot * GROUP + group, mask=known, other=0.0, cache_modifier=".cg")
        greater = tl.maximum(greatest, maximum)
        shrink, share = tl.exp(greatest - greater), tl.exp(maximum - greater)
        at = (slot * GROUP + group)[:, None] * D + wide[None, :]
        part = tl.load(parts + at, mask=inside, other=0.0, cache_modifier=".cg")
        mixed = mixed * shrink[:, None] + part * share[:, None]
        add = tl.load(sums + slot * GROUP + group, mask=known, other=1.0, cache_modifier=".cg")
        total = total * shrink + add * share
        greatest = greater
    return mixed, total
