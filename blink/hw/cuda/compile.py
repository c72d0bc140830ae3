"""Compiles the GPU's code, once for each state of its sources; needs no GPU.

    python -m blink.hw.cuda.compile [nvcc|nvrtc]      prints where the cubin is (`make kernels`)

With nvcc where there is one, else with NVRTC and nvJitLink out of NVIDIA's wheels. Both link
``libcudadevrt``, which launches graphs from the device. The result lies in ``~/.cache/blink``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from blink.hw.host.build import cache_folder
from blink.model.errors import BackendUnavailable

CSRC: Final = Path(__file__).resolve().parent.parent / "kernel" / "csrc"
SOURCES: Final = ("scheduler.cu", "graph.cu", "ops.cu", "bench.cu")
ARCHITECTURE: Final = "sm_90"  # Hopper, the first with device graph launch of this kind measured
INSTALL: Final = "pip install 'blink-twin[hw-cuda]'"
_FLAGS: Final = ("-std=c++17", f"-arch={ARCHITECTURE}", "-rdc=true")


def cubin(compiler: str | None = None) -> Path:
    """The linked GPU code; compiles it if it is not there yet.

    compiler: ``nvcc`` or ``nvrtc``; by default nvcc if there is one. Raises BackendUnavailable if
    there is neither, or if the sources do not compile.
    """
    compiler = compiler or ("nvcc" if shutil.which("nvcc") else "nvrtc")
    make: Callable[[Path], bytes] = {"nvcc": _with_nvcc, "nvrtc": _with_nvrtc}[compiler]
    built = cache_folder() / f"scheduler-{compiler}-{_digest()}.cubin"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as folder:
            scratch = Path(folder) / built.name
            scratch.write_bytes(make(Path(folder)))
            scratch.replace(built)
    return built


def _digest() -> str:
    parts = [" ".join(_FLAGS).encode()]
    for path in sorted(CSRC.rglob("*")):
        if path.suffix in (".h", ".cu"):
            parts += [path.name.encode(), path.read_bytes()]
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).hexdigest()


def _with_nvcc(folder: Path) -> bytes:
    objects = []
    for source in SOURCES:
        objects.append(str(folder / f"{source}.o"))
        _call("nvcc", *_FLAGS, f"-I{CSRC}", "-c", str(CSRC / source), "-o", objects[-1])
    linked = folder / "linked.cubin"
    link = (f"-arch={ARCHITECTURE}", "-dlink", "-cubin", "-lcudadevrt")
    _call("nvcc", *link, *objects, "-o", str(linked))
    return linked.read_bytes()


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackendUnavailable(f"{command[0]} does not compile the kernels:\n{done.stderr}")


# --- without a toolkit -----------------------------------------------------------------------


def _with_nvrtc(folder: Path) -> bytes:
    try:
        from cuda.bindings import nvjitlink, nvrtc
    except ImportError as missing:
        raise BackendUnavailable(f"the kernels need nvcc, or {missing.name}: {INSTALL}") from None
    handle = nvjitlink.create(1, [f"-arch={ARCHITECTURE}"])
    nvjitlink.add_file(handle, nvjitlink.InputType.LIBRARY, str(_device_runtime()))
    for source in SOURCES:
        code = _compile(nvrtc, CSRC / source)
        nvjitlink.add_data(handle, nvjitlink.InputType.CUBIN, code, len(code), source)
    nvjitlink.complete(handle)
    linked = bytearray(nvjitlink.get_linked_cubin_size(handle))
    nvjitlink.get_linked_cubin(handle, linked)
    nvjitlink.destroy(handle)
    return bytes(linked)


def _compile(nvrtc: Any, path: Path) -> bytes:
    def call(name: str, *arguments: Any) -> Any:
        error, *values = getattr(nvrtc, name)(*arguments)
        if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BackendUnavailable(f"NVRTC, {name}: {error.name}: {_log(nvrtc, program)}")
        return values[0] if values else None

    program: Any = None
    text = path.read_bytes()
    program = call("nvrtcCreateProgram", text, path.name.encode(), 0, [], [])
    flags = [flag.encode() for flag in (*_FLAGS, f"-I{CSRC}")]
    call("nvrtcCompileProgram", program, len(flags), flags)
    code = bytearray(call("nvrtcGetCUBINSize", program))
    call("nvrtcGetCUBIN", program, code)
    return bytes(code)


def _log(nvrtc: Any, program: Any) -> str:
    if program is None:
        return ""
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    text = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program, text)
    return text.decode(errors="replace").strip("\0\n")


def _device_runtime() -> Path:
    """``libcudadevrt.a``, of the wheel nvidia-cuda-runtime or of a toolkit."""
    spec = find_spec("nvidia")
    folders = [Path(each) for each in (spec.submodule_search_locations if spec else None) or []]
    folders.append(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")))
    for folder in folders:
        for found in sorted(folder.rglob("libcudadevrt.a")):
            return found
    raise BackendUnavailable(f"the kernels need libcudadevrt.a: {INSTALL}")


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{cubin(*sys.argv[1:2])}\n")
    except BackendUnavailable as missing:
        sys.stderr.write(f"{missing}\n")
        sys.exit(2)
