"""The published implementation gives the same logits and the same tokens for the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink.hw.engine.llama.config import BadModel
from blink.hw.engine.llama.shapes import SHAPES
from tests.hw.engine import batches
from tests.hw.engine.batches import VOCAB, opened, prompt, step

torch = pytest.importorskip("torch", reason=batches.NEEDED)
transformers = pytest.importorskip("transformers", reason=batches.NEEDED)
pytest.importorskip("safetensors", reason=batches.NEEDED)

VARIANTS = {
    "llama": SHAPES["tiny-llama"],
    "llama with biases": SHAPES["tiny-llama"] | {"attention_bias": True, "rope_scaling": None},
    "llama, one key head": SHAPES["tiny-llama"] | {"num_key_value_heads": 1, "head_dim": 24},
    "qwen2, tied": SHAPES["tiny-qwen2"],
    "qwen3": SHAPES["tiny-qwen3"] | {"rope_theta": 5e5},
    "mixture": SHAPES["tiny-qwen3-moe"],
    "mixture, not normalised": SHAPES["tiny-qwen3-moe"] | {"norm_topk_prob": False},
}


def model(fields: dict[str, Any], folder: Path, **saving: Any) -> Any:
    architecture = fields["architectures"][0]
    config = getattr(transformers, architecture.replace("ForCausalLM", "Config"))(**fields)
    torch.manual_seed(1)
    made = getattr(transformers, architecture)(config).eval()
    for weight in made.parameters():
        weight.data.normal_(1.0 if weight.ndim == 1 else 0.0, 0.1)
    made.save_pretrained(folder, **saving)
    return made


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_greedy_tokens_are_the_same(variant: str, tmp_path: Path) -> None:
    theirs = model(VARIANTS[variant], tmp_path)
    engine = opened(str(tmp_path), weights=str(tmp_path))
    words = [int(token) for token in np.random.default_rng(2).integers(0, VOCAB, 13)]
    tables = batches.tables(1)
    shape, given = prompt([words], tables, 16)
    with torch.inference_mode():
        expected = theirs(torch.tensor([words])).logits[:, -1]
        assert torch.allclose(engine.logits(shape, given), expected, rtol=0, atol=1e-5)
        engine.compute(shape, given)
        for _ in range(12):
            drawn = int(given.output[0])
            assert drawn == int(theirs(torch.tensor([words])).logits[0, -1].argmax())
            words.append(drawn)
            shape, given = step([drawn], [len(words) - 1], tables)
            engine.compute(shape, given)


@pytest.mark.parametrize(("dtype", "limit"), [("float16", 0.01), ("bfloat16", 0.06)])
@pytest.mark.parametrize("variant", ["llama", "mixture"])
def test_half_precision_is_near(variant: str, dtype: str, limit: float, tmp_path: Path) -> None:
    model(VARIANTS[variant], tmp_path)
    asked = prompt([[5, 1, 9, 9, 2]], batches.tables(1), 5)
    exact, near = (
        opened(str(tmp_path), weights=str(tmp_path), dtype=each).logits(*asked).float()
        for each in ("float32", dtype)
    )
    assert (near - exact).norm() / exact.norm() < limit


def test_weights_in_several_files_are_found_by_the_index(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    model(SHAPES["tiny-qwen3-moe"], whole)
    model(SHAPES["tiny-qwen3-moe"], parts, max_shard_size="100KB")
    assert len(list(parts.glob("*.safetensors"))) > 1
    asked = prompt([[1, 2, 3]], batches.tables(1), 3)
    expected = opened(str(whole), weights=str(whole)).logits(*asked)
    assert torch.equal(opened(str(parts), weights=str(parts)).logits(*asked), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 3}, r"model\.layers\.2\.\S+: no such tensor"),
        ({"vocab_size": 198}, r"embed_tokens\.weight: has shape \[199, 64\]"),
        ({"attention_bias": True}, r"q_proj\.bias: no such tensor"),
    ],
)
def test_weights_that_do_not_fit_the_config_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model(SHAPES["tiny-llama"], tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(BadModel, match=message):
        opened(str(tmp_path), weights=str(tmp_path))


def test_a_folder_without_weights_or_with_broken_ones_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"has no \*\.safetensors"):
        opened("tiny-llama", weights=str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(BadModel, match="cannot be read"):
        opened("tiny-llama", weights=str(tmp_path))
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(BadModel, match="weight_map"):
        opened("tiny-llama", weights=str(tmp_path))
