"""The step-time model: exact whatever the segmentation, monotone, and near what was measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.model import hardware, llm
from blink.model.errors import ModelDoesNotFit, UnknownName
from blink.model.timing import StepTime, causal_pairs, engine, kv_blocks_total

H200_LLAMA = StepTime(llm.lookup("llama-3-8b"), hardware.gpu("H200"), engine("vllm"))
H200_MOE = StepTime(llm.lookup("qwen3-30b-a3b"), hardware.gpu("H200"), engine("vllm"))
TIMES = st.sampled_from([H200_LLAMA, H200_MOE])


@given(
    times=TIMES,
    batch=st.integers(1, 512),
    context=st.integers(0, 5_000_000),
    parts=st.lists(st.integers(1, 40), min_size=1, max_size=8),
)
def test_a_run_cut_anywhere_gives_the_same_steps(
    times: StepTime, batch: int, context: int, parts: list[int]
) -> None:
    whole = times.decode_ns(batch, context, sum(parts))
    assert whole.dtype == np.int64
    cut, done = [], 0
    for steps in parts:
        cut.append(times.decode_ns(batch, context + done * batch, steps))
        done += steps
    assert np.array_equal(np.concatenate(cut), whole)


@given(times=TIMES, batch=st.integers(1, 512), context=st.integers(0, 5_000_000))
def test_more_work_takes_no_less(times: StepTime, batch: int, context: int) -> None:
    step = int(times.decode_ns(batch, context, 1)[0])
    assert int(times.decode_ns(batch + 1, context, 1)[0]) >= step
    assert int(times.decode_ns(batch, context + 1000, 1)[0]) > step
    assert times.mixed_ns(batch, context, 100, causal_pairs(0, 100)) > step
    assert times.prefill_ns(batch + 1, causal_pairs(0, batch + 1)) >= times.prefill_ns(
        batch, causal_pairs(0, batch)
    )


@given(batch=st.integers(1, 256), context=st.integers(0, 1_000_000))
def test_a_mixed_step_without_prefill_is_a_decode_step(batch: int, context: int) -> None:
    assert H200_LLAMA.mixed_ns(batch, context, 0, 0) == H200_LLAMA.decode_ns(batch, context, 1)[0]


@given(cached=st.integers(0, 5000), first=st.integers(1, 3000), second=st.integers(1, 3000))
def test_chunks_have_the_pairs_of_the_whole(cached: int, first: int, second: int) -> None:
    parts = causal_pairs(cached, first) + causal_pairs(cached + first, second)
    assert parts == causal_pairs(cached, first + second)


@pytest.mark.parametrize("slower", ["H100", "A100", "L40S", "RTX 4090"])
def test_a_faster_gpu_is_never_slower(slower: str) -> None:
    other = StepTime(llm.lookup("llama-3-8b"), hardware.gpu(slower), engine("vllm"))
    for batch in (1, 16, 128):
        assert (
            other.decode_ns(batch, batch * 800, 1)[0]
            > H200_LLAMA.decode_ns(batch, batch * 800, 1)[0]
        )
    assert other.prefill_ns(2048, causal_pairs(0, 2048)) > H200_LLAMA.prefill_ns(
        2048, causal_pairs(0, 2048)
    )


def test_a_decode_step_lies_between_its_reads_and_plain_pytorch() -> None:
    """Measured on an H200: 3.51 ms to read the weights, 6.12 ms for plain PyTorch at batch 16."""
    step_ms = H200_LLAMA.decode_ns(16, 16 * 512, 1)[0] / 1e6
    assert 4.1 < step_ms < 6.12


def test_prefill_is_near_the_measured_graphs() -> None:
    """Measured on an H200 with plain PyTorch: 14.46 ms for 512 tokens, 54.5 ms for 2048."""
    assert H200_LLAMA.prefill_ns(512, causal_pairs(0, 512)) / 14.463e6 == pytest.approx(
        0.9, abs=0.15
    )
    assert H200_LLAMA.prefill_ns(2048, causal_pairs(0, 2048)) / 54.52e6 == pytest.approx(
        0.9, abs=0.15
    )


def test_a_mixture_approaches_all_experts() -> None:
    one, many = (int(H200_MOE.decode_ns(batch, 0, 1)[0]) for batch in (1, 256))
    dense_read_ns = H200_MOE.llm.weight_bytes / 4.8e12 * 1e9
    assert one < dense_read_ns < many


def test_kv_blocks_match_a_measured_server() -> None:
    """vLLM 0.19 reported 2588 blocks of 16 tokens for Llama-3.1-8B on an RTX 4090."""
    blocks = kv_blocks_total(hardware.gpu("RTX 4090"), llm.lookup("llama-3-8b"))
    assert blocks == pytest.approx(2588, rel=0.01)


def test_a_model_that_does_not_fit_says_by_how_much() -> None:
    with pytest.raises(ModelDoesNotFit, match=r"qwen3-32b needs 6\d\.\d GB"):
        kv_blocks_total(hardware.gpu("RTX 4090"), llm.lookup("qwen3-32b"))


def test_engines_carry_provenance() -> None:
    for name in ("vllm", "tensorrt"):
        for key, constant in engine(name).provenance.items():
            assert constant.source, (name, key)
    with pytest.raises(UnknownName):
        engine("onnx")
