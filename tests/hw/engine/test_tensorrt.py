"""The TensorRT engine against a stand-in for the bindings' calls: a stand-in is not a run.

It shows that what is called is called in order and with the right things, and that a plan which is
not for this engine is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blink.hw.engine import tensorrt
from blink.hw.engine.port import GraphShape, Inputs
from blink.hw.engine.tensorrt import TYPES, TensorRtEngine, TensorRtFailed
from blink.model.errors import BackendUnavailable, BadInput

PLAN = {"model": "tiny", "block_tokens": 4, "kv_bytes_per_block": 64, "vocabulary": 99}
SHAPE = GraphShape(False, 2, 1)


class Array:
    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self._kept = np.zeros(shape)
        self.__cuda_array_interface__ = {"data": (self._kept.ctypes.data, False)}


def inputs() -> Inputs:
    rows = ("lengths", "positions", "temperature", "top_k", "top_p", "seed", "output")
    return Inputs(tokens=Array(2, 1), block_tables=Array(2, 8), **{name: Array(2) for name in rows})


class Context:
    def __init__(self, calls: list[Any], says: str | None) -> None:
        self.calls, self.says, self.shapes = calls, says, dict[str, Any]()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            self.calls.append((name, *arguments))
            return name != self.says

        return called

    def infer_shapes(self) -> list[str]:
        return []

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (2,)


class Engine:
    device_memory_size_v2 = 4096
    num_optimization_profiles = 2

    def __init__(self, types: dict[str, str], fails: str | None) -> None:
        self.types, self.fails = types, fails
        self.calls: list[Any] = []
        self.num_io_tensors = len(types)

    def get_tensor_name(self, index: int) -> str:
        return list(self.types)[index]

    def get_tensor_dtype(self, name: str) -> str:
        return self.types[name]

    def get_tensor_location(self, name: str) -> str:
        return "device"

    def get_tensor_mode(self, name: str) -> str:
        return "output" if name == "output" else "input"

    def get_tensor_profile_shape(self, name: str, profile: int) -> Any:
        ranks = {"tokens": 2, "block_tables": 2, "kv_cache": 2}
        largest = (1, 1 << 20)[profile]
        return [(1,) * ranks.get(name, 1)] * 2 + [(largest,) * ranks.get(name, 1)]

    def create_execution_context(self, strategy: str) -> Context:
        self.calls.append(("create_execution_context", strategy))
        return Context(self.calls, self.fails)


class Logger:
    Severity = SimpleNamespace(WARNING=2)


def bindings(engine: Engine | None) -> Any:
    class Runtime:
        def __init__(self, log: Any) -> None:
            self.log = log

        def deserialize_cuda_engine(self, plan: bytes) -> Engine | None:
            if engine is None:
                self.log.log(1, "a plan of another version")
                self.log.log(4, "chatter")
            return engine

    return SimpleNamespace(
        ILogger=Logger,
        Runtime=Runtime,
        DataType=SimpleNamespace(INT32="INT32", INT64="INT64", FLOAT="FLOAT", INT8="INT8"),
        TensorLocation=SimpleNamespace(DEVICE="device"),
        TensorIOMode=SimpleNamespace(OUTPUT="output"),
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED="user"),
        __version__="0",
    )


class Device:
    stream = 7

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.waits = 0

    def take(self, size: int) -> int:
        self.taken.append(size)
        return 256 * len(self.taken)

    def wait(self) -> None:
        self.waits += 1

    def capture(self, work: Callable[[], None]) -> str:
        work()
        return "graph"

    def free(self) -> None:
        self.taken.clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "blink.json").write_text(json.dumps(PLAN))
    (tmp_path / "model.plan").write_bytes(b"plan")
    return tmp_path


def engine_of(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    types: dict[str, str] = TYPES,
    fails: str | None = None,
) -> tuple[TensorRtEngine, Engine, Device]:
    found, device = Engine(types, fails), Device()
    monkeypatch.setattr(tensorrt, "_library", lambda: bindings(found))
    return TensorRtEngine(folder, device), found, device


def test_a_shape_is_bound_warmed_up_and_captured(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    engine, found, device = engine_of(monkeypatch, folder)
    assert engine.bytes_needed(10, 4) == 11 * 64 + 4096
    engine.prepare(10, 4)
    assert device.taken == [11 * 64, 4096]
    given = inputs()
    around: list[str] = []
    graph = engine.capture(
        SHAPE,
        given,
        lambda stream: around.append(f"before {stream}"),
        lambda stream: around.append(f"after {stream}"),
    )
    assert graph == "graph" and around == ["before 7", "after 7"]
    names = [call[0] for call in found.calls]
    assert names[:3] == [
        "create_execution_context",
        "set_optimization_profile_async",
        "set_device_memory",
    ]
    assert ("set_optimization_profile_async", 1, 7) in found.calls, (
        "the profile that is large enough"
    )
    assert ("set_device_memory", 512, 4096) in found.calls
    assert ("set_input_shape", "kv_cache", (11, 64)) in found.calls
    assert ("set_tensor_address", "kv_cache", 256) in found.calls
    address = given.output.__cuda_array_interface__["data"][0]
    assert ("set_tensor_address", "output", address) in found.calls
    assert names[-2:] == ["execute_async_v3", "execute_async_v3"]
    assert device.waits == 1


@pytest.mark.parametrize("call", ["execute_async_v3", "set_input_shape", "set_tensor_address"])
def test_a_call_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, folder: Path, call: str
) -> None:
    engine, _, _ = engine_of(monkeypatch, folder, fails=call)
    engine.prepare(10, 4)
    with pytest.raises(TensorRtFailed, match=f"{call}.* failed for .*model.plan"):
        engine.capture(SHAPE, inputs(), lambda stream: None, lambda stream: None)


def test_a_plan_that_is_none_is_told_with_the_log(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(tensorrt, "_library", lambda: bindings(None))
    with pytest.raises(TensorRtFailed, match=r"model.plan: a plan of another version$"):
        TensorRtEngine(folder, Device())


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({**TYPES, "logits": "FLOAT"}, "have .'logits'. besides"),
        ({name: kind for name, kind in TYPES.items() if name != "seed"}, "lack .'seed'."),
        ({**TYPES, "top_p": "INT32"}, "tensor top_p is INT32, must be FLOAT"),
    ],
)
def test_a_plan_for_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, folder: Path, types: dict[str, str], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        engine_of(monkeypatch, folder, types)


def test_a_shape_that_no_profile_holds_is_refused(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    engine, found, _ = engine_of(monkeypatch, folder)
    found.num_optimization_profiles = 1
    engine.prepare(10, 4)
    with pytest.raises(BadInput, match="no optimization profile holds GraphShape"):
        engine.capture(SHAPE, inputs(), lambda stream: None, lambda stream: None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"block_tokens": 0}, "block_tokens is 0, must be a positive int"),
        ({"model": 3}, "model is 3, must be a positive str"),
        ({"extra": 1}, "its fields must be model, block_tokens"),
    ],
)
def test_a_wrong_description_is_refused(folder: Path, change: dict[str, Any], said: str) -> None:
    (folder / "blink.json").write_text(json.dumps(PLAN | change))
    with pytest.raises(BadInput, match=said):
        TensorRtEngine(folder, Device())


def test_other_blocks_than_the_plans_are_refused(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    engine, _, _ = engine_of(monkeypatch, folder)
    with pytest.raises(BadInput, match=r"hold 4 tokens, engine.kv_block_tokens is 16"):
        engine.prepare(10, 16)


def test_without_tensorrt_the_message_is_how_to_get_it(folder: Path) -> None:
    with pytest.raises(BackendUnavailable, match="pip install tensorrt-cu13"):
        TensorRtEngine(folder, Device())
