"""A CUDA of host memory, for what surrounds the kernels: set-up, copies, transports, tear-down.

Kernels do nothing but what set-up needs of them, graphs are numbers. What runs on a GPU is tested
on one (tests/hw/cuda); this keeps the code around it from breaking where there is none.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blink.hw.cuda import runtime


class Error(IntEnum):
    cudaSuccess = 0  # noqa: N815 - NVIDIA's name
    cudaErrorNotReady = 600  # noqa: N815


class FakeCuda:
    """``memory`` holds what is allocated; ``calls`` counts what was called."""

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.registered: dict[int, int] = {}
        self.calls: dict[str, int] = {}
        self.kernels: list[str] = []
        self.fails: str | None = None
        self.number = 1000
        self.busy = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith(("cuda", "cu")):
            raise AttributeError(name)
        act = getattr(type(self), f"do_{name}", None)

        def called(*arguments: Any) -> tuple[Any, ...]:
            self.calls[name] = self.calls.get(name, 0) + 1
            if self.fails == name:
                return (Error.cudaErrorNotReady, *[None] * 2)
            found = act(self, *arguments) if act else None
            return (Error.cudaSuccess, *(() if found is None else (found,)))

        return called

    def _new(self) -> int:
        self.number += 1
        return self.number

    def do_cudaMalloc(self, size: int) -> int:  # noqa: N802
        block = c.create_string_buffer(size)
        self.memory[c.addressof(block)] = block
        return c.addressof(block)

    def do_cudaHostAlloc(self, size: int, flags: int) -> int:  # noqa: N802
        return self.do_cudaMalloc(size)

    def do_cudaFree(self, pointer: int) -> None:  # noqa: N802
        del self.memory[pointer]

    do_cudaFreeHost = do_cudaFree  # noqa: N815

    def do_cudaHostRegister(self, pointer: int, size: int, flags: int) -> None:  # noqa: N802
        self.registered[pointer] = size

    def do_cudaHostUnregister(self, pointer: int) -> None:  # noqa: N802
        del self.registered[pointer]

    def do_cudaMemcpyAsync(self, to: int, source: int, size: int, *how: Any) -> None:  # noqa: N802
        c.memmove(to, source, size)

    def do_cuStreamWriteValue64(self, stream: int, to: int, value: int, flags: int) -> None:  # noqa: N802
        c.memmove(to, value.to_bytes(8, "little"), 8)

    def do_cudaMemGetInfo(self) -> tuple[int, int]:  # noqa: N802
        return 10**11, 10**11

    def do_cudaStreamCreateWithFlags(self, flags: int) -> int:  # noqa: N802
        return self._new()

    def do_cudaEventCreateWithFlags(self, flags: int) -> int:  # noqa: N802
        return self._new()

    def do_cudaStreamEndCapture(self, stream: int) -> int:  # noqa: N802
        return self._new()

    def do_cudaGraphInstantiateWithFlags(self, graph: int, flags: int) -> int:  # noqa: N802
        return self._new()

    def cudaStreamQuery(self, stream: int) -> tuple[Error]:  # noqa: N802
        return (Error.cudaErrorNotReady if self.busy else Error.cudaSuccess,)

    def do_cuLaunchKernel(self, kernel: str, *rest: Any) -> None:  # noqa: N802
        self.kernels.append(kernel)
        arguments = (c.c_void_p * 3).from_address(rest[8])
        if kernel == "blink_measure":
            out = c.c_uint64.from_address(c.c_uint64.from_address(arguments[1] or 0).value)
            out.value = 4096


def fake_numpy() -> Any:
    """What the package asks of CuPy."""

    class Array(np.ndarray):
        @property
        def data(self) -> Any:
            return SimpleNamespace(ptr=self.ctypes.data)

    def zeros(size: int, kind: Any) -> Any:
        return np.zeros(size, kind).view(Array)

    return SimpleNamespace(
        zeros=zeros, int32=np.int32, int64=np.int64, float32=np.float32, empty=np.empty
    )


@contextmanager
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Puts the fake in the place of the libraries."""
    made = FakeCuda()
    names = ("cudaStreamNonBlocking", "cudaEventDisableTiming")
    constants = {
        **dict.fromkeys(names, 0),
        "cudaError_t": Error,
        "cudaMemcpyKind": SimpleNamespace(
            cudaMemcpyDefault=0, cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2
        ),
        "cudaStreamCaptureMode": SimpleNamespace(cudaStreamCaptureModeThreadLocal=0),
        "cudaGraphInstantiateFlags": SimpleNamespace(cudaGraphInstantiateFlagDeviceLaunch=4),
    }
    for name, value in constants.items():
        setattr(made, name, value)
    libraries = (fake_numpy(), made, made)
    kernels: dict[str, Any] = {}

    def kernel(name: str) -> Any:
        return kernels.setdefault(name, SimpleNamespace(handle=name))

    for module in [runtime, *_users()]:
        for name, value in {"libraries": lambda: libraries, "kernel": kernel}.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    runtime._kinds.cache_clear()
    yield made
    runtime._kinds.cache_clear()


def _users() -> list[Any]:
    from blink.hw.cuda import graphs, memory, null_engine, scheduler

    return [graphs, memory, null_engine, scheduler]
