"""Builds the host's C++ with g++, once for each state of its sources.

    python -m blink.hw.host.build library|stress|thrash [plain|tsan|asan]      prints where it is

The result lies in ``~/.cache/blink``, named by what went into it: sources, flags and compiler. A
changed source is another name, so nothing stale is ever loaded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from blink.model.errors import BackendUnavailable

HW: Final = Path(__file__).resolve().parent.parent
INCLUDES: Final = (HW / "kernel" / "csrc", HW / "host" / "csrc")
INSTALL: Final = "apt-get install g++   (on Debian and Ubuntu)"

TARGETS: Final = {
    "library": ("host.cpp", ("-fPIC", "-shared")),
    "stress": ("stress.cpp", ()),
    "thrash": ("thrash.cpp", ()),
}
"""What can be built: its source in ``host/csrc``, and the flags that it needs."""

SANITIZERS: Final = {
    "plain": ("-O2",),
    "tsan": ("-O1", "-g", "-fsanitize=thread"),
    "asan": ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
}
_FLAGS: Final = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-pthread")


def build(target: str, sanitizer: str = "plain", defines: tuple[str, ...] = ()) -> Path:
    """The built file; builds it if it is not there yet.

    defines: macros to set (``NAME`` or ``NAME=VALUE``). Raises BackendUnavailable if there is
    no g++.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise BackendUnavailable(f"the host build needs a C++17 compiler, g++: {INSTALL}")
    source, extra = TARGETS[target]
    flags = (*_FLAGS, *SANITIZERS[sanitizer], *extra, *(f"-D{each}" for each in defines))
    name = f"{target}-{sanitizer}-{_digest(compiler, flags)}" + (
        ".so" if "-shared" in extra else ""
    )
    built = cache_folder() / name
    if not built.exists():
        _compile([compiler, *flags, *(f"-I{each}" for each in INCLUDES)], source, built)
    return built


def _compile(command: list[str], source: str, built: Path) -> None:
    built.parent.mkdir(parents=True, exist_ok=True)
    # Under a name of its own, and then moved: two processes may build at once.
    with tempfile.NamedTemporaryFile(dir=built.parent, prefix="building-", delete=False) as file:
        scratch = Path(file.name)
    done = subprocess.run(
        [*command, "-o", str(scratch), str(INCLUDES[1] / source)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        scratch.unlink()
        raise BackendUnavailable(
            f"the host build failed with {command[0]}; it needs C++17 and, for a sanitizer, its "
            f"runtime:\n{done.stderr}"
        )
    scratch.chmod(0o755)
    scratch.replace(built)


def _digest(compiler: str, flags: tuple[str, ...]) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    parts = [version, " ".join(flags).encode()]
    for folder in INCLUDES:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".h", ".cpp"):
                parts += [path.name.encode(), path.read_bytes()]
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).hexdigest()


def cache_folder() -> Path:
    """``~/.cache/blink``, or a folder of this user's among the temporary ones if that is closed."""
    home = Path.home()
    if os.access(home, os.W_OK):
        return home / ".cache" / "blink"
    return Path(tempfile.gettempdir()) / f"blink-{os.getuid()}"


if __name__ == "__main__":
    sys.stdout.write(f"{build(sys.argv[1], (sys.argv[2:] or ['plain'])[0])}\n")
