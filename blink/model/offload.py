"""KV offload: a preempted sequence's cache goes to the host's memory and comes back, over PCIe.

Copies are in the GPU's own order, so the next step waits for them (as in vLLM's swapping, Kwon et
al., SOSP 2023, section 4.5)::

    copy = latency_ns + blocks x block bytes / host_bandwidth

Each GPU of a tensor-parallel group copies its own part over its own link, all at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from blink.model.hardware import GpuSku
from blink.model.llm import LlmSku
from blink.model.parallel import TensorParallel


@dataclass(frozen=True, slots=True)
class KvOffload:
    """Room for ``blocks_total`` KV blocks in host memory, ``block_ns`` to copy one of them."""

    blocks_total: int
    block_ns: float
    latency_ns: int

    @classmethod
    def of(
        cls,
        room_bytes: float,
        gpu: GpuSku,
        models: tuple[LlmSku, ...],
        block_tokens: int,
        parallel: TensorParallel,
        latency_ns: int,
    ) -> KvOffload:
        """``models``: whose keys and values a block holds, on each of the GPUs."""
        block_bytes = block_tokens * sum(parallel.kv_bytes_per_token(each) for each in models)
        return cls(
            blocks_total=int(room_bytes // (block_bytes * parallel.gpus)),
            block_ns=block_bytes / gpu.host_bandwidth_bytes_s * 1e9,
            latency_ns=latency_ns,
        )

    def copy_ns(self, blocks: int) -> int:
        """How long ``blocks`` blocks take, one way."""
        return self.latency_ns + round(blocks * self.block_ns)
