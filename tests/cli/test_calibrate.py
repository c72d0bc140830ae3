"""``blink calibrate``: from records to a profile that ``blink run`` loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blink.cli import main
from blink.model.fitted import find
from blink.model.scenario import resolved_toml
from tests.observed import page, write_record

TRUTH = {"engine.memory_efficiency": 0.75}


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Run the command with ``--json``; return what it prints."""
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command, which must refuse with one line; return that."""
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    complaints = [line for line in captured.err.splitlines() if line.startswith("blink: ")]
    assert len(complaints) == 1 and "Traceback" not in captured.err
    return complaints[0]


def test_a_profile_is_written_loaded_and_flags_what_lies_outside(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    record = write_record(tmp_path / "record", page(rate=8, requests=100), TRUTH)
    out, words = tmp_path / "mine.json", ["--fit", "engine.memory_efficiency"]
    made = answered(capsys, "calibrate", str(record), "--out", str(out), *words)
    profile = made["profile"]
    constant = profile["constants"]["engine.memory_efficiency"]
    assert constant["low"] <= 0.75 <= constant["high"] and constant["before"] == 0.92
    assert profile["command"].startswith("blink calibrate ") and len(profile["commit"]) >= 6
    assert len(profile["runs"][0]["sha256"]) == 64
    assert made["cross_validation"] == []
    found = find(str(out))
    assert found is not None and found.model_dump(mode="json", by_alias=True) == profile

    spec = tmp_path / "again.toml"
    for rate, flagged in ((8, False), (40, True)):
        spec.write_text(resolved_toml(page(rate=rate, requests=100)))
        ran = answered(capsys, "run", str(spec), "--set", f"hardware.profile={out}")
        [run] = ran["runs"]
        assert any("req/s: observed" in line for line in run["extrapolated"]) == flagged
        assert bool(run["counters"]["steps_extrapolated"]) == flagged
    assert main(["run", str(spec), "--set", f"hardware.profile={out}"]) == 0
    assert "EXTRAPOLATED beyond profile mine" in " ".join(capsys.readouterr().out.split())


def test_systems_are_not_mixed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("vllm", "sglang"):
        write_record(tmp_path / name, page(rate=8, requests=20, systems=[name]), {})
    both = [str(tmp_path / name) for name in ("vllm", "sglang")]
    assert "runs of several systems (vllm, sglang)" in refused(capsys, "calibrate", *both)
    said = refused(capsys, "calibrate", *both, "--system", "trtllm")
    assert "there are runs of vllm, sglang" in said


def test_what_cannot_be_done_is_said_before_anything_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    record = str(write_record(tmp_path / "record", page(rate=8, requests=20), {}))
    said = refused(capsys, "calibrate", record, "--out", str(tmp_path / "My Profile.json"))
    assert "a profile's file is NAME.json" in said
    said = refused(capsys, "calibrate", record, "--out", str(tmp_path / "no" / "x.json"))
    assert "there is no folder" in said
    said = refused(capsys, "calibrate", record, "--cross-validate")
    assert "needs two runs at least" in said
    said = refused(capsys, "calibrate", record, "--fit", "engine.colour")
    assert "no constant that can be fitted" in said
    assert "nowhere.json: cannot be read" in refused(capsys, "calibrate", "nowhere.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["record"]
