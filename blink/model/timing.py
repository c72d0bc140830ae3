"""How long a GPU works on one step: a roofline with kernel overheads.

A step over ``tokens`` rows of which ``rows`` end in the vocabulary projection takes::

    matmul(tokens, rows)    soft maximum of weight bytes over bandwidth and FLOP over FLOPS,
                            (memory^p + compute^p)^(1/p), body, experts and head each on its own
    + kernels x kernel_ns   latency of every kernel in the step's graph: a constant
    + tokens x activation   reads and writes of the hidden vectors between the products
    + rows x sampler        logits written, converted, reduced
    + context x kv bytes    the decoding sequences' keys and values, read once
    + pairs x attention     FLOP of query x key pairs in prefill

With tensor parallelism (:mod:`blink.model.parallel`) each GPU reads and computes its share of the
products, keys and values, and the collectives are added. A mixture of experts reads only the
experts its tokens hit: ``E (1 - (1 - k/E)^tokens)`` expected. Only the context term changes along a
run of decode steps, so one run is one vector expression. Each step is rounded on its own: a run cut
anywhere gives the same integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blink.model.errors import ModelDoesNotFit
from blink.model.hardware import GpuSku
from blink.model.llm import LlmSku
from blink.model.parallel import ONE_GPU, TensorParallel
from blink.model.provenance import Constant, entry

NS = 1e9


@dataclass(frozen=True, slots=True)
class EngineEfficiency:
    """What an engine gets out of any GPU; fields as in ``data/engines.toml``."""

    name: str
    memory_efficiency: float
    compute_efficiency: float
    roofline_power: float
    kernel_ns: float
    kernels_per_layer: float
    kernels_per_expert_layer: float
    kernels_per_step: float
    attention_memory_efficiency: float
    attention_compute_efficiency: float
    activation_passes: float
    sampler_bytes_per_logit: float
    sampler_bytes_per_logit_greedy: float
    expert_efficiency: float
    reserved_bytes: float
    provenance: Mapping[str, Constant] = field(compare=False, repr=False)

    def greedy(self) -> EngineEfficiency:
        """The same engine serving at temperature 0: the sampler only takes the maximum."""
        return replace(self, sampler_bytes_per_logit=self.sampler_bytes_per_logit_greedy)


def engine(name: str) -> EngineEfficiency:
    """An engine's constants by name; ``name+greedy`` serves at temperature 0.

    Raises ``UnknownName`` with the nearest known names.
    """
    base, _, sampling = name.partition("+")
    found = entry("engines.toml", "engine", base if sampling in ("", "greedy") else name)
    numbers = {each.name: found.number(each.name) for each in fields(EngineEfficiency)[1:-1]}
    made = EngineEfficiency(name=found.name, provenance=found.constants, **numbers)
    return made.greedy() if sampling else made


class StepTime:
    """GPU time of one model under one engine, in integer ns. No host time in it.

    On one GPU, or on the GPUs of ``parallel``, which all work as long.
    """

    __slots__ = ("_context_ns", "_decode_fixed", "_pair_ns", "_shape", "engine", "gpu", "llm")

    def __init__(
        self,
        llm: LlmSku,
        gpu: GpuSku,
        engine: EngineEfficiency,
        parallel: TensorParallel = ONE_GPU,
    ) -> None:
        self.llm, self.gpu, self.engine = llm, gpu, engine
        self._shape = _Costs.of(llm, gpu, engine, parallel)
        read_s = gpu.memory_bandwidth_bytes_s * engine.attention_memory_efficiency
        self._context_ns = parallel.kv_bytes_per_token(llm) / read_s * NS
        pair_flop = 4 * llm.layers * llm.heads * llm.head_dim / parallel.gpus
        flops = gpu.sustained_flops_16bit * engine.attention_compute_efficiency
        self._pair_ns = pair_flop / flops * NS
        self._decode_fixed: dict[int, float] = {}

    def decode_ns(
        self, batch: int, context_sum: int, steps: int, computed: int | None = None
    ) -> NDArray[np.int64]:
        """Durations of ``steps`` consecutive decode steps, int64[steps].

        ``context_sum`` is the number of cached tokens the first step reads, over all ``batch``
        sequences; every step adds ``batch`` to it. ``computed`` is the batch of the captured graph,
        padding included, if that is larger than ``batch``.
        """
        computed = batch if computed is None else computed
        fixed = self._decode_fixed.get(computed)
        if fixed is None:
            fixed = self._decode_fixed[computed] = self._shape.fixed_ns(computed, computed)
        contexts = np.arange(context_sum, context_sum + batch * steps, batch, dtype=np.float64)
        contexts *= self._context_ns
        contexts += fixed
        return np.rint(contexts, out=contexts).astype(np.int64)

    def prefill_ns(self, tokens: int, pairs: int) -> int:
        """One prefill of ``tokens`` prompt tokens with ``pairs`` query-key pairs in all."""
        return round(self._shape.fixed_ns(tokens, 1) + pairs * self._pair_ns)

    def mixed_ns(
        self, decode_batch: int, context_sum: int, prefill_tokens: int, prefill_pairs: int
    ) -> int:
        """One step that decodes ``decode_batch`` sequences and prefills some tokens beside them."""
        rows = decode_batch + (1 if prefill_tokens else 0)
        return self.verify_ns(decode_batch + prefill_tokens, rows, context_sum, prefill_pairs)

    def verify_ns(self, tokens: int, rows: int, context_sum: int, pairs: int) -> int:
        """One step over ``tokens`` of which ``rows`` are continued; keys and values read once."""
        fixed = self._shape.fixed_ns(tokens, rows)
        return round(fixed + context_sum * self._context_ns + pairs * self._pair_ns)


def causal_pairs(cached: int, tokens: int) -> int:
    """Query-key pairs of ``tokens`` new tokens after ``cached`` earlier ones, causally masked."""
    return tokens * cached + tokens * (tokens + 1) // 2


def kv_blocks_total(
    gpu: GpuSku,
    llm: LlmSku,
    block_tokens: int = 16,
    memory_utilization: float = 0.9,
    graph_cache_bytes: int = 0,
    prefill_tokens_max: int = 2048,
    reserved_bytes: float | None = None,
    parallel: TensorParallel = ONE_GPU,
    draft: LlmSku | None = None,
) -> int:
    """Blocks of ``block_tokens`` tokens that fit beside weights, activations and graphs.

    With tensor parallelism a block lies in parts on every GPU, and each holds its share of the
    weights. A ``draft`` model has weights, keys and values of its own beside them.

    Raises ``ModelDoesNotFit`` with the bytes it would need if none fits.
    """
    activations = prefill_tokens_max * _activation_bytes_peak(llm)
    models = (llm,) if draft is None else (llm, draft)
    weights = sum(each.weight_bytes for each in models) / parallel.gpus
    token_bytes = sum(parallel.kv_bytes_per_token(each) for each in models)
    if reserved_bytes is None:
        reserved_bytes = engine("vllm").reserved_bytes
    taken = weights + activations + graph_cache_bytes + reserved_bytes
    free = gpu.memory_bytes * memory_utilization - taken
    blocks = int(free // (block_tokens * token_bytes))
    if blocks < 1:
        each = f" on each of {parallel.gpus} GPUs" if parallel.gpus > 1 else ""
        raise ModelDoesNotFit(
            f"{llm.name} needs {taken / 1e9:.1f} GB before its first KV block{each}, but "
            f"{gpu.name} gives {gpu.memory_bytes * memory_utilization / 1e9:.1f} GB "
            f"(memory_utilization "
            f"{memory_utilization:g}): take a larger GPU or a smaller model"
        )
    return blocks


def _activation_bytes_peak(llm: LlmSku) -> int:
    """Bytes a prompt token holds at the widest point: gate, up and their product, two residuals."""
    width = llm.experts_active * llm.moe_intermediate if llm.experts else llm.intermediate
    return 2 * (3 * width + 2 * llm.hidden)


@dataclass(frozen=True, slots=True)
class _Costs:
    """Everything of a step but attention, in ns."""

    power: float
    kernels_ns: float
    token_ns: float
    row_ns: float
    body_read_ns: float
    body_token_ns: float
    head_read_ns: float
    head_row_ns: float
    experts: int
    experts_active: int
    expert_read_ns: float
    expert_token_ns: float

    @classmethod
    def of(
        cls, llm: LlmSku, gpu: GpuSku, engine: EngineEfficiency, parallel: TensorParallel
    ) -> _Costs:
        read = NS / (gpu.memory_bandwidth_bytes_s * engine.memory_efficiency)
        flop = NS / (gpu.sustained_flops_16bit * engine.compute_efficiency)
        weight_read = read * llm.bytes_per_weight
        body = llm.layers * llm.dense_weights_layer / parallel.gpus
        expert = llm.layers * llm.expert_weights / parallel.gpus
        head = llm.head_weights / parallel.gpus
        moved = llm.layers * _activation_bytes(llm, engine, parallel) * read
        return cls(
            power=engine.roofline_power,
            kernels_ns=_kernels(llm, engine) * engine.kernel_ns + parallel.latency_ns(llm, gpu),
            token_ns=moved + parallel.token_ns(llm, gpu),
            row_ns=llm.vocab * engine.sampler_bytes_per_logit * read,
            body_read_ns=body * weight_read,
            body_token_ns=2 * body * flop,
            head_read_ns=head * weight_read,
            head_row_ns=2 * head * flop,
            experts=llm.experts,
            experts_active=llm.experts_active,
            expert_read_ns=expert * weight_read,
            expert_token_ns=2 * expert * flop / engine.expert_efficiency,
        )

    def fixed_ns(self, tokens: int, rows: int) -> float:
        matmul = self._soft(self.body_read_ns, tokens * self.body_token_ns)
        matmul += self._soft(self.head_read_ns, rows * self.head_row_ns)
        if self.experts:
            matmul += self._soft(
                self._experts_hit(tokens) * self.expert_read_ns,
                tokens * self.experts_active * self.expert_token_ns,
            )
        return matmul + self.kernels_ns + tokens * self.token_ns + rows * self.row_ns

    def _experts_hit(self, tokens: int) -> float:
        missed: float = (1 - self.experts_active / self.experts) ** tokens
        return self.experts * (1 - missed)

    def _soft(self, memory: float, compute: float) -> float:
        total: Any = (memory**self.power + compute**self.power) ** (1 / self.power)
        return float(total)


def _kernels(llm: LlmSku, engine: EngineEfficiency) -> float:
    layer = engine.kernels_per_layer + (engine.kernels_per_expert_layer if llm.experts else 0)
    return llm.layers * layer + engine.kernels_per_step


def _activation_bytes(llm: LlmSku, engine: EngineEfficiency, parallel: TensorParallel) -> float:
    """Bytes of activations a token moves in a layer.

    ``activation_passes`` hidden vectors, and the feed-forward's gate, up and product once each.
    """
    width = llm.experts_active * llm.moe_intermediate if llm.experts else llm.intermediate
    return 2 * (engine.activation_passes * llm.hidden + 3 * width / parallel.gpus)
