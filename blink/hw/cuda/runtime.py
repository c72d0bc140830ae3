"""CUDA as the rest of this package sees it: checked calls, memory, kernels, graphs.

CuPy owns memory and streams; ``cuda.bindings`` does what CuPy does not expose: device-launchable
graphs, stream memory operations, IPC. Everything happens in the device's primary context, which
torch uses too.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from blink.hw.cuda.compile import INSTALL, cubin
from blink.model.errors import BackendFailed, BackendUnavailable


class CudaError(BackendFailed):
    """A call of CUDA's failed: our bug, or a device that is lost. Says which call, and how."""


@cache
def libraries() -> tuple[Any, Any, Any]:
    """``cupy``, ``cuda.bindings.driver`` and ``cuda.bindings.runtime``, with a device behind them.

    Raises BackendUnavailable, with what to do, if a library, the driver or a GPU is missing.
    """
    try:
        import cupy
        from cuda.bindings import driver, runtime
    except ImportError as missing:
        raise BackendUnavailable(
            f"backend 'hw' needs {missing.name}; install it with: {INSTALL}"
        ) from None
    error, count = runtime.cudaGetDeviceCount()
    if error != runtime.cudaError_t.cudaSuccess or count == 0:
        raise BackendUnavailable(
            "backend 'hw' needs an NVIDIA GPU and its driver (580 or newer), and none is visible "
            f"here ({error.name}); see docs/hardware.md"
        )
    major, minor = (
        call("cudaDeviceGetAttribute", getattr(runtime.cudaDeviceAttr, name), 0, runtime=runtime)
        for name in ("cudaDevAttrComputeCapabilityMajor", "cudaDevAttrComputeCapabilityMinor")
    )
    if major != 9:
        raise BackendUnavailable(
            "backend 'hw' is built for Hopper GPUs (compute capability 9.0), this one has "
            f"{major}.{minor}"
        )
    cupy.cuda.Device(0).use()
    cupy.empty(1)
    return cupy, driver, runtime


def call(name: str, *arguments: Any, runtime: Any = None) -> Any:
    """Call the runtime (``cuda...``) or the driver (``cu...``); returns what it returns.

    Raises CudaError.
    """
    module = runtime or libraries()[2 if name.startswith("cuda") else 1]
    error, *values = getattr(module, name)(*arguments)
    if int(error) != 0:
        raise CudaError(f"{name} failed: {error.name} ({int(error)})")
    return values[0] if len(values) == 1 else tuple(values) or None


class GpuBytes:
    """Zeroed GPU memory of its own allocation: it may be exported to another process."""

    def __init__(self, size: int) -> None:
        self.size = max(size, 16)
        self.pointer: int = int(call("cudaMalloc", self.size))
        call("cudaMemset", self.pointer, 0, self.size)

    def free(self) -> None:
        """Give it back. Nothing may use it any more."""
        if self.pointer:
            call("cudaFree", self.pointer)
            self.pointer = 0


class PinnedBytes:
    """Zeroed host memory that the GPU reaches at the same address."""

    def __init__(self, size: int) -> None:
        self.size = max(size, 16)
        self.pointer: int = int(call("cudaHostAlloc", self.size, 0))
        c.memset(self.pointer, 0, self.size)
        self.view = memoryview((c.c_char * self.size).from_address(self.pointer)).cast("B")

    def free(self) -> None:
        """Give it back. Nothing may use it any more."""
        if self.pointer:
            self.view.release()
            call("cudaFreeHost", self.pointer)
            self.pointer = 0


class Stream:
    """A stream that waits for no other, and work on it that is waited for."""

    def __init__(self) -> None:
        runtime = libraries()[2]
        self.handle = call("cudaStreamCreateWithFlags", runtime.cudaStreamNonBlocking)

    def close(self) -> None:
        """Give it back; nothing may be on it any more."""
        call("cudaStreamDestroy", self.handle)

    def wait(self) -> None:
        """Until everything on it is done. Raises CudaError for what went wrong on it."""
        call("cudaStreamSynchronize", self.handle)

    def is_done(self) -> bool:
        """Whether everything on it is done. Raises CudaError for what went wrong on it."""
        runtime = libraries()[2]
        [error] = runtime.cudaStreamQuery(self.handle)
        if error == runtime.cudaError_t.cudaErrorNotReady:
            return False
        if int(error) != 0:
            raise CudaError(f"the GPU stopped: {error.name} ({int(error)})")
        return True

    def copy(self, to: int, source: int, size: int, how: str = "anywhere") -> None:
        """Copy; asynchronous between the GPU and pinned memory. To know the way saves a look-up."""
        call("cudaMemcpyAsync", to, source, size, _kinds()[how], self.handle)

    def launch(self, kernel: Kernel, grid: int, block: int, *arguments: Any) -> None:
        """Launch a kernel; arguments are ctypes values."""
        addresses = (c.c_void_p * len(arguments))(*(c.addressof(each) for each in arguments))
        call(
            "cuLaunchKernel",
            *(kernel.handle, grid, 1, 1, block, 1, 1, 0),
            *(int(self.handle), c.addressof(addresses), 0),
        )


@cache
def _kinds() -> dict[str, Any]:
    kind = libraries()[2].cudaMemcpyKind
    return {
        "anywhere": kind.cudaMemcpyDefault,
        "to the GPU": kind.cudaMemcpyHostToDevice,
        "to the host": kind.cudaMemcpyDeviceToHost,
    }


class Kernel:
    """A kernel of ours, by name."""

    def __init__(self, name: str) -> None:
        self.handle = call("cuModuleGetFunction", module(), name.encode())


@cache
def module() -> Any:
    """The GPU's code, loaded: compiled first, if need be."""
    libraries()
    return call("cuModuleLoadData", cubin().read_bytes())


@cache
def kernel(name: str) -> Kernel:
    """A kernel of the loaded module."""
    return Kernel(name)


# --- graphs ----------------------------------------------------------------------------------


def capture(stream: Stream, work: Callable[[], None]) -> Any:
    """A graph of what ``work`` puts on ``stream``."""
    mode = libraries()[2].cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    call("cudaStreamBeginCapture", stream.handle, mode)
    work()
    return call("cudaStreamEndCapture", stream.handle)


def instantiate(graph: Any, stream: Stream) -> int:
    """Make an executable that the device may launch, upload it, and return its handle."""
    flags = libraries()[2].cudaGraphInstantiateFlags.cudaGraphInstantiateFlagDeviceLaunch
    executable = call("cudaGraphInstantiateWithFlags", graph, flags)
    call("cudaGraphUpload", executable, stream.handle)
    return int(executable)


def free_memory_bytes() -> int:
    """GPU memory that nobody has taken."""
    free, _ = call("cudaMemGetInfo")
    return int(free)


def upload(stream: Stream, to: int, values: Sequence[int], width: int) -> None:
    """Write whole numbers of ``width`` bytes to GPU memory, and wait."""
    data = b"".join(int(value).to_bytes(width, "little") for value in values)
    source = c.create_string_buffer(data, len(data))
    stream.copy(to, c.addressof(source), len(data))
    stream.wait()


def download(stream: Stream, source: int, size: int) -> bytes:
    """Read GPU memory, and wait."""
    to = c.create_string_buffer(size)
    stream.copy(c.addressof(to), source, size)
    stream.wait()
    return to.raw


class CudaDevice:
    """Memory and a stream of its own, for an engine that asks for them (``engine/tensorrt.py``)."""

    def __init__(self) -> None:
        self._stream = Stream()
        self._parts: list[GpuBytes] = []

    @property
    def stream(self) -> int:
        """The ``cudaStream_t``."""
        return int(self._stream.handle)

    def take(self, size: int) -> int:
        """Zeroed GPU memory."""
        self._parts.append(GpuBytes(size))
        return self._parts[-1].pointer

    def wait(self) -> None:
        """Until everything on the stream is done."""
        self._stream.wait()

    def capture(self, work: Callable[[], None]) -> Any:
        """A graph of what ``work`` puts on the stream."""
        return capture(self._stream, work)

    def free(self) -> None:
        """Give all memory back."""
        for part in self._parts:
            part.free()
        self._parts.clear()
