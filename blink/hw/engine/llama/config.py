"""Which model: the fields of a published ``config.json`` that this engine understands.

What it does not understand it refuses by name: a field that is ignored is a model that answers
wrongly. No torch here, so that a configuration can be judged on any machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from blink.hw.engine.llama.shapes import SHAPES
from blink.model.errors import BadInput, UnknownName, is_file


class BadModel(BadInput):
    """A configuration, or weights, that this engine cannot compute; names file and field."""

    def __init__(self, where: object, field: str, message: str) -> None:
        self.where, self.field = str(where), field
        super().__init__(": ".join(part for part in (self.where, field, message) if part))


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Rope scaling of Llama 3.1: long wavelengths stretched, short ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_tokens: int


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in the place of every layer's MLP."""

    count: int
    chosen: int
    width: int
    normalised: bool
    """whether the chosen experts' weights are made to sum to one"""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder: RMSNorm, rotary attention with grouped heads, SiLU-gated MLP or experts."""

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocab: int
    norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    context_max: int
    """positions that the model was made for, in tokens"""
    tied: bool
    """whether the embedding serves as the output matrix too"""
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    experts: Experts | None

    @property
    def q_width(self) -> int:
        """Elements of all query heads of a token."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of all key heads (or value heads) of a token."""
        return self.kv_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Elements of a token's row of the fused projection: queries, keys, values."""
        return self.q_width + 2 * self.kv_width

    @property
    def parameters(self) -> int:
        """How many numbers the weights are."""
        attention = (self.qkv_width + self.q_width) * self.hidden
        attention += self.qkv_width * self.qkv_bias + self.hidden * self.output_bias
        attention += 2 * self.head_dim * self.qk_norm
        mlp = 3 * self.hidden * self.mlp_width
        if self.experts:
            mlp = self.experts.count * self.hidden * (3 * self.experts.width + 1)
        ends = self.vocab * self.hidden * (1 if self.tied else 2) + self.hidden
        return self.layers * (attention + mlp + 2 * self.hidden) + ends


_FAMILIES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}

# Fields that change what a model computes, with the values under which they change nothing.
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "hidden_act": ("silu",),
    "mlp_bias": (False, None),
    "quantization_config": (None,),
    "use_sliding_window": (False, None),
    "partial_rotary_factor": (1, None),
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
}


def load_config(model: str | Path) -> ModelConfig:
    """The configuration of a named shape, of a folder with a ``config.json``, or of such a file.

    Raises UnknownName for a name that is no shape and no file, BadModel for what a file says.
    """
    path = Path(model)
    if str(model) in SHAPES:
        return parse_config(SHAPES[str(model)], str(model))
    file = path if path.suffix == ".json" else path / "config.json"
    if not is_file(file):
        raise UnknownName("model shape, or folder with a config.json,", str(model), SHAPES)
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadModel(file, "", f"cannot be read: {error}") from error
    if not isinstance(fields, dict):
        raise BadModel(file, "", "holds no object")
    return parse_config(fields, str(file))


def parse_config(fields: Mapping[str, Any], where: str = "config") -> ModelConfig:
    """The configuration in these fields of a ``config.json``. Raises BadModel."""
    read = _Reader(fields, where)
    family = read.family()
    read.refuse_what_would_be_ignored()
    heads = read.whole("num_attention_heads")
    hidden = read.whole("hidden_size")
    config = ModelConfig(
        family=family,
        hidden=hidden,
        layers=read.whole("num_hidden_layers"),
        heads=heads,
        kv_heads=read.whole("num_key_value_heads", heads),
        head_dim=read.whole("head_dim", hidden // heads),
        mlp_width=read.whole("intermediate_size"),
        vocab=read.whole("vocab_size"),
        norm_eps=read.positive("rms_norm_eps", 1e-6),
        rope_theta=read.rope_theta(),
        rope_scaling=read.rope_scaling(),
        context_max=read.whole("max_position_embeddings"),
        tied=read.flag("tie_word_embeddings"),
        qkv_bias=family == "qwen2" or read.flag("attention_bias"),
        output_bias=family != "qwen2" and read.flag("attention_bias"),
        qk_norm=family in ("qwen3", "qwen3_moe"),
        experts=read.experts() if family == "qwen3_moe" else None,
    )
    read.check(config)
    return config


class _Reader:
    """Fields by name, each error with the field that it is about."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self._fields = fields
        self._where = where
        self._rope = _rope_fields(fields)

    def family(self) -> str:
        """The family, named by ``architectures`` or, without it, by ``model_type``."""
        named = self._fields.get("architectures") or [None]
        for family, architecture in _FAMILIES.items():
            if named[0] == architecture or (named[0] is None and self._type() == family):
                return family
        field = "model_type" if named[0] is None else "architectures"
        known = ", ".join(_FAMILIES.values())
        raise self._bad(field, f"{named[0] or self._type()} is not supported; known: {known}")

    def refuse_what_would_be_ignored(self) -> None:
        """Refuse a field that changes the model in a way that this engine does not follow."""
        for field, neutral in _NEUTRAL.items():
            value = self._rope.get(field, self._fields.get(field, neutral[0]))
            if value not in neutral:
                raise self._bad(field, f"{json.dumps(value)} is not supported")
        if self._fields.get("sliding_window") and "use_sliding_window" not in self._fields:
            raise self._bad("sliding_window", "is not supported")

    def whole(self, field: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._fields.get(field)
        value = default if value is None else value
        if value is None:
            raise self._bad(field, "is missing")
        if type(value) is not int or value < 1:
            raise self._bad(field, f"must be a whole number of at least 1, not {value!r}")
        return value

    def positive(self, field: str, default: float | None = None) -> float:
        """A number above 0."""
        return self._positive(self._fields, field, default)

    def flag(self, field: str) -> bool:
        """True or false; false when it is missing."""
        value = self._fields.get(field, False)
        if not isinstance(value, bool):
            raise self._bad(field, f"must be true or false, not {value!r}")
        return value

    def rope_theta(self) -> float:
        """The base of the rotary wavelengths: a field of its own, or one of the rope's."""
        if "rope_theta" in self._rope:
            return self._positive(self._rope, "rope_theta")
        return self.positive("rope_theta", 10_000.0)

    def rope_scaling(self) -> Llama3Scaling | None:
        """None for plain rope."""
        kind = self._rope.get("rope_type", self._rope.get("type", "default"))
        if kind == "default":
            return None
        if kind != "llama3":
            raise self._bad("rope_scaling", f'"{kind}" is not supported; known: default, llama3')
        return Llama3Scaling(
            factor=self._positive(self._rope, "factor"),
            low_freq_factor=self._positive(self._rope, "low_freq_factor"),
            high_freq_factor=self._positive(self._rope, "high_freq_factor"),
            original_tokens=int(self._positive(self._rope, "original_max_position_embeddings")),
        )

    def experts(self) -> Experts:
        """The mixture; one in every layer."""
        count = "num_experts" if "num_experts" in self._fields else "num_local_experts"
        experts = Experts(
            count=self.whole(count),
            chosen=self.whole("num_experts_per_tok"),
            width=self.whole("moe_intermediate_size"),
            normalised=self.flag("norm_topk_prob"),
        )
        if experts.chosen > experts.count:
            raise self._bad("num_experts_per_tok", f"is more than {count}, {experts.count}")
        return experts

    def check(self, config: ModelConfig) -> None:
        """What must hold between fields."""
        if config.heads % config.kv_heads:
            raise self._bad(
                "num_key_value_heads", f"must divide num_attention_heads, {config.heads}"
            )
        if config.head_dim % 2:
            raise self._bad("head_dim", f"must be even, not {config.head_dim}")

    def _type(self) -> object:
        return self._fields.get("model_type")

    def _positive(
        self, fields: Mapping[str, Any], field: str, default: float | None = None
    ) -> float:
        value = fields.get(field, default)
        if value is None:
            raise self._bad(field, "is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self._bad(field, f"must be a number above 0, not {value!r}")
        return float(value)

    def _bad(self, field: str, message: str) -> BadModel:
        return BadModel(self._where, field, message)


def _rope_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rope's own object, under the name of either generation of the format."""
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(fields.get(name), dict):
            rope: dict[str, Any] = fields[name]
            return rope
    return {}
