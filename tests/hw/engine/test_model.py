"""The decoder over its paged cache: what is in a row's blocks, and nothing else, decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blink.hw.engine.llama import open_engine
from blink.hw.engine.llama.config import BadModel
from blink.hw.engine.port import Engine, GraphShape
from blink.model.errors import BackendUnavailable
from tests.hw.engine import batches
from tests.hw.engine.batches import VOCAB, inputs, opened, prompt, step

torch = pytest.importorskip("torch", reason=batches.NEEDED)
MODELS = ("tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-qwen3-moe")


def text(length: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, length)]


def close(left: Any, right: Any) -> bool:
    return bool(torch.allclose(left, right, rtol=0, atol=2e-5))


@pytest.mark.parametrize("model", MODELS)
def test_a_prompt_and_steps_equal_the_whole_at_once(model: str) -> None:
    words = text(21)
    engine = opened(model)
    tables = batches.tables(1)
    logits = [engine.logits(*prompt([words[:9]], tables, 9))]
    logits += [engine.logits(*step([words[at]], [at], tables)) for at in range(9, 21)]
    for length, found in enumerate(logits, start=9):
        whole = opened(model).logits(*prompt([words[:length]], batches.tables(1, seed=3), length))
        assert close(found, whole)


@pytest.mark.parametrize("model", MODELS)
def test_rows_of_a_ragged_batch_do_not_see_each_other(model: str) -> None:
    texts = [text(5), [], text(17, 1), text(1, 2)]
    tables = np.concatenate([batches.tables(3), np.full((1, batches.TABLE), batches.BLOCKS)])
    tables = tables[[0, 3, 1, 2]]  # the padding row has the scratch block
    engine = opened(model)
    together = engine.logits(*prompt(texts, tables, 20))
    again = engine.logits(*step([3, 0, 4, 5], [5, 0, 17, 1], tables))
    for row in (0, 2, 3):
        alone = opened(model)
        table = batches.tables(1, seed=9)
        words = texts[row]
        assert close(together[row : row + 1], alone.logits(*prompt([words], table, len(words))))
        word = [3, 0, 4, 5][row]
        assert close(again[row : row + 1], alone.logits(*step([word], [len(words)], table)))


@pytest.mark.parametrize("model", MODELS)
def test_garbage_reaches_nobody(model: str) -> None:
    texts, scratch = [text(6), [], text(11, 1)], batches.BLOCKS
    tables = batches.tables(3)
    tables[1] = scratch
    clean, dirty = opened(model), opened(model)
    with torch.inference_mode():
        for cache in dirty._decoder._caches:
            cache.keys.fill_(torch.nan)
            cache.values.fill_(torch.nan)
    shape, given = prompt(texts, tables, 12)
    expected = clean.logits(shape, given)
    for row, words in enumerate(texts):  # beyond what a row needs: no token, no block
        given.tokens[row, len(words) :] = 2**31 - 1
        given.block_tables[row, -(-len(words) // batches.BLOCK_TOKENS) :] = -(2**31)
    given.block_tables[1, 0] = scratch
    found = dirty.logits(shape, given)
    assert close(found[[0, 2]], expected[[0, 2]])
    assert torch.isfinite(found).all()
    shape, given = step([3, 0, 4], [6, 0, 11], tables)
    expected = clean.logits(shape, given)
    given.block_tables[0, 2:] = 2**31 - 1
    given.block_tables[2, 3:] = -5
    given.positions[1] = 12345
    found = dirty.logits(shape, given)
    assert close(found[[0, 2]], expected[[0, 2]])
    assert torch.isfinite(found).all()


def test_a_step_writes_one_place_of_the_rows_own_block() -> None:
    engine = opened("tiny-llama")
    tables = batches.tables(2)
    engine.compute(*prompt([text(6), text(3)], tables, 6))
    before = [cache.keys.clone() for cache in engine._decoder._caches]
    engine.compute(*step([1, 0], [6, 0], tables))
    for cache, old in zip(engine._decoder._caches, before, strict=True):
        changed = (cache.keys != old).any(dim=(1, 3)).nonzero().tolist()
        assert [place for place in changed if place[0] != batches.BLOCKS] == [[tables[0, 1], 2]]


def test_the_token_is_written_to_the_output_and_follows_the_last_valid_one() -> None:
    engine = opened("tiny-llama")
    shape, given = prompt([text(6), text(3)], batches.tables(2), 8)
    engine.compute(shape, given)
    assert given.output.tolist() == engine.logits(shape, given).argmax(-1).tolist()


def test_random_weights_follow_from_the_seed() -> None:
    asked = prompt([text(4)], batches.tables(1), 4)
    first, again, other = (opened("tiny-qwen3", seed=seed).logits(*asked) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("model", MODELS)
def test_bytes_needed_is_what_is_held(model: str) -> None:
    engine = opened(model, dtype="bfloat16")
    held = {}
    for each in (engine._decoder._weights, *engine._decoder._weights.layers):
        for name in each.__slots__:
            value = getattr(each, name)
            if isinstance(value, torch.Tensor):
                held[value.data_ptr()] = value.nbytes
    caches = engine._decoder._caches
    total = sum(held.values()) + sum(each.keys.nbytes + each.values.nbytes for each in caches)
    total += caches[0].rope.nbytes
    assert engine.bytes_needed(batches.BLOCKS, batches.BLOCK_TOKENS) == total


def test_what_a_record_says() -> None:
    engine: Engine = open_engine("tiny-qwen3-moe", seed=4, dtype="float32", device="cpu")
    said = engine.describe()
    assert said["model"] == "tiny-qwen3-moe"
    assert said["weights"] == "random, seed 4"
    assert said["dtype"] == "float32"


def test_a_cpu_captures_nothing() -> None:
    engine = opened("tiny-llama")
    with pytest.raises(BackendUnavailable, match="NVIDIA GPU"):
        engine.capture(GraphShape(False, 2, 1), inputs(2, 1), lambda _: None, lambda _: None)
    engine.close()


@pytest.mark.parametrize(
    ("option", "value"), [("dtype", "int8"), ("device", "tpu"), ("kernels", "cutlass")]
)
def test_a_wrong_option_is_refused(option: str, value: str) -> None:
    with pytest.raises(BadModel, match=f"{option}: {value} is not"):
        opened("tiny-llama", **{option: value})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_engine_says_so() -> None:
    with pytest.raises(BackendUnavailable, match="no NVIDIA GPU"):
        opened("tiny-llama", device="cuda")
