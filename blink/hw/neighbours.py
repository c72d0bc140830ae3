"""Real neighbours on this host: what a server shares its CPUs, cache and memory with.

with neighbours("pbzip2", 45) as busy:
...                                 # they run from here on, as many threads as asked
print(busy.what, busy.cores_taken)

``pbzip2`` compresses data of our own, for ever, where pbzip2 is installed. For every other kind,
and where it is not, a bundled program maps memory, touches it, copies it and calls the kernel
(``host/csrc/thrash.cpp``, built with g++; without a compiler processes of Python do the like).

They are a session of their own, ended as a whole when the block is left, and by the kernel if this
process is killed: each asks for that itself (``PR_SET_PDEATHSIG``), and so do those it starts. The
kernel ties that to the *thread* that started them: enter the block where you stay, as on the main
thread.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from blink.hw.host.build import build
from blink.model.errors import BackendUnavailable, BadInput

THREADS_MAX: Final = 1024
PR_SET_PDEATHSIG: Final = 1
COMPRESSED_BYTES: Final = 64 << 20
THRASHED_BYTES: Final = 32 << 20
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Neighbours:
    """Neighbours that run. ``what`` says which program they are.

    cpu_s: CPU time that all of them have taken; final once the block has been left.
    """

    kind: str
    threads: int
    what: str
    processes: list[subprocess.Popen[str]]
    began_s: float = field(default_factory=time.monotonic)
    _taken_s: float | None = None
    _wall_s: float = 0.0

    @property
    def cpu_s(self) -> float:
        """CPU seconds taken so far, by them and by what they started."""
        return _cpu_s(self._groups) if self._taken_s is None else self._taken_s

    @property
    def cores_taken(self) -> float:
        """CPU seconds a second of wall clock."""
        wall_s = time.monotonic() - self.began_s if self._taken_s is None else self._wall_s
        return self.cpu_s / wall_s if wall_s > 0 else 0.0

    @property
    def ended_early(self) -> bool:
        """Whether one of them has ended by itself, which none should."""
        return any(each.poll() is not None for each in self.processes)

    def end(self) -> None:
        """Note what they took, then end them, with everything that they have started."""
        self._taken_s = self.cpu_s
        self._wall_s = time.monotonic() - self.began_s
        for each in self.processes:
            _kill_group(each.pid)
            each.wait()
            if each.stdout is not None:
                each.stdout.close()

    @property
    def _groups(self) -> set[int]:
        return {each.pid for each in self.processes}


@contextmanager
def neighbours(kind: str, threads: int) -> Iterator[Neighbours]:
    """Let ``threads`` threads of ``kind`` run while the block does.

    Raises BadInput for a number of threads that cannot be, BackendUnavailable if they cannot be
    started, or have ended before the block has.
    """
    if not 1 <= threads <= THREADS_MAX:
        raise BadInput(f"{threads} threads of neighbours: from 1 to {THREADS_MAX} can be started")
    what, commands = _commands(kind, threads)
    started = Neighbours(kind, threads, what, [])
    try:
        for command in commands:
            started.processes.append(_start(command))
        for each in started.processes:
            _wait_until_ready(each, what)
        started.began_s = time.monotonic()
        yield started
        if started.ended_early:
            raise BackendUnavailable(f"neighbours ended by themselves: {what}")
    finally:
        started.end()


def _commands(kind: str, threads: int) -> tuple[str, list[list[str]]]:
    """What is started for ``kind``, in words and as commands that take the parent's id first."""
    parent = str(os.getpid())
    itself = [sys.executable, "-m", "blink.hw.neighbours"]
    if kind == "pbzip2" and shutil.which("pbzip2"):
        return f"pbzip2 -p{threads}", [[*itself, "compress", parent, str(threads)]]
    try:
        program = str(build("thrash"))
    except BackendUnavailable:
        command = [*itself, "thrash", parent]
        return f"{threads} processes of Python that thrash memory", [command] * threads
    return f"{threads} threads that thrash memory (built with g++)", [
        [program, parent, str(threads)]
    ]


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
    except OSError as error:
        raise BackendUnavailable(f"cannot start {command[0]}: {error.strerror}") from None


def _wait_until_ready(process: subprocess.Popen[str], what: str) -> None:
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        raise BackendUnavailable(f"neighbours did not start: {what}")


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return  # all of it has ended


def _cpu_s(groups: set[int]) -> float:
    """CPU time of all processes of these groups, and of the children that they have waited for."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(fields[2]) in groups:
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS_PER_S


# --- what runs in the neighbours' own processes ----------------------------------------------


def _die_with(parent: int) -> None:
    """End this process when the thread that started it ends; now, if that has happened."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(1)


def _compress(threads: int) -> None:
    """Compress the same file for ever, half of it random, half of it text-like."""
    draw = random.Random(1)
    me = os.getpid()
    with tempfile.NamedTemporaryFile(prefix="blink-neighbour-") as file:
        block = draw.randbytes(1 << 16) + bytes(draw.choices(b"etaoin shrdlu\n", k=1 << 16))
        file.write(block * (COMPRESSED_BYTES // len(block)))
        file.flush()
        Path(file.name).unlink()  # nothing is left behind by a kill
        source = f"/proc/{me}/fd/{file.fileno()}"
        command = ["pbzip2", "-c", "-k", f"-p{threads}", source]
        _say_ready()
        while True:
            subprocess.run(
                command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=lambda: _die_with(me),
                check=True,
            )


def _thrash() -> None:
    """Map, touch and give back memory for ever, with system calls between."""
    page = b"\1" * mmap.PAGESIZE
    _say_ready()
    while True:
        with mmap.mmap(-1, THRASHED_BYTES) as area:
            for place in range(0, THRASHED_BYTES, mmap.PAGESIZE):
                area[place : place + len(page)] = page
            os.getppid()


def _say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _die_with(int(sys.argv[2]))
    if sys.argv[1] == "compress":
        _compress(int(sys.argv[3]))
    else:
        _thrash()
