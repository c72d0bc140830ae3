"""Real neighbours: they take the CPU time that they say, and nothing of them is left over."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blink.hw import neighbours as module
from blink.hw.neighbours import Neighbours, neighbours
from blink.model.errors import BackendUnavailable, BadInput

ROOT = Path(__file__).parents[2]
KINDS = ("memory_thrash", "pbzip2", "ninja")
PBZIP2 = r"""#!/bin/sh
# What pbzip2 is to the one who starts it: it reads a file to its end, which takes a while.
for last in "$@"; do :; done
cat "$last" > /dev/null
"""


def wait_for_cpu(busy: Neighbours, seconds: float) -> None:
    """The test's own time limit ends this where it would not."""
    while busy.cpu_s < seconds:
        assert not busy.ended_early


def wait_for_end(pid: int) -> None:
    """Return as soon as no such process runs."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([watched], [], [], 30)[0], f"process {pid} is left over"
    os.close(watched)


def members(group: int) -> list[int]:
    """The processes of a group that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(int(stat.parent.name))
    return found


@pytest.fixture
def a_pbzip2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pbzip2 for machines that have none."""
    if shutil.which("pbzip2") is None:
        program = tmp_path / "pbzip2"
        program.write_text(PBZIP2)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("host_build", "a_pbzip2")
def test_they_run_and_are_gone(kind: str) -> None:
    with neighbours(kind, 2) as busy:
        wait_for_cpu(busy, 0.05)
        groups = [each.pid for each in busy.processes]
        assert all(os.getpgid(group) == group != os.getpgrp() for group in groups)
        assert all(members(group) for group in groups)
    for group in groups:
        while left := members(group):
            wait_for_end(left[0])
    assert busy.cpu_s >= 0.05 and busy.cores_taken > 0, "what they took is kept"
    assert ("pbzip2" in busy.what) == (kind == "pbzip2")


@pytest.mark.usefixtures("host_build")
def test_they_are_gone_too_when_the_block_fails() -> None:
    def fails() -> None:
        with neighbours("memory_thrash", 1) as busy:
            seen.extend(each.pid for each in busy.processes)
            raise KeyError("ours")

    seen: list[int] = []
    with pytest.raises(KeyError):
        fails()
    assert seen and all(members(group) == [] for group in seen)


STARTER = """
import sys
from blink.hw.neighbours import neighbours
with neighbours({kind!r}, 2) as busy:
    while busy.cpu_s < 0.05:
        pass
    print(*(each.pid for each in busy.processes), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["memory_thrash", "pbzip2"])
@pytest.mark.usefixtures("host_build", "a_pbzip2")
def test_they_end_with_a_parent_that_is_killed(kind: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTER.format(kind=kind)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        groups = [int(pid) for pid in parent.stdout.readline().split()]
        running = [pid for group in groups for pid in members(group)]
        assert len(running) >= len(groups) > 0
        parent.kill()
        while running:  # the last of them may just have started another
            for pid in running:
                wait_for_end(pid)
            running = [pid for group in groups for pid in members(group)]


def test_without_a_compiler_python_does_the_like(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(target: str) -> Path:
        raise BackendUnavailable("no g++")

    monkeypatch.setattr(module, "build", no_compiler)
    with neighbours("memory_thrash", 2) as busy:
        wait_for_cpu(busy, 0.05)
        assert len(busy.processes) == 2
    assert "Python" in busy.what


@pytest.mark.usefixtures("host_build")
def test_neighbours_that_end_by_themselves_are_no_neighbours() -> None:
    def loses_them() -> None:
        with neighbours("memory_thrash", 1) as busy:
            for each in busy.processes:
                each.kill()
                each.wait()

    with pytest.raises(BackendUnavailable, match="ended by themselves"):
        loses_them()


@pytest.mark.parametrize("threads", [0, 100_000])
def test_as_many_as_can_be(threads: int) -> None:
    with pytest.raises(BadInput, match=f"{threads} threads"), neighbours("pbzip2", threads):
        pass
