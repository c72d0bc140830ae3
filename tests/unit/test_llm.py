"""Model shapes against the published parameter counts and the paper's KV sizes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from blink.model import llm
from blink.model.errors import BadInput, UnknownName

LLAMA_CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3-8b", 8.03),
        ("meta-llama/Llama-3.1-70B", 70.6),
        ("phi-4", 14.66),
        ("Qwen/Qwen3-32B", 32.8),
        ("qwen3-30b-a3b", 30.5),
        ("mistral-7b", 7.25),
        ("mixtral-8x7b", 46.7),
    ],
)
def test_parameters_match_the_published_count(name: str, billions: float) -> None:
    assert llm.lookup(name).parameters / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize(
    ("name", "kib"), [("llama-3-8b", 128), ("qwen3-32b", 256), ("qwen3-30b-a3b", 96)]
)
def test_kv_bytes_per_token(name: str, kib: int) -> None:
    assert llm.lookup(name).kv_bytes_per_token == kib * 1024


def test_a_mixture_activates_what_its_name_says() -> None:
    moe = llm.lookup("Qwen/Qwen3-30B-A3B")
    assert 3.0e9 < moe.parameters_active < 3.4e9
    dense = llm.lookup("llama-3-8b")
    assert dense.parameters_active == dense.parameters - dense.head_weights


def test_a_config_gives_the_catalogue_shape(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_CONFIG))
    known = llm.lookup("llama-3-8b")
    for found in (llm.lookup(str(path)), llm.lookup(str(tmp_path))):
        assert found.parameters == known.parameters
        assert found.kv_bytes_per_token == known.kv_bytes_per_token


def test_experts_of_a_config_are_read() -> None:
    moe = llm.from_hf_config(
        {**LLAMA_CONFIG, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768}
    )
    assert (moe.experts, moe.experts_active, moe.moe_intermediate) == (8, 2, 768)


def test_a_config_without_a_shape_is_refused_by_key() -> None:
    config = {key: value for key, value in LLAMA_CONFIG.items() if key != "vocab_size"}
    with pytest.raises(BadInput, match="vocab_size"):
        llm.from_hf_config(config)


def test_unreadable_files_and_unknown_names_are_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "config.json"
    broken.write_text("{")
    with pytest.raises(BadInput, match="config"):
        llm.lookup(str(broken))
    with pytest.raises(BadInput, match="missing"):
        llm.lookup(str(tmp_path / "missing.json"))
    with pytest.raises(UnknownName, match="qwen3-32b"):
        llm.lookup("qwen3-33b")


def test_quantized_weights_weigh_less() -> None:
    dense = llm.lookup("llama-3-8b")
    assert dense.with_weights_of(1.0).weight_bytes * 2 == dense.weight_bytes


def llama(**changes: object) -> dict[str, object]:
    """A Llama-shaped config."""
    return {
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "num_hidden_layers": 2,
        "vocab_size": 1000,
        "intermediate_size": 3072,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"num_key_value_heads": 3}, "16 attention heads do not share 3"),
        ({"num_local_experts": 2, "num_experts_per_tok": 8}, "num_experts_per_tok is 8, of 2"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two'"),
        ({"head_dim": 1.5}, "head_dim is 1.5"),
        ({"vocab_size": 10**30}, "vocab_size is"),
        ({"torch_dtype": "int3"}, 'unknown torch_dtype "int3"'),
        ({"quantization_config": {"quant_method": "hqq"}}, 'quantization_config "hqq"'),
    ],
)
def test_a_config_that_cannot_be_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        llm.from_hf_config(llama(**changes))


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ({}, 2.0),
        ({"torch_dtype": "float32"}, 2.0),
        ({"torch_dtype": "torch.bfloat16", "num_experts": 0, "num_key_value_heads": None}, 2.0),
        ({"quantization_config": {"quant_method": "fp8"}}, 1.0),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, 0.5),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, 0.5),
    ],
)
def test_weights_are_as_wide_as_the_config_says(changes: dict[str, object], width: float) -> None:
    assert llm.from_hf_config(llama(**changes)).bytes_per_weight == width
