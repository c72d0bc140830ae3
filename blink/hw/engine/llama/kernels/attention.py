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
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr,
    GROUP_TRUE_PAD: tl.constexpr, D: tl.constexpr, HALF_PAD: tl.constexpr, D_PAD: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, NORMED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (B, KV_HEADS, SPLITS): a row's query heads of one key head, over a part of its blocks.

    Norms and turns the queries and the new key, attends, writes the new key and value to their
    block (part 0, which has them without reading it), and the part that comes last adds all up.
    A row is divided into as many parts as its context has tiles for.

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
    half = tl.arange(0, HALF_PAD)
    half_inside = half < D // 2
    token = qkv + row * (GROUP + 2) * KV_HEADS * D
    # Loads that wait for nothing come first: the kernel is a chain of latencies.
    length, position = tl.load(lengths + row), tl.load(positions + row)
    q_at = token + (head * GROUP + group)[:, None] * D + half[None, :]
    q_inside = (group < GROUP)[:, None] & half_inside[None, :]
    q_low, q_high = _halves(q_at, q_inside, D)
    k_at = token + (GROUP * KV_HEADS + head) * D + half[None, :]
    k_low, k_high = _halves(k_at, half_inside[None, :], D)
    v = tl.load(token + ((GROUP + 1) * KV_HEADS + head) * D + wide, mask=wide < D, other=0.0)
    if length == 0:
        if part == 0:
            tl.store(out + out_at, tl.zeros_like(out_at).to(out.dtype.element_ty), mask=out_inside)
        return
    tiles = tl.cdiv(position, TILE)
    tiles_a_part = tl.maximum(tl.cdiv(tiles, SPLITS), 1)
    active = tl.maximum(tl.cdiv(tiles, tiles_a_part), 1)
    if part >= active:
        return

    angle = rope + tl.minimum(position, last_angle) * D + half
    cos = tl.load(angle, mask=half_inside, other=0.0)[None, :]
    sin = tl.load(angle + D // 2, mask=half_inside, other=0.0)[None, :]
    if NORMED:
        q_low, q_high = _normed(q_low, q_high, q_norm + half, half_inside, eps, D)
        k_low, k_high = _normed(k_low, k_high, k_norm + half, half_inside, eps, D)
    q_low, q_high = _turned(q_low, q_high, cos, sin)
    k_low, k_high = _turned(k_low, k_high, cos, sin)

    begin = part * tiles_a_part * TILE
    end = tl.minimum(begin + tiles_a_part * TILE, position)
    mixed, greatest, total = _begun(q_low, q_high, k_low, k_high, v, part == 0, scale)
    mixed, greatest, total = _over_blocks(
        q_low, q_high, keys, values, tables + row * table_width, head, begin, end, scale,
        mixed, greatest, total, KV_HEADS, D, BLOCK_TOKENS, TILE, PRECISION,
    )  # fmt: skip
    if part == 0:  # nobody reads them in this step, so the writing need not come first
        _keep(keys, values, tables + row * table_width, position, head, k_low, k_high, v,
              KV_HEADS, D, BLOCK_TOKENS)  # fmt: skip
    if active > 1:
        _join(parts, maxima, sums, arrived, out, mixed, greatest, total, row * KV_HEADS + head,
              part, active, GROUP, GROUP_TRUE_PAD, D, SPLITS)  # fmt: skip
    else:
        finished = (mixed / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + out_at, finished, mask=out_inside)


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
    cos, sin = cos[None, :], sin[None, :]
    token = qkv + place * (GROUP + 2) * KV_HEADS * D
    group = tl.arange(0, GROUP_PAD)
    q_at = token + (head * GROUP + group)[:, None] * D + half[None, :]
    q_inside = (group < GROUP)[:, None] & half_inside[None, :]
    low, high = _halves(q_at, q_inside, D)
    if NORMED:
        low, high = _normed(low, high, q_norm + half, half_inside, eps, D)
    low, high = _turned(low, high, cos, sin)
    tl.store(q_at, low, mask=q_inside)
    tl.store(q_at + D // 2, high, mask=q_inside)
    k_at = token + (GROUP * KV_HEADS + head) * D + half[None, :]
    inside = half_inside[None, :]
    low, high = _halves(k_at, inside, D)
    if NORMED:
        low, high = _normed(low, high, k_norm + half, half_inside, eps, D)
    low, high = _turned(low, high, cos, sin)
    tl.store(k_at, low, mask=inside)
    tl.store(k_at + D // 2, high, mask=inside)
    if step < length:
        wide = tl.arange(0, D_PAD)
        v = tl.load(token + ((GROUP + 1) * KV_HEADS + head) * D + wide, mask=wide < D, other=0.0)
        _keep(keys, values, tables + row * table_width, position, head, low, high, v,
              KV_HEADS, D, BLOCK_TOKENS)  # fmt: skip


@triton.jit
def _keep(
    keys, values, table, position, head, low, high, v,
    KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
):  # fmt: skip
    """Write a token's key (its halves, [1, D / 2]) and value to its place in its block."""
    half, wide = tl.arange(0, low.shape[1])[None, :], tl.arange(0, v.shape[0])
    block = tl.load(table + position // BLOCK_TOKENS).to(tl.int64)
    new = ((block * KV_HEADS + head) * BLOCK_TOKENS + position % BLOCK_TOKENS) * D
    tl.store(keys + new + half, low, mask=half < D // 2)
    tl.store(keys + new + D // 2 + half, high, mask=half < D // 2)
    tl.store(values + new + wide, v, mask=wide < D)


@triton.jit
def _halves(at, inside, D: tl.constexpr):
    """Both halves of heads, [rows, D / 2] each."""
    low = tl.load(at, mask=inside, other=0.0)
    return low, tl.load(at + D // 2, mask=inside, other=0.0)


@triton.jit
def _normed(low, high, weight, inside, eps, D: tl.constexpr):
    """RMS norm of heads, rounded as the plain functions round."""
    kind = low.dtype
    low, high = low.to(tl.float32), high.to(tl.float32)
    squares = tl.sum(low * low, 1) + tl.sum(high * high, 1)
    shrink = tl.rsqrt(squares / D + eps)[:, None]
    low_weight = tl.load(weight, mask=inside, other=0.0).to(tl.float32)[None, :]
    high_weight = tl.load(weight + D // 2, mask=inside, other=0.0).to(tl.float32)[None, :]
    low = (low * shrink).to(kind).to(tl.float32) * low_weight
    high = (high * shrink).to(kind).to(tl.float32) * high_weight
    return low.to(kind), high.to(kind)


@triton.jit
def _turned(low, high, cos, sin):
    """Heads by the angles of their position."""
    kind = low.dtype
    low, high = low.to(tl.float32), high.to(tl.float32)
    return (low * cos - high * sin).to(kind), (high * cos + low * sin).to(kind)


@triton.jit
def _begun(q_low, q_high, k_low, k_high, v, taken, scale):
    """An online softmax that holds the new token, if it is taken, or nothing."""
    score = tl.sum(q_low.to(tl.float32) * k_low.to(tl.float32), 1)
    score = (score + tl.sum(q_high.to(tl.float32) * k_high.to(tl.float32), 1)) * scale
    mixed = tl.where(taken, v.to(tl.float32), 0.0)[None, :]
    mixed = tl.broadcast_to(mixed, (q_low.shape[0], v.shape[0]))
    total = tl.where(taken, 1.0, tl.zeros_like(score))
    return mixed, tl.where(taken, score, float("-inf")), total


@triton.jit
def _over_blocks(
    q_low, q_high, keys, values, table, head, begin, end, scale, mixed, greatest, total,
    KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The online softmax over the tokens from ``begin`` to ``end``, found through the table."""
    half, wide = tl.arange(0, q_low.shape[1]), tl.arange(0, mixed.shape[1])
    for start in range(begin, end, TILE):
        old = start + tl.arange(0, TILE)
        held = old < end
        block = tl.load(table + old // BLOCK_TOKENS, mask=held, other=0).to(tl.int64)
        at = ((block * KV_HEADS + head) * BLOCK_TOKENS + old % BLOCK_TOKENS) * D
        inside = held[:, None] & (half < D // 2)[None, :]
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
    return mixed, greatest, total


@triton.jit
def _join(
    parts, maxima, sums, arrived, out, mixed, greatest, total, pair, part, active,
    GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Leave this part's unfinished softmax; the last part to do so finishes it.

    ``pair`` is a row with a key head. Nobody waits for anybody.
    """
    group, wide = tl.arange(0, mixed.shape[0]), tl.arange(0, mixed.shape[1])
    slot = pair * SPLITS + part
    at = (slot * GROUP + group)[:, None] * D + wide[None, :]
    tl.store(parts + at, mixed, mask=(group < GROUP)[:, None] & (wide < D)[None, :])
    tl.store(maxima + slot * GROUP + group, greatest, mask=group < GROUP)
    tl.store(sums + slot * GROUP + group, total, mask=group < GROUP)
    tl.debug_barrier()  # all threads' stores, then one thread's release
    if tl.atomic_add(arrived + pair, 1, sem="acq_rel") == active - 1:
        _finish(parts, maxima, sums, out, pair, active, GROUP, GROUP_PAD, D, mixed.shape[1], SPLITS)
        tl.store(arrived + pair, 0)


@triton.jit
def _finish(
    parts, maxima, sums, out, pair, active,
    GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """All parts together, loaded at once: one after the other they would cost a latency each.

    Part 0 has a score, so the maximum is a number. Loads pass by the first-level cache (.cg), which
    other multiprocessors' stores do not reach.
    """
    slot, group, wide = tl.arange(0, SPLITS), tl.arange(0, GROUP_PAD), tl.arange(0, D_PAD)
    at = (pair * SPLITS + slot)[:, None] * GROUP + group[None, :]
    known = (slot < active)[:, None] & (group < GROUP)[None, :]
    maximum = tl.load(maxima + at, mask=known, other=float("-inf"), cache_modifier=".cg")
    total = tl.load(sums + at, mask=known, other=0.0, cache_modifier=".cg")
    inside = known[:, :, None] & (wide < D)[None, None, :]
    at = at[:, :, None] * D + wide[None, None, :]
    mixed = tl.load(parts + at, mask=inside, other=0.0, cache_modifier=".cg")
    greatest = tl.max(maximum, 0)
    greatest = tl.where(group < GROUP, greatest, 0.0)
    share = tl.exp(maximum - greatest[None, :])
    total = tl.where(group < GROUP, tl.sum(total * share, 0), 1.0)
    mixed = tl.sum(mixed * share[:, :, None], 0) / total[:, None]
    at = (pair * GROUP + group)[:, None] * D + wide[None, :]
    inside = (group < GROUP)[:, None] & (wide < D)[None, :]
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=inside)
