"""Which models are understood, and how those that are not are refused. No torch needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import blink.hw.engine.llama as door
from blink.hw.engine.llama.config import BadModel, Llama3Scaling, load_config, parse_config
from blink.hw.engine.llama.shapes import SHAPES
from blink.model.errors import BackendUnavailable, UnknownName


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama3-8b", 8_030_261_248),
        ("llama3.2-1b", 1_235_814_400),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-30b-a3b", 30_532_122_624),
    ],
)
def test_a_named_shape_has_the_published_number_of_parameters(name: str, parameters: int) -> None:
    assert load_config(name).parameters == parameters


@pytest.mark.parametrize("name", SHAPES)
def test_every_named_shape_is_understood(name: str) -> None:
    config = load_config(name)
    assert config.qkv_width == (config.heads + 2 * config.kv_heads) * config.head_dim


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architectures"),
        ({"architectures": None, "model_type": "gemma3"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "low_freq_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"vocab_size": None}, "vocab_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"head_dim": 15}, "head_dim"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"rope_theta": True}, "rope_theta"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_its_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(BadModel) as refused:
        parse_config(SHAPES["tiny-llama"] | change, "a.json")
    assert refused.value.field == field
    assert str(refused.value).startswith(f"a.json: {field}: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step"),
        ({"num_experts": None}, "num_experts"),
    ],
)
def test_a_mixture_that_cannot_be_computed_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(BadModel, match=field):
        parse_config(SHAPES["tiny-qwen3-moe"] | change)


def test_both_generations_of_the_rope_fields_mean_the_same() -> None:
    fields = SHAPES["tiny-llama"]
    rope = fields["rope_scaling"] | {"rope_theta": 1e6}
    old = parse_config(fields | {"rope_theta": 1e6})
    new = parse_config({**fields, "rope_scaling": None, "rope_parameters": rope})
    assert old == new
    assert new.rope_theta == 1e6
    assert new.rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)


def test_a_folder_is_read_and_a_wrong_name_gets_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPES["tiny-qwen3"]))
    assert load_config(tmp_path) == load_config("tiny-qwen3")
    with pytest.raises(UnknownName, match='did you mean "llama3-8b"'):
        load_config("llama3-8B")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadModel, match="cannot be read"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(BadModel, match="holds no object"):
        load_config(tmp_path)


def test_without_torch_the_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "find_spec", lambda _: None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'blink-twin\[hw-torch\]'"):
        door.open_engine("tiny-llama")
