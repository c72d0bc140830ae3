"""The rule of ``llama/sampling.py`` without a sort: the same token, by bisection and rejection.

``greatest`` and ``race`` see a chunk of a row each, on the whole GPU; ``choose`` ends the row. A
row without top-k and top-p ends there at once. With top-k the last kept rank is found by bisection
over the logits' bits. With top-p the winner of the race is proposed: if it is within the nucleus it
is the answer; if not, nothing that ranks below it is either, and the winner among those above it
is proposed next. A proposal within the nucleus has won the nucleus's own race.

Most of a vocabulary is never looked at again: ``greatest`` leaves the maximum of every group of
tokens. The k-th greatest of these is no greater than the k-th greatest logit, and what ranks above
a proposal is in groups whose maximum does: ``choose`` lists such groups, and scans these alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-(2**31))
BEYOND = tl.constexpr(2**31)
GROUP_TOKENS = 64
GROUP = tl.constexpr(GROUP_TOKENS)
SCANNED = tl.constexpr(64)
"""groups that a scan takes at a time"""


@triton.jit
def greatest(logits, maxima, ids, peaks, V, CHUNKS, BLOCK: tl.constexpr):
    """Grid (B, CHUNKS): each chunk's greatest logit and the lowest token id that has it.

    peaks float32 [B, CHUNKS * BLOCK / GROUP]: each group's greatest.
    """
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = chunk * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits + row * V + token, mask=token < V, other=float("-inf")).to(tl.float32)
    maximum = tl.max(logit)
    tl.store(maxima + row * CHUNKS + chunk, maximum)
    tl.store(ids + row * CHUNKS + chunk, tl.min(tl.where(logit == maximum, token, V)))
    groups: tl.constexpr = BLOCK // GROUP
    at = (row * CHUNKS + chunk) * groups + tl.arange(0, groups)
    tl.store(peaks + at, tl.max(logit.reshape(groups, GROUP), 1))


@triton.jit
def race(
    logits, temperature, seed, positions, lengths, maxima, waits, weights,
    chunk_waits, chunk_ids, chunk_weights, V, CHUNKS, CHUNKS_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid (B, CHUNKS). Weights and waiting times [B, V]; each chunk's first, and its weight."""
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
    weight = (rate * 1099511627776.0).to(tl.int64)
    tl.store(weights + row * V + token, weight, mask=inside)
    tl.store(waits + row * V + token, wait, mask=inside)
    least = tl.min(wait)
    tl.store(chunk_waits + row * CHUNKS + chunk, least)
    tl.store(chunk_ids + row * CHUNKS + chunk, tl.min(tl.where(wait == least, token, V)))
    tl.store(chunk_weights + row * CHUNKS + chunk, tl.sum(tl.where(inside, weight, 0)))


@triton.jit
def choose(
    logits, temperature, top_k, top_p, maxima, max_ids, peaks, waits, weights,
    chunk_waits, chunk_ids, chunk_weights, listed, output, V, CHUNKS, groups,
    CHUNKS_PAD: tl.constexpr, GROUPS_PAD: tl.constexpr,
):  # fmt: skip
    """Grid (B). ``output`` int32 [B]: the token. ``listed`` int32 [B, groups] is room for lists."""
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, CHUNKS_PAD)
    known = chunks < CHUNKS
    chunks += row * CHUNKS
    if not (tl.load(temperature + row) > 0):
        peak = tl.load(maxima + chunks, mask=known, other=float("-inf"))
        ids = tl.load(max_ids + chunks, mask=known, other=V)
        tl.store(output + row, tl.min(tl.where(peak == tl.max(peak), ids, V)))
        return
    count, share = tl.load(top_k + row), tl.load(top_p + row).to(tl.float64)
    everything = (count <= 0) | (count >= V)
    first = tl.load(chunk_waits + chunks, mask=known, other=float("inf"))
    ids = tl.load(chunk_ids + chunks, mask=known, other=V)
    token = tl.min(tl.where(first == tl.min(first), ids, V))
    if everything & (share >= 1):
        tl.store(output + row, token)
        return
    total = tl.sum(tl.load(chunk_weights + chunks, mask=known, other=0))
    group = tl.arange(0, GROUPS_PAD)
    peak = tl.load(peaks + row * groups + group, mask=group * GROUP < V, other=float("-inf"))
    group_keys = tl.where(group * GROUP < V, _rank_key(peak), LOWEST - 1)
    logits += row * V
    waits += row * V
    weights += row * V
    listed += row * groups
    last_key, last_id = tl.full((), LOWEST, tl.int64), V + 0
    if not everything:
        bound = _bound(group_keys, count)
        size = _list(listed, group_keys, bound)
        last_key, last_id = _last_kept(logits, listed, size, count, bound, V)
        lowest = tl.full((), LOWEST, tl.int64)
        total, token = _race_above(
            logits, waits, weights, listed, size, last_key, last_id, lowest, V + 0, V
        )
    if share < 1:
        limit = share * total.to(tl.float64)
        settled = False
        while not settled:
            key = _rank_key(tl.load(logits + token))
            size = _list(listed, group_keys, key)
            heavier, rival = _race_above(
                logits, waits, weights, listed, size, last_key, last_id, key, token, V
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
def _bound(group_keys, count):
    """The count-th greatest of the groups' keys; the lowest there is, if there are fewer groups."""
    low, high = tl.full((), LOWEST, tl.int64), tl.full((), BEYOND, tl.int64)
    while high - low > 1:  # at least `count` are >= low, or low is the lowest; fewer are >= high
        middle = (low + high) >> 1
        enough = tl.sum((group_keys >= middle).to(tl.int32)) >= count
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle)
    return low


@triton.jit
def _list(listed, group_keys, bound):
    """Write down the groups whose greatest is not below the bound; how many there are."""
    taken = (group_keys >= bound).to(tl.int32)
    tl.debug_barrier()  # everyone has read the last list
    tl.store(listed + tl.cumsum(taken) - 1, tl.arange(0, group_keys.shape[0]), mask=taken == 1)
    tl.debug_barrier()
    return tl.sum(taken)


@triton.jit
def _tokens(listed, start, size):
    """Ids of the tokens of SCANNED groups, [SCANNED, GROUP]; far beyond all where the list ends."""
    at = start + tl.arange(0, SCANNED)
    group = tl.load(listed + at, mask=at < size, other=2**24)
    return group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]


@triton.jit
def _last_kept(logits, listed, size, count, bound, V):
    """Key and id of the last rank that top-k keeps: the count-th in rank, at or above the bound."""
    low, high = bound, tl.full((), BEYOND, tl.int64)
    while high - low > 1:  # at least `count` keys are >= low, fewer are >= high
        middle = (low + high) >> 1
        enough = _count(logits, listed, size, middle, BEYOND, V, V) >= count
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle)
    needed = count - _count(logits, listed, size, high, BEYOND, V, V)
    last = V + 0
    if _count(logits, listed, size, low, high, V, V) > needed:  # ties: the lowest ids
        first = -1
        while last - first > 1:  # enough of them are <= last, too few <= first
            middle = (first + last) >> 1
            enough = _count(logits, listed, size, low, high, middle + 1, V) >= needed
            last, first = tl.where(enough, middle, last), tl.where(enough, first, middle)
    return low, last


@triton.jit
def _count(logits, listed, size, low, high, end, V):
    """How many listed tokens of an id below ``end`` have a key from ``low`` to just below high."""
    found = tl.zeros((SCANNED, GROUP), tl.int32)
    for start in range(0, size, SCANNED):
        token = _tokens(listed, start, size)
        key = _rank_key(tl.load(logits + token, mask=token < V, other=0.0))
        found += ((token < end) & (token < V) & (key >= low) & (key < high)).to(tl.int32)
    return tl.sum(found)


@triton.jit
def _race_above(logits, waits, weights, listed, size, last_key, last_id, key, own, V):
    """Weight, and first in the race, of the kept tokens that rank above (key, own)."""
    weight = tl.zeros((SCANNED, GROUP), tl.int64)
    least = tl.full((SCANNED, GROUP), float("inf"), tl.float64)
    ids = tl.zeros((SCANNED, GROUP), tl.int32) + V
    for start in range(0, size, SCANNED):  # ids rise, so of equal ones the lowest stays
        token = _tokens(listed, start, size)
        inside = token < V
        mine = _rank_key(tl.load(logits + token, mask=inside, other=0.0))
        kept = (mine > last_key) | ((mine == last_key) & (token <= last_id))
        kept = kept & inside & ((mine > key) | ((mine == key) & (token < own)))
        weight += tl.load(weights + token, mask=kept, other=0)
        wait = tl.load(waits + token, mask=kept, other=float("inf"))
        ids = tl.where(wait < least, token, ids)
        least = tl.minimum(wait, least)
    return tl.sum(weight), tl.min(tl.where(least == tl.min(least), ids, V))
