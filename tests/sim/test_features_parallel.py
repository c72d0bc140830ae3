"""Tensor parallelism in the twin: what is divided, what is added, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from blink.model import hardware, llm
from blink.model.errors import BadInput, ModelDoesNotFit
from blink.model.metrics import Objectives, summarise
from blink.model.parallel import ONE_GPU, TensorParallel
from blink.model.timing import StepTime, causal_pairs, engine, kv_blocks_total
from blink.testing.invariants import violations
from tests.setups import SYSTEMS, run, run_setup, varied
from tests.sim.test_fast_forward import differences

H100, LLAMA_70B = hardware.gpu("H100"), llm.lookup("llama-3-70b")


def times(gpus: int) -> StepTime:
    return StepTime(LLAMA_70B, H100, engine("vllm"), TensorParallel(gpus))


def test_one_gpu_is_no_parallelism() -> None:
    plain = StepTime(LLAMA_70B, H100, engine("vllm"))
    assert np.array_equal(times(1).decode_ns(8, 4000, 50), plain.decode_ns(8, 4000, 50))
    assert times(1).mixed_ns(8, 4000, 512, 9000) == plain.mixed_ns(8, 4000, 512, 9000)
    assert ONE_GPU.latency_ns(LLAMA_70B, H100) == ONE_GPU.token_ns(LLAMA_70B, H100) == 0


def test_the_collectives_of_a_step_are_those_of_the_equation() -> None:
    """Two all-reduces a layer; each GPU moves 2 (N-1)/N of the hidden vectors, 16 bits a value."""
    each_bytes = 2 * 3 / 4 * 8192 * 2
    wire_ns = 160 * each_bytes / (450e9 * 0.81) * 1e9
    found = TensorParallel(4)
    assert found.latency_ns(LLAMA_70B, H100) == 160 * 10_000
    assert found.token_ns(LLAMA_70B, H100) == pytest.approx(wire_ns)


@pytest.mark.parametrize("tokens", [1, 64, 2048])
def test_more_gpus_are_quicker_but_never_so_many_times(tokens: int) -> None:
    pairs = causal_pairs(0, tokens)
    one, two, eight = (times(gpus).prefill_ns(tokens, pairs) for gpus in (1, 2, 8))
    assert one > two > eight > one / 8
    assert two > one / 2


def test_scaling_of_prompts_is_near_the_measured_one() -> None:
    """Splitwise's public measurements (ISCA 2024), Llama-2 70B on H100s, one prompt of 2,048.

    310 ms on 2 GPUs, 201 on 4, 137 on 8. The times themselves are those of an engine of 2023.
    """
    llama = llm.lookup("llama-2-70b")
    predicted = [
        StepTime(llama, H100, engine("vllm"), TensorParallel(gpus)).prefill_ns(
            2048, causal_pairs(0, 2048)
        )
        for gpus in (2, 4, 8)
    ]
    assert predicted[0] / predicted[1] == pytest.approx(310.3 / 200.7, rel=0.1)
    assert predicted[1] / predicted[2] == pytest.approx(200.7 / 136.8, rel=0.1)


def test_a_model_too_large_for_one_gpu_fits_on_four() -> None:
    with pytest.raises(ModelDoesNotFit, match=r"on each of 2 GPUs"):
        kv_blocks_total(hardware.gpu("A100 40GB"), LLAMA_70B, parallel=TensorParallel(2))
    four = kv_blocks_total(H100, LLAMA_70B, parallel=TensorParallel(4))
    eight = kv_blocks_total(H100, LLAMA_70B, parallel=TensorParallel(8))
    assert eight > 2 * four > 0, "weights divide too, so the cache grows more than its GPUs"


def test_more_gpus_than_kv_heads_hold_each_head_repeatedly() -> None:
    model = replace(LLAMA_70B, kv_heads=2)
    assert TensorParallel(8).kv_bytes_per_token(model) == model.kv_bytes_per_token // 2


@pytest.mark.parametrize(
    ("name", "gpus", "message"),
    [
        ("qwen2.5-7b", 8, "28 attention heads"),
        ("phi-4", 3, "40 attention heads"),
        ("phi-4", 4, "10 KV heads"),
    ],
)
def test_what_does_not_divide_is_refused(name: str, gpus: int, message: str) -> None:
    with pytest.raises(BadInput, match=rf"engine.tensor_parallel = {gpus}: .*{message}"):
        TensorParallel(gpus).check(llm.lookup(name))


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_serves_on_two_gpus(system: str) -> None:
    setup = run_setup(system, workload=varied(40, 8.0))
    parallel = replace(setup, parallel=TensorParallel(2))
    one, two = run(setup), run(parallel)
    assert violations(two) == []
    assert differences(two, run(replace(parallel, fast_forward=False))) == []
    none = Objectives()
    assert summarise(two, none)["tpot_ms"]["mean"] < summarise(one, none)["tpot_ms"]["mean"]
    assert one.energy_j and two.energy_j and two.energy_j > one.energy_j


def test_schedulers_on_many_gpus_wait_for_each_other_in_every_step() -> None:
    setup = run_setup(parallel=TensorParallel(2))
    alone = replace(setup, gpu=replace(setup.gpu, peer_signal_ns=0))
    gap_ns = [
        int((each.steps.start_ns - each.steps.launched_ns)[0]) for each in (run(setup), run(alone))
    ]
    assert gap_ns[0] - gap_ns[1] == setup.gpu.peer_signal_ns
