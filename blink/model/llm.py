"""Language models as shapes: what a decoder-only transformer weighs, reads and computes.

``lookup`` takes a catalogue name, a Hugging Face id or the path of a ``config.json``;
``from_hf_config`` takes such a file's contents. A mixture of experts has ``experts`` > 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from blink.model.errors import BadInput, is_file
from blink.model.provenance import catalogue, entry


@dataclass(frozen=True, slots=True)
class LlmSku:
    """A decoder-only transformer with grouped-query attention and a gated feed-forward network.

    ``intermediate`` is the dense feed-forward width; with ``experts`` > 0 every layer has that many
    experts of width ``moe_intermediate`` of which ``experts_active`` are used by a token.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    experts: int = 0
    experts_active: int = 0
    moe_intermediate: int = 0
    tied_embeddings: bool = False
    bytes_per_weight: float = 2.0
    kv_bytes_per_element: float = 2.0

    @property
    def attention_weights_layer(self) -> int:
        """Weights of the four attention projections of a layer."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self.hidden * (2 * queries + 2 * keys)

    @property
    def expert_weights(self) -> int:
        """Weights of one expert (0 if dense)."""
        return 3 * self.hidden * self.moe_intermediate if self.experts else 0

    @property
    def dense_weights_layer(self) -> int:
        """Weights of a layer that every step reads: attention, feed-forward (or the router)."""
        feed_forward = self.hidden * (self.experts or 3 * self.intermediate)
        return self.attention_weights_layer + feed_forward

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocab

    @property
    def parameters(self) -> int:
        """All weights, embedding and head included (once if tied; norms are left out: < 0.01 %)."""
        body = self.layers * (self.dense_weights_layer + self.experts * self.expert_weights)
        return body + self.head_weights * (1 if self.tied_embeddings else 2)

    @property
    def parameters_active(self) -> int:
        """Weights one token is multiplied with: the embedding is a look-up and not counted."""
        body = self.layers * (self.dense_weights_layer + self.experts_active * self.expert_weights)
        return body + self.head_weights

    @property
    def weight_bytes(self) -> int:
        return round(self.parameters * self.bytes_per_weight)

    @property
    def kv_bytes_per_token(self) -> int:
        return round(2 * self.layers * self.kv_heads * self.head_dim * self.kv_bytes_per_element)

    def with_weights_of(self, bytes_per_weight: float) -> LlmSku:
        """The same shape with quantized weights."""
        return replace(self, bytes_per_weight=bytes_per_weight)


SIZE_MAX: Final = 100_000_000
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts")
_SIZES: Final = frozenset(
    {
        "hidden_size",
        "n_embd",
        "num_attention_heads",
        "n_head",
        "num_key_value_heads",
        "num_hidden_layers",
        "n_layer",
        "head_dim",
        "intermediate_size",
        "n_inner",
        "vocab_size",
        "moe_intermediate_size",
        "num_experts_per_tok",
        *_EXPERTS,
    }
)


def lookup(name: str) -> LlmSku:
    """A model by catalogue name, Hugging Face id, or path to a ``config.json`` (or its folder).

    Raises ``UnknownName`` with the nearest known names, ``BadInput`` for an unreadable file.
    """
    path = Path(name)
    if path.suffix == ".json":
        return _from_file(path)
    if name and is_file(path / "config.json"):
        return _from_file(path / "config.json")
    found = entry("llms.toml", "model", name)
    shape = {key: value for key, value in found.labels.items() if key != "aliases"}
    return LlmSku(name=found.name, **shape)


def from_hf_config(config: Mapping[str, Any], name: str | None = None) -> LlmSku:
    """The shape in a Hugging Face ``config.json``. Raises ``BadInput`` naming a missing key."""
    text = config.get("text_config")
    config = text if isinstance(text, Mapping) else config
    _check_config(config)
    heads = _whole(config, "num_attention_heads", "n_head")
    hidden = _whole(config, "hidden_size", "n_embd")
    experts = _whole(config, *_EXPERTS, default=0)
    intermediate = _whole(config, "intermediate_size", "n_inner", default=4 * hidden)
    return LlmSku(
        name=name or str(config.get("_name_or_path") or config.get("model_type") or "config.json"),
        layers=_whole(config, "num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=_whole(config, "num_key_value_heads", default=heads),
        head_dim=_whole(config, "head_dim", default=max(1, hidden // heads)),
        intermediate=intermediate,
        vocab=_whole(config, "vocab_size"),
        experts=experts,
        experts_active=_whole(config, "num_experts_per_tok", default=0) if experts else 0,
        moe_intermediate=_whole(config, "moe_intermediate_size", default=intermediate)
        if experts
        else 0,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        bytes_per_weight=_bytes_per_weight(config),
    )


def _check_config(config: Mapping[str, Any]) -> None:
    """Sizes that are there must be whole numbers that go together."""
    for key, value in config.items():
        sized = key in _SIZES and value is not None
        least = 0 if "expert" in key else 1
        if sized and not (type(value) is int and least <= value <= SIZE_MAX):
            raise BadInput(f"model config: {key} is {value!r}, not a whole number from {least} on")
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads and kv_heads and heads % kv_heads:
        raise BadInput(f"model config: {heads} attention heads do not share {kv_heads} KV heads")
    experts = next((config[key] for key in _EXPERTS if config.get(key)), None)
    active = config.get("num_experts_per_tok") or 0
    if experts and not 1 <= active <= experts:
        raise BadInput(f"model config: num_experts_per_tok is {active}, of {experts} experts")


def _bytes_per_weight(config: Mapping[str, Any]) -> float:
    """From the quantization, else 2: engines serve 32-bit checkpoints with 16 bits, too."""
    quantization = config.get("quantization_config")
    if isinstance(quantization, Mapping):
        method = str(quantization.get("quant_method", "")).lower()
        bits = quantization.get("bits") or ("4" if quantization.get("load_in_4bit") else "")
        known = {"4": 0.5, "8": 1.0}.get(str(bits), 1.0 if "fp8" in method else None)
        if known is None:
            raise BadInput(
                f'model config: quantization_config "{method}" says neither bits (4, 8) nor fp8'
            )
        return known
    written = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    dtype = str(written).removeprefix("torch.")
    if dtype.startswith("float8"):
        return 1.0
    if dtype not in ("auto", "float32", "float16", "bfloat16", "half", "float"):
        raise BadInput(f'model config: unknown torch_dtype "{written}"')
    return 2.0


def names() -> list[str]:
    """Catalogue names of the models."""
    return list(catalogue("llms.toml"))


def _from_file(path: Path) -> LlmSku:
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadInput(f"model config {path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"model config {path}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise BadInput(f"model config {path}: must hold a JSON object")
    return from_hf_config(config, name=path.parent.name or path.stem)


def _whole(config: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    if default is None:
        raise BadInput(f"model config: {keys[0]!r} is missing or not a positive whole number")
    return default
