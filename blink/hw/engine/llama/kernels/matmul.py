"""Products with few rows, which cost what reading the matrix costs.

The matrix stands on the left, so that its rows fill the tensor cores' long side, and is read once;
the sum over its columns can be divided among programs, of which the last one adds up, in order.
A row's sum is taken in the same order whatever the number of rows.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def few_rows(
    x, matrix, bias, out, parts, arrived, M,
    N: tl.constexpr, K: tl.constexpr, M_PAD: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr, SPLITS: tl.constexpr, BIASED: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, SPLITS). ``out`` [M, N] = ``x`` [M, K] times the transposed ``matrix`` + bias.

    A tile is COLUMNS rows of the matrix. GATED: the matrix is [2 N, K], a tile half gate and half
    up, and ``out`` the SiLU of the gate times up.
    parts float32 [tiles, SPLITS, COLUMNS, M_PAD]; arrived int32 [tiles]: zero before and after.
    """
    tile, part = tl.program_id(0), tl.program_id(1)
    line = tl.arange(0, COLUMNS)
    column = tile * COLUMNS + line
    if GATED:
        half: tl.constexpr = COLUMNS // 2
        column = tile * half + line % half + (line // half) * N
    row = tl.arange(0, M_PAD)
    depth = part * (K // SPLITS) + tl.arange(0, DEPTH)
    left = matrix + column.to(tl.int64)[:, None] * K + depth[None, :]
    right = x + row[None, :] * K + depth[:, None]
    known = (row < M)[None, :]
    product = tl.zeros((COLUMNS, M_PAD), tl.float32)
    for start in range(0, K // SPLITS, DEPTH):
        weights = tl.load(left + start, eviction_policy="evict_first")
        product = tl.dot(weights, tl.load(right + start, mask=known, other=0.0), product)
    if SPLITS > 1:
        own = line[:, None] * M_PAD + row[None, :]
        first = parts + tile * SPLITS * COLUMNS * M_PAD
        tl.store(first + part * COLUMNS * M_PAD + own, product)
        tl.debug_barrier()  # all threads' stores, then one thread's release
        if tl.atomic_add(arrived + tile, 1, sem="acq_rel") != SPLITS - 1:
            return
        product = tl.zeros((COLUMNS, M_PAD), tl.float32)
        for each in tl.static_range(SPLITS):
            product += tl.load(first + each * COLUMNS * M_PAD + own, cache_modifier=".cg")
        tl.store(arrived + tile, 0)
    if BIASED:
        product += tl.load(bias + column).to(tl.float32)[:, None]
    if GATED:
        both = product.reshape(2, COLUMNS // 2, M_PAD).permute(1, 2, 0)
        opened, up = both.split()
        product = opened * tl.sigmoid(opened) * up
        column = tile * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    at = out + row[None, :] * N + column[:, None]
    tl.store(at, product.to(out.dtype.element_ty), mask=known)
