"""An engine of TensorRT: one plan with a profile for each range of shapes, run under capture.

The folder holds ``model.plan``, a serialized engine, and ``blink.json``, which says what it is::

    {"model": "llama-3-8b", "block_tokens": 16, "kv_bytes_per_block": 2097152, "vocabulary": 128256}

The plan's tensors are named as the port's :class:`Inputs`, with their types (int32, but ``seed``
int64, ``temperature`` and ``top_p`` float32), B and T dynamic; and ``kv_cache``, bytes
[blocks, kv_bytes_per_block], an input that the plan writes in place. TensorRT has no paged
attention of its own (its KV cache layer is linear): a plan for this engine has it, and sampling, as
plugins.

**No plan has been built or run here**: TensorRT's builder and runtime are not to be had from PyPI.
The calls are those of the Python bindings 11.4.0 (tensorrt-cu13-bindings), looked up in their own
documentation; the test runs against a stand-in for them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Protocol

from blink.hw.engine.port import GraphShape, Inputs
from blink.model.errors import BackendFailed, BackendUnavailable, BadInput

INSTALL: Final = (
    "pip install tensorrt-cu13   (its libraries come from https://pypi.nvidia.com, not from PyPI)"
)
CACHE: Final = "kv_cache"
TYPES: Final = {
    **dict.fromkeys(("tokens", "lengths", "positions", "block_tables", "top_k", "output"), "INT32"),
    **dict.fromkeys(("temperature", "top_p"), "FLOAT"),
    "seed": "INT64",
    CACHE: "INT8",
}
"""Every tensor of a plan, and its type."""
_MESSAGES_KEPT: Final = 5


class TensorRtFailed(BackendFailed):
    """A call of TensorRT's failed: which, and what its log said last."""


class Device(Protocol):
    """What the engine needs of CUDA; whoever makes the engine has it."""

    @property
    def stream(self) -> int:
        """A ``cudaStream_t`` that is not the default one."""

    def take(self, size: int) -> int:
        """Zeroed memory, 256-byte aligned; the engine never gives it back itself."""

    def wait(self) -> None:
        """Until everything on the stream is done."""

    def capture(self, work: Callable[[], None]) -> Any:
        """A graph of what ``work`` puts on the stream."""

    def free(self) -> None:
        """Give all memory back."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``blink.json``, checked."""

    model: str
    block_tokens: int
    kv_bytes_per_block: int
    vocabulary: int

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """Raises BadInput that names the file and the field."""
        path = folder / "blink.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{path}: {error}; a TensorRT engine needs it beside model.plan"
            ) from None
        kinds = {each.name: str if each.name == "model" else int for each in fields(cls)}
        if not isinstance(found, dict) or set(found) != set(kinds):
            raise BadInput(f"{path}: its fields must be {', '.join(kinds)}")
        for name, kind in kinds.items():
            if type(found[name]) is not kind or (kind is int and found[name] < 1):
                raise BadInput(
                    f"{path}: {name} is {found[name]!r}, must be a positive {kind.__name__}"
                )
        return cls(**found)


class TensorRtEngine:
    """See the module.

    Raises BadInput for a folder that holds no such plan, BackendUnavailable without TensorRT,
    TensorRtFailed for a plan that it does not take.
    """

    name = "tensorrt"

    def __init__(self, folder: Path, device: Device) -> None:
        self._plan = Plan.read(folder)
        self._folder, self._device = folder, device
        self._trt = _library()
        self._log = _log_of(self._trt)
        self._runtime = self._trt.Runtime(self._log)
        serialized = _bytes_of(folder / "model.plan")
        self._engine = self._runtime.deserialize_cuda_engine(serialized)
        self._check(self._engine is not None, "deserialize_cuda_engine")
        self._check_tensors()
        self._contexts: list[Any] = []
        self._cache = self._workspace = 0

    def describe(self) -> dict[str, Any]:
        """See Engine."""
        version = getattr(self._trt, "__version__", "unknown")
        return {"engine": self.name, "model": self._plan.model, "tensorrt": version}

    def bytes_needed(self, blocks_total: int, block_tokens: int) -> int:
        """See Engine. The weights are in GPU memory already: deserializing put them there."""
        self._check_blocks(block_tokens)
        return self._cache_bytes(blocks_total) + int(self._engine.device_memory_size_v2)

    def prepare(self, blocks_total: int, block_tokens: int) -> None:
        """See Engine."""
        self._check_blocks(block_tokens)
        self._cache = self._device.take(self._cache_bytes(blocks_total))
        self._workspace = self._device.take(int(self._engine.device_memory_size_v2))
        self._blocks = blocks_total + 1

    def capture(
        self,
        shape: GraphShape,
        inputs: Inputs,
        before: Callable[[int], None],
        after: Callable[[int], None],
    ) -> Any:
        """See Engine. Raises BadInput for a shape that no profile of the plan holds."""
        assert self._cache, "prepare() comes first"
        context = self._context(shape, inputs)
        stream = self._device.stream
        # Once outside: TensorRT allocates and tunes what it still has to.
        self._check(context.execute_async_v3(stream), "execute_async_v3")
        self._device.wait()

        def work() -> None:
            before(stream)
            self._check(context.execute_async_v3(stream), "execute_async_v3, captured,")
            after(stream)

        return self._device.capture(work)

    def close(self) -> None:
        """See Engine."""
        self._contexts.clear()
        self._device.free()

    # --- the plan ----------------------------------------------------------------------------

    def _check_tensors(self) -> None:
        engine, trt = self._engine, self._trt
        names = {engine.get_tensor_name(each) for each in range(engine.num_io_tensors)}
        if names != set(TYPES):
            lacking, strange = sorted(set(TYPES) - names), sorted(names - set(TYPES))
            raise BadInput(
                f"{self._where()}: its tensors lack {lacking} and have {strange} besides"
            )
        for name, kind in TYPES.items():
            found = engine.get_tensor_dtype(name)
            if found != getattr(trt.DataType, kind):
                raise BadInput(f"{self._where()}: tensor {name} is {found}, must be {kind}")
            if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
                raise BadInput(f"{self._where()}: tensor {name} is not on the device")
            is_output = engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT
            if is_output != (name == "output"):
                raise BadInput(f"{self._where()}: only `output` may be an output, see {name}")

    def _check_blocks(self, block_tokens: int) -> None:
        if block_tokens != self._plan.block_tokens:
            raise BadInput(
                f"{self._where()}: its KV blocks hold {self._plan.block_tokens} tokens, "
                f"engine.kv_block_tokens is {block_tokens}"
            )

    def _context(self, shape: GraphShape, inputs: Inputs) -> Any:
        engine, trt = self._engine, self._trt
        shapes = {name: tuple(getattr(inputs, name).shape) for name in TYPES if name != CACHE}
        shapes[CACHE] = (self._blocks, self._plan.kv_bytes_per_block)
        strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        context = engine.create_execution_context(strategy)
        self._check(context is not None, "create_execution_context")
        profile = self._profile_of(shape, shapes)
        stream = self._device.stream
        chosen = context.set_optimization_profile_async(profile, stream)
        self._check(chosen, "set_optimization_profile_async")
        context.set_device_memory(self._workspace, int(engine.device_memory_size_v2))
        for name in TYPES:
            if name != "output":
                self._check(context.set_input_shape(name, shapes[name]), f"set_input_shape({name})")
            address = self._cache if name == CACHE else _address(getattr(inputs, name))
            self._check(context.set_tensor_address(name, address), f"set_tensor_address({name})")
        unspecified = context.infer_shapes()
        self._check(not unspecified, f"infer_shapes: {unspecified}")
        if tuple(context.get_tensor_shape("output")) != shapes["output"]:
            raise BadInput(f"{self._where()}: `output` is not one token a row, for {shape}")
        self._contexts.append(context)
        return context

    def _profile_of(self, shape: GraphShape, shapes: dict[str, tuple[int, ...]]) -> int:
        """The first profile that holds every input's shape."""
        for profile in range(self._engine.num_optimization_profiles):
            if all(
                _is_within(size, self._engine.get_tensor_profile_shape(name, profile))
                for name, size in shapes.items()
                if name != "output"
            ):
                return profile
        raise BadInput(f"{self._where()}: no optimization profile holds {shape}")

    def _cache_bytes(self, blocks_total: int) -> int:
        return (blocks_total + 1) * self._plan.kv_bytes_per_block

    def _where(self) -> Path:
        return self._folder / "model.plan"

    def _check(self, succeeded: object, call: str) -> None:
        if not succeeded:
            said = "; ".join(self._log.messages) or "its log is empty"
            raise TensorRtFailed(f"TensorRT: {call} failed for {self._where()}: {said}")


def _is_within(size: tuple[int, ...], ranges: Any) -> bool:
    smallest, _, largest = (tuple(each) for each in ranges)
    return len(size) == len(smallest) and all(
        low <= each <= high for low, each, high in zip(smallest, size, largest, strict=True)
    )


def _address(array: Any) -> int:
    return int(array.__cuda_array_interface__["data"][0])


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None


def _library() -> Any:
    try:
        import tensorrt
    except ImportError as missing:
        raise BackendUnavailable(
            f"engine 'tensorrt': {missing}; install it with: {INSTALL}"
        ) from None
    return tensorrt


def _log_of(trt: Any) -> Any:
    """A logger that keeps the last warnings and errors."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.messages: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.Severity.WARNING:
                self.messages = [*self.messages[1 - _MESSAGES_KEPT :], message]

    return Log()
