"""Optional features of an engine: what their settings become, and which go together.

Each is off by default. Constants beyond a GPU's own are in ``data/features.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping

from blink.model.control_plane import ControlPlane
from blink.model.errors import BadInput
from blink.model.hardware import GpuSku
from blink.model.llm import LlmSku, lookup
from blink.model.offload import KvOffload
from blink.model.parallel import TensorParallel
from blink.model.provenance import Constant, catalogue
from blink.model.scenario import Scenario
from blink.model.speculation import Speculation
from blink.model.workload import Workload


def constants(feature: str) -> Mapping[str, Constant]:
    """The constants of a feature in ``data/features.toml``, each with its origin."""
    return catalogue("features.toml")[feature].constants


def constant(feature: str, name: str) -> float:
    """One of them."""
    return float(constants(feature)[name].value)


def check_features(scenario: Scenario, plane: ControlPlane, workload: Workload) -> None:
    """Raise BadInput for a feature that this workload, or this system, cannot have."""
    engine = scenario.engine
    if engine.prefix_caching:
        _check_prefixes(engine.kv_block_tokens, workload)


def _check_prefixes(block_tokens: int, workload: Workload) -> None:
    if workload.prefix_hashes is None:
        raise BadInput(
            "engine.prefix_caching: the workload does not say which prompts begin alike: take "
            "Mooncake's traces with hash_ids, or set workload.shared_prefix"
        )
    if workload.hash_tokens % block_tokens:
        raise BadInput(
            f"engine.kv_block_tokens = {block_tokens}: engine.prefix_caching shares blocks of "
            f"{workload.hash_tokens} tokens in this workload: take a divisor"
        )


def speculation_of(
    scenario: Scenario, model: LlmSku, parallel: TensorParallel
) -> Speculation | None:
    """The scenario's speculation, or None. Raises BadInput for a draft that does not fit it."""
    section = scenario.speculation
    if not section.draft_tokens:
        return None
    assert section.acceptance is not None
    if scenario.hardware.profile:
        raise BadInput(
            "speculation.draft_tokens: hardware.profile has step times of one token a sequence: "
            "leave one of them out"
        )
    draft = None
    if section.draft_model is not None:
        draft = lookup(section.draft_model)
        parallel.check(draft)
        if draft.vocab != model.vocab:
            raise BadInput(
                f"speculation.draft_model: {draft.name} has {draft.vocab:,} tokens in its "
                f"vocabulary, {model.name} {model.vocab:,}: a draft needs the same ones"
            )
    return Speculation(section.draft_tokens, section.acceptance, draft)


def offload_of(
    scenario: Scenario,
    gpu: GpuSku,
    model: LlmSku,
    parallel: TensorParallel,
    speculation: Speculation | None,
) -> KvOffload | None:
    """The scenario's KV offload, or None."""
    if not scenario.engine.kv_offload_gb:
        return None
    draft = speculation.draft if speculation else None
    return KvOffload.of(
        scenario.engine.kv_offload_gb * 1e9,
        gpu,
        (model,) if draft is None else (model, draft),
        scenario.engine.kv_block_tokens,
        parallel,
        round(constant("kv_offload", "copy_latency_ns")),
    )
