"""`blink validate` and `blink bench gpu`, on a machine that is a twin of other constants."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blink import backends
from blink.cli import main
from blink.hw.neighbours import Neighbours
from blink.model import profile
from blink.plan import validate
from tests.metal import FakeMetal
from tests.profiles import MICROBENCHMARKS, spread

ROOT = Path(__file__).parents[2]
POISSON = str(ROOT / "specs" / "hardware" / "poisson.toml")
BOTH = str(ROOT / "specs" / "hardware" / "host_resident.toml")
FEW = ("--set", "workload.requests=30", "--set", "expect={}")


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> FakeMetal:
    made = FakeMetal()
    monkeypatch.setattr(backends, "require_metal", lambda: made)
    return made


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """No neighbour runs in a test of what is said of them."""
    seen: list[tuple[str, int]] = []

    @contextmanager
    def pretend(kind: str, threads: int) -> Iterator[Neighbours]:
        seen.append((kind, threads))
        yield Neighbours(kind, threads, f"a pretended {kind}", [], _taken_s=3.0, _wall_s=2.0)

    monkeypatch.setattr(validate, "neighbours", pretend)
    return seen


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    said = capsys.readouterr()
    assert said.out == "" and "Traceback" not in said.err
    return said.err


# --- validate --------------------------------------------------------------------------------


def test_calibration_finds_the_machine(
    capsys: pytest.CaptureFixture[str], metal: FakeMetal
) -> None:
    found = document(capsys, "validate", POISSON, *FEW)
    [run] = found["runs"]
    figures = run["figures"]
    for name in ("ttft_ms.p50", "tpot_ms.mean", "tpot_ms.p99", "itl_ms.p50", "output_tok_s"):
        row = figures[name]
        assert abs(row["error"]) < 0.01, (name, row)
        assert row["metal"] > 0 and row["catalogue"] > 0
    assert figures["tpot_ms.mean"]["catalogue_error"] < -0.04, "its steps are slower than stated"
    assert abs(figures["decode_step_ms.p50"]["error"]) < 0.01
    assert abs(figures["control_us.p50"]["error"]) < 0.01
    assert run["steps_extrapolated"] <= 5
    assert found["violations"] == []


def test_single_things_are_compared_with_the_catalogue(
    capsys: pytest.CaptureFixture[str], metal: FakeMetal
) -> None:
    rows = {
        row["what"]: row for row in document(capsys, "validate", POISSON, *FEW)["microbenchmarks"]
    }
    assert rows.keys() == profile.MICROBENCHMARKS.keys()
    assert rows["tail_ns"]["metal"] == 4_200
    assert rows["tail_ns"]["error"] == pytest.approx(4_600 / 4_200 - 1)


def test_the_tables_print(capsys: pytest.CaptureFixture[str], metal: FakeMetal) -> None:
    assert main(["validate", POISSON, "--set", "workload.requests=30"]) == 1
    said = capsys.readouterr().out
    assert "NVIDIA H200, driver 580.0" in said
    assert re.search(r"tpot_ms.mean +\d", said)
    assert "metal: completed, isolated: blink at least 120: FAILS (is 30)" in said


def test_a_profile_is_written_that_predicts_its_own_runs(
    capsys: pytest.CaptureFixture[str], metal: FakeMetal, tmp_path: Path
) -> None:
    path = tmp_path / "fake-h200.json"
    found = document(capsys, "validate", POISSON, *FEW, "--seed", "7", "--profile-out", str(path))
    written = profile.read(path)
    assert written.name == found["profile"] == "fake-h200"
    assert written.command.startswith("blink validate ")
    [run] = written.runs
    assert (run.system, run.requests) == ("blink", None)
    assert run.bands["tpot_ms.mean"] == 0.05
    summary = validate.predict(written, run, ROOT)
    twin = found["runs"][0]["figures"]["tpot_ms.mean"]["twin"]
    assert summary["tpot_ms"]["mean"] == twin, "to the last digit"


def test_requests_that_came_at_other_times_are_kept(
    capsys: pytest.CaptureFixture[str], metal: FakeMetal, tmp_path: Path
) -> None:
    metal.late_ns = 2_000_000
    path = tmp_path / "late.json"
    found = document(capsys, "validate", POISSON, *FEW, "--profile-out", str(path))
    [run] = profile.read(path).runs
    assert run.requests is not None and len(run.requests.arrival_ns) == 30
    summary = validate.predict(profile.read(path), run, ROOT)
    assert summary["ttft_ms"]["p99"] == found["runs"][0]["figures"]["ttft_ms.p99"]["twin"]


def test_neighbours_are_for_real_and_their_effect_by_itself(
    capsys: pytest.CaptureFixture[str], metal: FakeMetal, started: list[tuple[str, int]]
) -> None:
    found = document(capsys, "validate", POISSON, *FEW, "--interference")
    assert metal.ran == [
        f"{system} {condition}"
        for system in ("blink", "host_resident")
        for condition in ("isolated", "interfered")
    ]
    assert started == 2 * [("pbzip2", 24), ("memory_thrash", 24)]
    blink, host = found["interference"]
    assert blink["figures"]["tpot_ms.p99"]["change"] == 0
    assert host["figures"]["tpot_ms.p99"]["change"] > 0
    assert blink["neighbours"][0] == {"what": "a pretended pbzip2", "threads": 24, "cores": 1.5}


def test_the_effect_of_neighbours_prints(
    capsys: pytest.CaptureFixture[str], metal: FakeMetal, started: list[tuple[str, int]]
) -> None:
    assert main(["validate", BOTH, *FEW, "--interference"]) == 0
    said = capsys.readouterr().out
    assert "host_resident next to neighbours" in said
    assert "24 threads of neighbours took 1.5 cores: a pretended pbzip2" in said


def test_both_records_are_written(
    capsys: pytest.CaptureFixture[str], metal: FakeMetal, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for _ in range(2):  # and may be written again
        document(capsys, "validate", POISSON, *FEW, "--out", str(out))
    assert sorted(path.name for path in out.iterdir()) == ["metal", "twin"]
    assert (out / "metal" / "summary.json").is_file()


def test_no_machine_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    if "hw" in backends.available():
        return
    for words in (["validate", POISSON], ["bench", "gpu"]):
        assert len(refused(capsys, *words).splitlines()) == 1


def test_systems_that_no_machine_can_be(
    capsys: pytest.CaptureFixture[str], metal: FakeMetal
) -> None:
    said = refused(capsys, "validate", POISSON, "--set", "systems=vllm,sglang")
    assert "runs vllm, sglang; a real machine can be blink or host_resident" in said
    assert metal.ran == []


@pytest.mark.parametrize("name", ["h200.toml", "H 200.json", "nowhere/h200.json"])
def test_a_profile_that_cannot_be_written_is_known_before_the_run(
    capsys: pytest.CaptureFixture[str], metal: FakeMetal, tmp_path: Path, name: str
) -> None:
    said = refused(capsys, "validate", POISSON, "--profile-out", str(tmp_path / name))
    assert str(tmp_path) in said and metal.ran == []


# --- bench -----------------------------------------------------------------------------------


def test_bench_prints_limits_and_facts(
    capsys: pytest.CaptureFixture[str], metal: FakeMetal
) -> None:
    assert main(["bench", "gpu"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"launch_call +2\.05 .* 2\.0-2\.2 us +2\.50", said)


def test_a_limit_that_is_missed_fails(
    capsys: pytest.CaptureFixture[str], metal: FakeMetal, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = {name: spread(ns) for name, ns in MICROBENCHMARKS.items()}
    slow["tail_ns"] = spread(6_100)
    del slow["scan_ns"]
    monkeypatch.setattr(metal, "microbenchmarks", lambda progress: slow)
    assert main(["bench", "gpu"]) == 1
    said = capsys.readouterr().out
    assert "tail_ns is 6.10 us, of 6.00" in said
    assert "scan_ns was not measured" in said
    assert main(["bench", "gpu", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["microbenchmarks"]
    assert {row["what"]: row["holds"] for row in rows}["launch_call_ns"] is True
