"""The rule of ``llama/sampling.py`` without a sort: the same token, by bisection and rejection.

Three kernels: ``greatest`` and ``race`` see a chunk of a row each, on the whole GPU; ``choose``
ends the row. The usual rows end there at once. A row with top-k finds its last kept rank by
bisection over the logits' bits, and a row with top-p proposes the winner of the race: if it is
within the nucleus it is the answer; if not, nothing that ranks below it is, and the winner among
those above it is proposed next. A proposal within the nucleus wins the nucleus's own race.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-(2**31))
BEYOND = tl.constexpr(2**31)


@triton.jit
def greatest(logits, maxima, ids, V, CHUNKS, BLOCK: tl.constexpr):
    """Grid (B, CHUNKS): each chunk's greatest logit and the lowest token id that has it."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = chunk * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits + row * V + token, mask=token < V, other=float("-inf")).to(tl.float32)
    maximum = tl.max(logit)
    tl.store(maxima + row * CHUNKS + chunk, maximum)
    tl.store(ids + row * CHUNKS + chunk, tl.min(tl.where(logit == maximum, token, V)))


@triton.jit
def race(
    logits, temperature, seed, positions, lengths, maxima, waits, weights, chunk_waits, chunk_ids,
    V, CHUNKS, CHUNKS_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (B, CHUNKS): weights [B, V], waiting times [B, V], and the first of each chunk."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heat = tl.load(temperature + row).to(tl.float64)
    if not (heat > 0):
        return
    chunks = tl.arange(0, CHUNKS_PAD)
    known = chunks < CHUNKS
    peak = tl.max(tl.load(maxima + row * CHUNKS + chunks, mask=known, other=float("-inf")))
    token = chunk * BLOCK + tl.arange(0, BLOCK)
    inside = token < V
    logit = tl.load(logits + row * V + token, mask=inside, other=float("-inf")).to(tl.float64)
    rate = tl.exp((logit - peak.to(tl.float64)) / heat)
    position = tl.load(positions + row) + tl.load(lengths + row)
    wait = -tl.log(_uniform(tl.load(seed + row), position, token)) / rate
    wait = tl.where(inside, wait, float("inf"))
    tl.store(weights + row * V + token, (rate * 1099511627776.0).to(tl.int64), mask=inside)
    tl.store(waits + row * V + token, wait, mask=inside)
    least = tl.min(wait)
    tl.store(chunk_waits + row * CHUNKS + chunk, least)
    tl.store(chunk_ids + row * CHUNKS + chunk, tl.min(tl.where(wait == least, token, V)))


@triton.jit
def choose(
    logits, temperature, top_k, top_p, maxima, max_ids, waits, weights, chunk_waits, chunk_ids,
    output, V, CHUNKS, CHUNKS_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (B). ``output`` int32 [B]: the token."""
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, CHUNKS_PAD)
    known = chunks < CHUNKS
    if not (tl.load(temperature + row) > 0):
        peaks = tl.load(maxima + row * CHUNKS + chunks, mask=known, other=float("-inf"))
        ids = tl.load(max_ids + row * CHUNKS + chunks, mask=known, other=V)
        tl.store(output + row, tl.min(tl.where(peaks == tl.max(peaks), ids, V)))
        return
    count, share = tl.load(top_k + row), tl.load(top_p + row).to(tl.float64)
    everything = (count <= 0) | (count >= V)
    if everything & (share >= 1):
        first = tl.load(chunk_waits + row * CHUNKS + chunks, mask=known, other=float("inf"))
        ids = tl.load(chunk_ids + row * CHUNKS + chunks, mask=known, other=V)
        tl.store(output + row, tl.min(tl.where(first == tl.min(first), ids, V)))
        return
    logits += row * V
    waits += row * V
    weights += row * V
    last_key, last_id = tl.full((), LOWEST, tl.int64), V
    if not everything:
        last_key, last_id = _last_kept(logits, count, V, BLOCK)
    lowest = tl.full((), LOWEST, tl.int64)
    total, token = _race_above(logits, waits, weights, last_key, last_id, lowest, V, V, BLOCK)
    if share < 1:
        limit = share * total.to(tl.float64)
        settled = False
        while not settled:
            key = _rank_key(tl.load(logits + token))
            heavier, rival = _race_above(
                logits, waits, weights, last_key, last_id, key, token, V, BLOCK
            )
            settled = (heavier == 0) | (heavier.to(tl.float64) < limit)
            token = tl.where(settled, token, rival)
    tl.store(output + row, token)


@triton.jit
def _uniform(seed, position, token):
    """float64 above 0 and below 1: 52 bits of Philox4x32-10."""
    zero = token * 0
    high, low, _, _ = tl.philox(seed, token, zero + position, zero, zero)
    bits = (high.to(tl.uint64) << 20) | (low.to(tl.uint64) >> 12)
    return (bits.to(tl.int64).to(tl.float64) + 0.5) * 2.220446049250313e-16


@triton.jit
def _rank_key(logit):
    """An int64 in the order of the logits as float32 (both zeros are equal)."""
    wide = logit.to(tl.float32)
    bits = tl.where(wide == 0, 0.0, wide).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _last_kept(logits, count, V, BLOCK: tl.constexpr):
    """Key and id of the last rank that top-k keeps: the count-th in rank."""
    low, high = tl.full((), LOWEST, tl.int64), tl.full((), BEYOND, tl.int64)
    while high - low > 1:  # at least `count` keys are >= low, fewer are >= high
        middle = (low + high) >> 1
        enough = _count(logits, middle, BEYOND, V, V, BLOCK)
        low, high = tl.where(enough >= count, middle, low), tl.where(enough >= count, high, middle)
    needed = count - _count(logits, high, BEYOND, V, V, BLOCK)
    last = V + 0
    if _count(logits, low, high, V, V, BLOCK) > needed:  # ties: the lowest ids
        first = -1
        while last - first > 1:  # enough of them are <= last, too few <= first
            middle = (first + last) >> 1
            enough = _count(logits, low, high, middle + 1, V, BLOCK)
            last, first = (
                tl.where(enough >= needed, middle, last),
                tl.where(enough >= needed, first, middle),
            )
    return low, last


@triton.jit
def _count(logits, low, high, end, V, BLOCK: tl.constexpr):
    """How many tokens of an id below ``end`` have a key from ``low`` up to, not including, high."""
    found = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, V, BLOCK):
        token = start + tl.arange(0, BLOCK)
        key = _rank_key(tl.load(logits + token, mask=token < V, other=0.0))
        found += ((token < end) & (token < V) & (key >= low) & (key < high)).to(tl.int32)
    return tl.sum(found)


@triton.jit
def _race_above(logits, waits, weights, last_key, last_id, key, own, V, BLOCK: tl.constexpr):
    """Weight, and first in the race, of the kept tokens that rank above (key, own)."""
    weight = tl.zeros((BLOCK,), tl.int64)
    least = tl.full((BLOCK,), float("inf"), tl.float64)
    ids = tl.zeros((BLOCK,), tl.int32) + V
    for start in range(0, V, BLOCK):
        token = start + tl.arange(0, BLOCK)
        inside = token < V
        mine = _rank_key(tl.load(logits + token, mask=inside, other=0.0))
        kept = (mine > last_key) | ((mine == last_key) & (token <= last_id))
        kept = kept & inside & ((mine > key) | ((mine == key) & (token < own)))
        weight += tl.load(weights + token, mask=kept, other=0)
        wait = tl.load(waits + token, mask=kept, other=float("inf"))
        ids = tl.where(wait < least, token, ids)
        least = tl.minimum(wait, least)
    return tl.sum(weight), tl.min(tl.where(least == tl.min(least), ids, V))
