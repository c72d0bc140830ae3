"""What only a GPU shows: a captured graph computes the same, and a device can launch it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.hw.engine import batches
from tests.hw.engine.batches import prompt, step

torch = pytest.importorskip("torch", reason=batches.NEEDED)
cuda = pytest.importorskip("cuda.bindings.runtime", reason="pip install 'blink-twin[hw-cuda]'")

from blink.hw.engine.llama import open_engine  # noqa: E402  (needs torch)
from blink.hw.engine.port import Inputs  # noqa: E402

REQUIRED = "hw" in os.environ.get("BLINK_REQUIRE", "").split(",")
pytestmark = [
    pytest.mark.hw,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available() and not REQUIRED, reason="no NVIDIA GPU"),
]

MODELS = ("tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-qwen3-moe")


def on_gpu(given: Inputs) -> Inputs:
    moved = {
        name: torch.as_tensor(getattr(given, name)).cuda() for name in Inputs.__dataclass_fields__
    }
    return Inputs(**moved)


def called(result: tuple[Any, ...]) -> Any:
    assert result[0] == cuda.cudaError_t.cudaSuccess
    return result[1] if len(result) == 2 else result[1:]


@pytest.mark.parametrize("model", MODELS)
def test_a_graph_is_launchable_and_computes_what_compute_does(model: str) -> None:
    engine = open_engine(model)
    engine.prepare(batches.BLOCKS, batches.BLOCK_TOKENS)
    tables = batches.tables(2)
    streams: list[int] = []
    for shape, given in (
        prompt([[1, 2, 3, 4, 5], [6, 7]], tables, 8, temperature=[0, 0.7], top_k=[0, 5]),
        step([3, 4], [5, 2], tables, temperature=[0, 1.3], top_p=[1, 0.9]),
    ):
        inputs = on_gpu(given)
        engine.compute(shape, inputs)
        expected = inputs.output.clone()
        graph = cuda.cudaGraph_t(engine.capture(shape, inputs, streams.append, streams.append))
        flag = cuda.cudaGraphInstantiateFlags.cudaGraphInstantiateFlagDeviceLaunch
        executable = called(cuda.cudaGraphInstantiateWithFlags(graph, flag))
        for _ in range(3):
            inputs.output.fill_(-1)
            torch.cuda.synchronize()
            called(cuda.cudaGraphLaunch(executable, cuda.cudaStream_t(0)))
            torch.cuda.synchronize()
            assert torch.equal(inputs.output, expected)
        called(cuda.cudaGraphExecDestroy(executable))
    assert len(streams) == 4
    assert len(set(streams)) == 1
    engine.close()


def test_what_stands_before_and_after_is_part_of_the_graph() -> None:
    engine = open_engine("tiny-llama")
    engine.prepare(batches.BLOCKS, batches.BLOCK_TOKENS)
    shape, given = step([3, 4], [5, 2], batches.tables(2))
    inputs = on_gpu(given)
    source, sink = inputs.tokens.clone(), inputs.output.clone()
    graph = engine.capture(
        shape, inputs, lambda _: inputs.tokens.copy_(source), lambda _: sink.copy_(inputs.output)
    )
    flag = cuda.cudaGraphInstantiateFlags.cudaGraphInstantiateFlagDeviceLaunch
    executable = called(cuda.cudaGraphInstantiateWithFlags(cuda.cudaGraph_t(graph), flag))
    for token in (7, 150):
        source.fill_(token)
        torch.cuda.synchronize()
        called(cuda.cudaGraphLaunch(executable, cuda.cudaStream_t(0)))
        torch.cuda.synchronize()
        found = sink.clone()
        engine.compute(shape, inputs)
        assert inputs.tokens.tolist() == [[token]] * 2
        assert torch.equal(found, inputs.output)
    called(cuda.cudaGraphExecDestroy(executable))
    engine.close()


def test_a_capture_leaves_the_inputs_as_they_were() -> None:
    engine = open_engine("tiny-llama")
    engine.prepare(batches.BLOCKS, batches.BLOCK_TOKENS)
    shape, given = step([3, 4], [5, 2], batches.tables(2), seed=[7, 8])
    inputs = on_gpu(given)
    before = [getattr(inputs, name).clone() for name in Inputs.__dataclass_fields__]
    engine.capture(shape, inputs, lambda _: None, lambda _: None)
    after = [getattr(inputs, name) for name in Inputs.__dataclass_fields__]
    assert all(torch.equal(left, right) for left, right in zip(before, after, strict=True))
    engine.close()
