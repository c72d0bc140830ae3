"""A mixture of experts with static shapes: pairs of token and expert, in tiles of one expert.

Pair p is token ``p // CHOSEN``'s choice number ``p % CHOSEN``. A slot is a place in the sorted
order; each expert's pairs fill whole tiles of TILE slots, the rest of its last tile holds -1. How
many tiles there can be follows from the shape alone; those that are not needed name expert -1.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def route(
    logits, weights, chosen, E: tl.constexpr, E_PAD: tl.constexpr, CHOSEN: tl.constexpr,
    NORMALISED: tl.constexpr,
):  # fmt: skip
    """Grid (N). float32 weights and int32 experts, both [N, CHOSEN]; the lowest number at ties."""
    token = tl.program_id(0)
    expert = tl.arange(0, E_PAD)
    logit = tl.load(logits + token * E + expert, mask=expert < E, other=float("-inf"))
    shares = tl.exp(logit.to(tl.float32) - tl.max(logit.to(tl.float32)))
    shares = shares / tl.sum(shares)
    left = tl.where(expert < E, shares, -1.0)
    all_chosen = 0.0
    for place in tl.static_range(CHOSEN):
        share = tl.max(left)
        best = tl.min(tl.where(left == share, expert, E_PAD))
        left = tl.where(expert == best, -1.0, left)
        all_chosen += share
        tl.store(weights + token * CHOSEN + place, share)
        tl.store(chosen + token * CHOSEN + place, best)
    if NORMALISED:
        tl.debug_barrier()
        for place in tl.static_range(CHOSEN):
            at = weights + token * CHOSEN + place
            tl.store(at, tl.load(at) / all_chosen)


@triton.jit
def count(chosen, counts, pairs, BLOCK: tl.constexpr):
    """Grid (E). How many pairs have chosen each expert."""
    expert = tl.program_id(0)
    found = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        found += (tl.load(chosen + pair, mask=pair < pairs, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(found))


@triton.jit
def place(
    chosen, counts, tile_experts, slots, pairs, tiles_max,
    E: tl.constexpr, E_PAD: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (E). ``tile_experts`` [tiles_max], ``slots`` [tiles_max * TILE]; both written whole."""
    expert = tl.program_id(0)
    experts = tl.arange(0, E_PAD)
    tiles = tl.cdiv(tl.load(counts + experts, mask=experts < E, other=0), TILE)
    before = tl.sum(tl.where(experts < expert, tiles, 0))
    mine = tl.sum(tl.where(experts == expert, tiles, 0))
    for tile in range(before, before + mine):
        tl.store(tile_experts + tile, expert)
    if expert == E - 1:
        for tile in range(before + mine, tiles_max):
            tl.store(tile_experts + tile, -1)
    filled = before * TILE
    for start in range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        own = (tl.load(chosen + pair, mask=pair < pairs, other=-1) == expert).to(tl.int32)
        tl.store(slots + filled + tl.cumsum(own) - 1, pair, mask=own == 1)
        filled += tl.sum(own)
    rest = filled + tl.arange(0, TILE)
    tl.store(slots + rest, tl.full((TILE,), -1, tl.int32), mask=rest < (before + mine) * TILE)


@triton.jit
def gated(
    x, gate_up, tile_experts, slots, out,
    H: tl.constexpr, W: tl.constexpr, CHOSEN: tl.constexpr, TILE: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (tiles_max, W / COLUMNS). ``out`` [slots, W]: each pair's SiLU of the gate times up."""
    tile = tl.program_id(0)
    expert = tl.load(tile_experts + tile).to(tl.int64)
    if expert < 0:
        return
    slot = tile * TILE + tl.arange(0, TILE)
    pair = tl.load(slots + slot)
    known = pair >= 0
    token = (tl.where(known, pair, 0) // CHOSEN).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    opened = tl.zeros((TILE, COLUMNS), tl.float32)
    up = tl.zeros((TILE, COLUMNS), tl.float32)
    matrix = gate_up + expert * 2 * W * H + column[None, :] * H
    for start in range(0, H, DEPTH):
        at = start + depth
        inside = known[:, None] & (at < H)[None, :]
        rows = tl.load(x + token[:, None] * H + at[None, :], mask=inside, other=0.0)
        inside = (at < H)[:, None] & (column < W)[None, :]
        low = tl.load(matrix + at[:, None], mask=inside, other=0.0)
        high = tl.load(matrix + W * H + at[:, None], mask=inside, other=0.0)
        opened = tl.dot(rows, low, opened, input_precision=PRECISION)
        up = tl.dot(rows, high, up, input_precision=PRECISION)
    mixed = (opened * tl.sigmoid(opened) * up).to(out.dtype.element_ty)
    at = slot.to(tl.int64)[:, None] * W + column[None, :]
    tl.store(out + at, mixed, mask=(column < W)[None, :])


@triton.jit
def down(
    hidden, matrices, weights, tile_experts, slots, out,
    H: tl.constexpr, W: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (tiles_max, H / COLUMNS). ``out`` [pairs, H]: each pair's result times its weight."""
    tile = tl.program_id(0)
    expert = tl.load(tile_experts + tile).to(tl.int64)
    if expert < 0:
        return
    slot = tile * TILE + tl.arange(0, TILE)
    pair = tl.load(slots + slot)
    known = pair >= 0
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    result = tl.zeros((TILE, COLUMNS), tl.float32)
    matrix = matrices + expert * H * W + column[None, :] * W
    for start in range(0, W, DEPTH):
        at = start + depth
        inside = known[:, None] & (at < W)[None, :]
        rows = tl.load(
            hidden + slot.to(tl.int64)[:, None] * W + at[None, :], mask=inside, other=0.0
        )
        inside = (at < W)[:, None] & (column < H)[None, :]
        result = tl.dot(
            rows, tl.load(matrix + at[:, None], mask=inside, other=0.0), result,
            input_precision=PRECISION,
        )  # fmt: skip
    share = tl.load(weights + pair, mask=known, other=0.0)
    result = (result * share[:, None]).to(out.dtype.element_ty)
    at = tl.where(known, pair, 0).to(tl.int64)[:, None] * H + column[None, :]
    tl.store(out + at, result, mask=known[:, None] & (column < H)[None, :])


@triton.jit
def together(parts, out, H: tl.constexpr, CHOSEN: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (N, H / BLOCK). ``out`` [N, H]: the sum over a token's pairs, in the order chosen."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < H
    total = tl.zeros((BLOCK,), tl.float32)
    for number in tl.static_range(CHOSEN):
        at = parts + (token * CHOSEN + number) * H + column
        total += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * H + column, total.to(out.dtype.element_ty), mask=inside)
