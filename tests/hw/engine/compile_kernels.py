"""Compile every kernel for an H100 or H200, on any machine: the interpreter accepts more.

A program of its own, because a process either interprets kernels or compiles them.
"""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compiled

from blink.hw.engine.llama.kernels import attention, experts, matmul, rows, sampling

HOPPER = GPUTarget("cuda", 90, 32)
HEADS = {"KV_HEADS": 8, "GROUP": 4, "D": 128, "HALF_PAD": 64, "D_PAD": 128, "BLOCK_TOKENS": 16}
MIXTURE = {"H": 2048, "W": 768, "COLUMNS": 64, "DEPTH": 64}
PRODUCT = {"N": 4096, "K": 4096, "COLUMNS": 64, "DEPTH": 128}
NUMBERS = {"eps": "fp32", "scale": "fp32"}
NUMBERS |= dict.fromkeys(("T", "M", "V", "CHUNKS", "vocab", "groups", "pairs", "tiles_max"), "i32")
NUMBERS |= dict.fromkeys(("table_width", "last_angle"), "i32")
POINTERS = dict.fromkeys(("rope", "parts", "maxima", "sums", "temperature", "top_p"), "*fp32")
POINTERS |= dict.fromkeys(("tokens", "lengths", "tables", "positions", "arrived"), "*i32")
POINTERS |= dict.fromkeys(("chosen", "counts", "tile_experts", "slots", "ids", "max_ids"), "*i32")
POINTERS |= dict.fromkeys(("chunk_ids", "top_k", "output", "listed"), "*i32")
POINTERS |= dict.fromkeys(("seed", "chunk_weights"), "*i64") | {"peaks": "*fp32"}
POINTERS |= dict.fromkeys(("waits", "chunk_waits"), "*fp64")


def build(kernel: Any, constants: dict[str, Any], model: str = "*fp16", **options: Any) -> None:
    """Compile one kernel; ``model`` is the type of what has the model's dtype."""
    weights = {sampling: "*i64", experts: "*fp32"}
    own = {"weights": next((w for m, w in weights.items() if kernel.__name__ in vars(m)), model)}
    signature = {
        name: "constexpr" if name in constants else (own | POINTERS | NUMBERS).get(name, model)
        for name in kernel.arg_names
    }
    compiled(ASTSource(kernel, signature, constexprs=constants), target=HOPPER, options=options)


def main() -> None:
    """Raise what Triton raises."""
    for dtype, precision in (("*fp16", "tf32"), ("*fp32", "ieee")):
        exact = {"PRECISION": precision}
        build(rows.embed, {"H": 4096, "BLOCK": 1024}, dtype)
        build(rows.norm, {"H": 4096, "H_PAD": 4096, "ADD": True}, dtype, num_warps=8)
        build(rows.last_norm, {"H": 4096, "H_PAD": 4096}, dtype, num_warps=8)
        build(rows.gate, {"W": 14_336, "BLOCK": 1024}, dtype)
        for normed in (False, True):
            heads = HEADS | {"NORMED": normed}
            decode = exact | {"GROUP_PAD": 16, "GROUP_TRUE_PAD": 4, "SPLITS": 4}
            decode["TILE"] = 128 if dtype == "*fp16" else 64
            build(attention.decode, heads | decode, dtype, num_stages=2)
            build(attention.prompt_rope, heads | {"GROUP_PAD": 4}, dtype)
        mixture = MIXTURE | exact | {"TILE": 16}
        build(experts.gated, mixture | {"CHOSEN": 8}, dtype, num_stages=4)
        build(experts.down, mixture, dtype, num_stages=4)
        build(experts.together, {"H": 2048, "CHOSEN": 8, "BLOCK": 1024}, dtype)
        routed = {"E": 128, "E_PAD": 128}
        build(experts.route, routed | {"CHOSEN": 8, "NORMALISED": True}, dtype, num_warps=1)
        build(sampling.greatest, {"BLOCK": 2048}, dtype, num_warps=8)
        build(sampling.race, {"BLOCK": 2048, "CHUNKS_PAD": 64}, dtype, num_warps=8)
        build(sampling.choose, {"CHUNKS_PAD": 64, "GROUPS_PAD": 2048}, dtype, num_warps=16)
    build(experts.count, {"BLOCK": 1024})
    build(experts.place, {"E": 128, "E_PAD": 128, "TILE": 16, "BLOCK": 1024})
    for gated, splits, pad in ((True, 1, 16), (False, 2, 64)):
        shape = PRODUCT | {"GATED": gated, "SPLITS": splits, "M_PAD": pad, "BIASED": not gated}
        build(matmul.few_rows, shape, num_stages=4)


if __name__ == "__main__":
    main()
