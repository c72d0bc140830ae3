"""Tensor parallelism: one model on N GPUs that work on every layer together.

Each GPU holds one N-th of every matrix and of the KV heads, computes its part, and twice a layer,
after attention and after the feed-forward, all GPUs add up their partial sums (Shoeybi et al.,
Megatron-LM, 2019: column- then row-parallel products). With hidden vectors of ``hidden`` 16-bit
values, a step over ``tokens`` rows takes, beyond its share of the work::

    2 x layers x (all_reduce_latency_ns + moved / (peer_bandwidth x peer_efficiency))
    moved = 2 (N-1)/N x tokens x hidden x 2 bytes

Every GPU sends and receives ``2 (N-1)/N`` of the vectors, the least that an all-reduce can. Norms,
residuals and the sampler are not divided: each GPU does them on whole vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from blink.model.errors import BadInput
from blink.model.hardware import GpuSku
from blink.model.llm import LlmSku

ALL_REDUCES_PER_LAYER: Final = 2
_NS: Final = 1e9


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """What each of ``gpus`` GPUs holds of a model; 1 is no parallelism."""

    gpus: int = 1

    def check(self, llm: LlmSku) -> None:
        """Raise BadInput for a model that does not divide into equal parts."""
        gpus = self.gpus
        sizes = {"attention heads": llm.heads}
        if llm.experts:
            sizes["columns of an expert"] = llm.moe_intermediate
        else:
            sizes["feed-forward columns"] = llm.intermediate
        for what, size in sizes.items():
            if size % gpus:
                raise BadInput(
                    f"engine.tensor_parallel = {gpus}: {llm.name} has {size} {what}, which do not "
                    f"divide by {gpus}: take a divisor"
                )
        if llm.kv_heads % gpus and gpus % llm.kv_heads:
            raise BadInput(
                f"engine.tensor_parallel = {gpus}: {llm.name} has {llm.kv_heads} KV heads, which "
                f"neither divide by {gpus} nor divide it: take a divisor or a multiple"
            )

    def kv_heads(self, llm: LlmSku) -> int:
        """KV heads that each GPU holds; with more GPUs than heads every head is held repeatedly."""
        return max(1, llm.kv_heads // self.gpus)

    def kv_share(self, llm: LlmSku) -> float:
        """The share of a token's keys and values that each GPU holds and reads."""
        return self.kv_heads(llm) / llm.kv_heads

    def kv_bytes_per_token(self, llm: LlmSku) -> int:
        """Bytes that a token's keys and values take on each GPU."""
        return round(llm.kv_bytes_per_token * self.kv_share(llm))

    def all_reduces(self, llm: LlmSku) -> int:
        """All-reduces of one step."""
        return ALL_REDUCES_PER_LAYER * llm.layers if self.gpus > 1 else 0

    def latency_ns(self, llm: LlmSku, gpu: GpuSku) -> float:
        """What the collectives of a step take however few tokens it has."""
        return self.all_reduces(llm) * float(gpu.all_reduce_latency_ns)

    def token_ns(self, llm: LlmSku, gpu: GpuSku) -> float:
        """What the collectives of a step take more for each of its tokens."""
        moved = 2 * (self.gpus - 1) / self.gpus * llm.hidden * 2
        bytes_s = gpu.peer_bandwidth_bytes_s * gpu.peer_efficiency
        return self.all_reduces(llm) * moved / bytes_s * _NS


ONE_GPU: Final = TensorParallel()
