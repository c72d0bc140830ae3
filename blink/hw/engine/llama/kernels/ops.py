"""Launching the kernels: grids, tile sizes, and the room that they need.

Room that lives only within a step comes from torch's allocator, and so, in a capture, from the
graphs' pool. What must be zero between steps is allocated once.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention
from triton import cdiv, next_power_of_2

from blink.hw.engine.llama.config import Experts
from blink.hw.engine.llama.kernels import attention, matmul, rows, sampling
from blink.hw.engine.llama.kernels import experts as expert_kernels
from blink.hw.engine.llama.ops import Batch, Cache, Heads
from blink.hw.engine.llama.weights import Layer

WORK: Final = ((32, 32, 512), (256, 128, 256), (1 << 31, 64, 512))
"""Decode attention: up to so many pairs of a row and a key head, the tokens that a program takes at
a time, and the programs wanted. Measured on an H200 (8 key heads of 128, fp16): of 63 settings the
best, or within 2 % of it, for batch 1, 16 and 64 at context 512, and for batch 16 at 4096."""
TILE_BYTES_MAX: Final = 32 * 1024
"""of keys; with the values, and with what is being fetched, four times that is on the chip"""
SPLITS_MAX: Final = 32
PROGRAMS_MIN: Final = 128
"""programs that a product is divided into at least: an H200 has 132 multiprocessors"""
MATRIX_ROWS, MATRIX_DEPTH = 64, 128
"""tile of a matrix; three or four of them in flight hide the memory's latency (measured)"""
FEW_ROWS, SEVERAL_ROWS, LARGE_MATRIX = 32, 64, 50_000_000
COLUMNS: Final = 1024
CHUNK: Final = 2048
"""tokens of the vocabulary that one sampling program sees"""
NARROWEST: Final = 16
"""rows of the smallest matrix that the tensor cores take"""


class TritonOps:
    """See ops.Ops."""

    name = "triton"

    def __init__(self, device: torch.device, work: tuple[tuple[int, int, int], ...] = WORK) -> None:
        """``work``: see WORK; tests divide small contexts with it."""
        self._device = device
        self._work = work
        self._arrived: dict[int, torch.Tensor] = {}

    def embed(self, batch: Batch, embedding: torch.Tensor) -> torch.Tensor:
        """See Ops."""
        (vocab, hidden), tokens = embedding.shape, batch.tokens
        x = self._room(tokens.numel(), hidden, like=embedding)
        grid = (tokens.numel(), cdiv(hidden, COLUMNS))
        rows.embed[grid](
            tokens, batch.lengths, embedding, x, tokens.shape[1], vocab, H=hidden, BLOCK=COLUMNS
        )
        return x

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See Ops."""
        return self._norm(x, None, weight, eps)

    def add_norm(
        self, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See Ops."""
        return self._norm(x, delta, weight, eps)

    def last_norm(
        self, batch: Batch, x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See Ops."""
        count, tokens = batch.tokens.shape
        hidden = x.shape[1]
        out = self._room(count, hidden, like=x)
        pad = next_power_of_2(hidden)
        rows.last_norm[(count,)](
            batch.lengths, x, delta, weight, out, eps, tokens, H=hidden, H_PAD=pad, num_warps=8
        )
        return out

    def attend(
        self, batch: Batch, qkv: torch.Tensor, layer: Layer, cache: Cache, heads: Heads
    ) -> torch.Tensor:
        """See Ops."""
        if batch.tokens.shape[1] == 1:
            return self._decode(batch, qkv, layer, cache, heads)
        return self._prompt(batch, qkv, layer, cache, heads)

    def linear(
        self, x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See Ops."""
        if not _is_read_bound(x, matrix):
            return linear(x, matrix, bias)
        return self._few_rows(x, matrix, bias, len(matrix))

    def gated(self, x: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        """See Ops."""
        count, width = len(x), len(gate_up) // 2
        if _is_read_bound(x, gate_up):
            return self._few_rows(x, gate_up, None, width)
        out = self._room(count, width, like=x)
        grid = (count, cdiv(width, COLUMNS))
        rows.gate[grid](linear(x, gate_up), out, W=width, BLOCK=COLUMNS)
        return out

    def mix(
        self, x: torch.Tensor, router_logits: torch.Tensor, layer: Layer, experts: Experts
    ) -> torch.Tensor:
        """See Ops."""
        count, hidden = x.shape
        width, chosen = experts.width, experts.chosen
        pairs = count * chosen
        tile = NARROWEST if pairs <= NARROWEST * experts.count else 64
        tiles = min(pairs, experts.count) + pairs // tile  # each expert's last one may be part full
        weights, tile_experts, slots = self._route(router_logits, experts, pairs, tile, tiles)
        middle = self._room(tiles * tile, width, like=x)
        parts = self._room(pairs, hidden, like=x)
        shape = {"H": hidden, "W": width, "TILE": tile, "PRECISION": _precision(x)}
        shape |= {"COLUMNS": 64, "DEPTH": 64, "num_stages": 4}
        expert_kernels.gated[(tiles, cdiv(width, 64))](
            x, layer.gate_up, tile_experts, slots, middle, CHOSEN=chosen, **shape
        )
        expert_kernels.down[(tiles, cdiv(hidden, 64))](
            middle, layer.down, weights, tile_experts, slots, parts, **shape
        )
        out = self._room(count, hidden, like=x)
        grid = (count, cdiv(hidden, COLUMNS))
        expert_kernels.together[grid](parts, out, H=hidden, CHOSEN=chosen, BLOCK=COLUMNS)
        return out

    def sample(self, batch: Batch, logits: torch.Tensor) -> None:
        """See Ops."""
        count, vocab = logits.shape
        chunks = cdiv(vocab, CHUNK)
        groups = chunks * CHUNK // sampling.GROUP_TOKENS
        maxima, peaks = self._room(count, chunks), self._room(count, groups)
        max_ids, chunk_ids = (self._room(count, chunks, dtype="int32") for _ in range(2))
        chunk_waits = self._room(count, chunks, dtype="float64")
        chunk_weights = self._room(count, chunks, dtype="int64")
        waits = self._room(count, vocab, dtype="float64")
        weights = self._room(count, vocab, dtype="int64")
        pad = next_power_of_2(chunks)
        sampling.greatest[(count, chunks)](
            logits, maxima, max_ids, peaks, vocab, chunks, BLOCK=CHUNK, num_warps=8
        )
        sampling.race[(count, chunks)](
            logits, batch.temperature, batch.seed, batch.positions, batch.lengths, maxima,
            waits, weights, chunk_waits, chunk_ids, chunk_weights, vocab, chunks,
            CHUNKS_PAD=pad, BLOCK=CHUNK, num_warps=8,
        )  # fmt: skip
        sampling.choose[(count,)](
            logits, batch.temperature, batch.top_k, batch.top_p, maxima, max_ids, peaks,
            waits, weights, chunk_waits, chunk_ids, chunk_weights,
            self._room(count, groups, dtype="int32"), batch.output, vocab, chunks, groups,
            CHUNKS_PAD=pad, GROUPS_PAD=next_power_of_2(groups), num_warps=16,
        )  # fmt: skip

    def _few_rows(
        self, x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, width: int
    ) -> torch.Tensor:
        """Product, or gated product where the matrix is twice as high as ``width``."""
        (count, depth), tiles = x.shape, len(matrix) // MATRIX_ROWS
        splits = _splits(tiles, depth)
        pad = max(NARROWEST, next_power_of_2(count))
        out = self._room(count, width, like=x)
        parts = self._room(tiles * splits * MATRIX_ROWS * pad if splits > 1 else 1)
        matmul.few_rows[(tiles, splits)](
            x, matrix, matrix if bias is None else bias, out, parts, self._zeros(tiles), count,
            N=width, K=depth, M_PAD=pad, COLUMNS=MATRIX_ROWS, DEPTH=MATRIX_DEPTH, SPLITS=splits,
            BIASED=bias is not None, GATED=width < len(matrix),
            num_stages=3 if pad > FEW_ROWS and splits == 1 else 4,
        )  # fmt: skip
        return out

    def _norm(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        count, hidden = x.shape
        out = self._room(count, hidden, like=x)
        rows.norm[(count,)](
            x, x if delta is None else delta, weight, out, eps,
            H=hidden, H_PAD=next_power_of_2(hidden), ADD=delta is not None, num_warps=8,
        )  # fmt: skip
        return out

    def _decode(
        self, batch: Batch, qkv: torch.Tensor, layer: Layer, cache: Cache, heads: Heads
    ) -> torch.Tensor:
        count, size = len(qkv), heads.head_dim
        pairs = count * heads.kv_heads
        tile, programs = next(wanted for limit, *wanted in self._work if pairs <= limit)
        tile = min(tile, TILE_BYTES_MAX // (next_power_of_2(size) * qkv.itemsize))
        splits = min(SPLITS_MAX, next_power_of_2(cdiv(programs, pairs)))
        out = self._room(count, heads.heads * size, like=qkv)
        left = pairs * splits * (heads.heads // heads.kv_heads)
        sizes = _head_sizes(heads, layer, cache)
        sizes |= {"TILE": tile, "SPLITS": splits, "PRECISION": _precision(qkv)}
        sizes["GROUP_TRUE_PAD"] = sizes["GROUP_PAD"]
        sizes["GROUP_PAD"] = max(NARROWEST, sizes["GROUP_PAD"])
        sizes["num_stages"] = 2
        attention.decode[(count, heads.kv_heads, splits)](
            qkv, *_head_norms(layer), cache.rope, cache.keys, cache.values,
            batch.block_tables, batch.positions, batch.lengths, out,
            self._room(left, size), self._room(left), self._room(left), self._zeros(pairs),
            heads.norm_eps, heads.scale, batch.block_tables.shape[1], len(cache.rope) - 1, **sizes,
        )  # fmt: skip
        return out

    def _prompt(
        self, batch: Batch, qkv: torch.Tensor, layer: Layer, cache: Cache, heads: Heads
    ) -> torch.Tensor:
        count, tokens = batch.tokens.shape
        attention.prompt_rope[(count * tokens, heads.kv_heads)](
            qkv, *_head_norms(layer), cache.rope, cache.keys, cache.values,
            batch.block_tables, batch.positions, batch.lengths,
            heads.norm_eps, tokens, batch.block_tables.shape[1], len(cache.rope) - 1,
            **_head_sizes(heads, layer, cache),
        )  # fmt: skip
        split = qkv.view(count, tokens, -1, heads.head_dim).transpose(1, 2)
        q, k, v = split.split((heads.heads, heads.kv_heads, heads.kv_heads), dim=1)
        # A valid token sees those before it alone, so what lies beyond a length reaches nobody.
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            mixed = scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=heads.scale, enable_gqa=heads.heads > heads.kv_heads
            )
        return mixed.transpose(1, 2).reshape(count * tokens, -1)

    def _route(
        self, router_logits: torch.Tensor, experts: Experts, pairs: int, tile: int, tiles: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """float32 weight of each pair, int32 expert of each tile, int32 pair of each slot."""
        weights, chosen = self._room(pairs), self._room(pairs, dtype="int32")
        sizes = {"E": experts.count, "E_PAD": next_power_of_2(experts.count)}
        expert_kernels.route[(len(router_logits),)](
            router_logits, weights, chosen, CHOSEN=experts.chosen, NORMALISED=experts.normalised,
            num_warps=1, **sizes,
        )  # fmt: skip
        counts = self._room(experts.count, dtype="int32")
        tile_experts, slots = (self._room(size, dtype="int32") for size in (tiles, tiles * tile))
        block = min(1024, max(64, next_power_of_2(pairs)))
        expert_kernels.count[(experts.count,)](chosen, counts, pairs, BLOCK=block)
        expert_kernels.place[(experts.count,)](
            chosen, counts, tile_experts, slots, pairs, tiles, TILE=tile, BLOCK=block, **sizes
        )
        return weights, tile_experts, slots

    def _room(
        self, *shape: int, dtype: str = "float32", like: torch.Tensor | None = None
    ) -> torch.Tensor:
        kind = getattr(torch, dtype) if like is None else like.dtype
        return torch.empty(shape, dtype=kind, device=self._device)

    def _zeros(self, pairs: int) -> torch.Tensor:
        """Counters of this size; every kernel that counts with them leaves zeros behind.

        Made in the warm-up before a capture, so they are no part of any graph's memory.
        """
        if pairs not in self._arrived:
            self._arrived[pairs] = torch.zeros(pairs, dtype=torch.int32, device=self._device)
        return self._arrived[pairs]


def _head_sizes(heads: Heads, layer: Layer, cache: Cache) -> dict[str, Any]:
    half = heads.head_dim // 2
    group = heads.heads // heads.kv_heads
    return {
        "KV_HEADS": heads.kv_heads,
        "GROUP": group,
        "GROUP_PAD": next_power_of_2(group),
        "D": heads.head_dim,
        "HALF_PAD": max(NARROWEST, next_power_of_2(half)),
        "D_PAD": max(NARROWEST, next_power_of_2(heads.head_dim)),
        "BLOCK_TOKENS": cache.keys.shape[2],
        "NORMED": layer.q_norm is not None,
    }


def _head_norms(layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
    """The norms of queries and keys; a kernel that has none does not look at what stands there."""
    if layer.q_norm is None or layer.k_norm is None:
        return layer.attention_norm, layer.attention_norm
    return layer.q_norm, layer.k_norm


def _is_read_bound(x: torch.Tensor, matrix: torch.Tensor) -> bool:
    """Whether our product is to be preferred to cuBLAS's: few rows, and whole tiles.

    Measured on an H200, fp16, on the matrices of Llama-3-8B: at 16 rows ours takes 1.0 to 0.83 of
    cuBLAS's time, at 32 rows 1.02 to 0.85, at 64 rows 1.12 to 0.92, the large ones being those
    that gain.
    """
    few = len(x) <= FEW_ROWS or (len(x) <= SEVERAL_ROWS and matrix.numel() >= LARGE_MATRIX)
    whole = len(matrix) % MATRIX_ROWS == 0 and matrix.shape[1] % MATRIX_DEPTH == 0
    return few and whole and x.dtype != torch.float32


def _splits(tiles: int, depth: int) -> int:
    """Into how many parts the sum is divided: a program for each multiprocessor is wanted."""
    splits = 1
    while tiles * splits < PROGRAMS_MIN and depth % (2 * splits * MATRIX_DEPTH) == 0:
        splits *= 2
    return splits


def _precision(like: torch.Tensor) -> str:
    """float32 is multiplied as float32, not rounded to the tensor cores' tf32."""
    return "ieee" if like.dtype == torch.float32 else "tf32"
