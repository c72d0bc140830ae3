"""`blink run` as people use it: a table, one JSON document, files that open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blink.cli import main

ROOT = Path(__file__).parents[2]
SMOKE = str(ROOT / "specs" / "smoke" / "one_request.toml")
RUN_KEYS = {
    "system",
    "condition",
    "requests",
    "completed",
    "outcomes",
    "ttft_ms",
    "tpot_ms",
    "itl_ms",
    "e2e_ms",
    "throughput_req_s",
    "output_tok_s",
    "goodput_req_s",
    "energy_mj_per_tok",
    "host_cpu_on_token_path_s",
    "seed",
    "commit",
}


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(list(arguments)) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json_has_the_promised_names(capsys: pytest.CaptureFixture[str]) -> None:
    runs = document(capsys, "run", SMOKE, "--json")["runs"]
    for run in runs:
        assert run.keys() >= RUN_KEYS
        assert run["ttft_ms"].keys() == {"mean", "p50", "p95", "p99", "p999"}
        assert run["outcomes"] == {"stop": run["requests"]}


def test_a_figure_that_does_not_apply_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    one_token = ["--set", "workload.lengths.output_tokens=1"]
    [run, *_] = document(capsys, "run", SMOKE, "--json", *one_token)["runs"]
    assert run["tpot_ms"]["mean"] is None
    assert run["itl_ms"]["p99"] is None


def test_the_seed_is_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    [run, *_] = document(capsys, "run", SMOKE, "--json", "--seed", "41")["runs"]
    assert run["seed"] == 41


def test_the_table_names_the_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", SMOKE]) == 0
    assert "?" in capsys.readouterr().out


def test_out_holds_record_timeline_and_picture(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert main(["run", SMOKE, "--out", str(out)]) == 0
    capsys.readouterr()
    names = {path.name for path in out.rglob("*") if path.is_file()}
    assert names >= {"requests.parquet", "steps.parquet", "timeline.json", "comparison.png"}
    assert (out / "scenario.resolved.json").is_file()


def test_specs_lists_questions(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "specs", str(ROOT / "specs"), "--json")["specs"]
    assert all(spec["question"].endswith("?") for spec in found)


def test_explain_gives_every_constant_a_source(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "explain", SMOKE, "--json")
    constants = [each for entry in found["constants"].values() for each in entry.values()]
    assert len(constants) > 20
    assert all(constant["source"] for constant in constants)


def test_same_seed_same_bytes_under_two_hash_seeds(tmp_path: Path) -> None:
    """DETERMINISM: two processes that hash differently write the same files and text."""
    spec = str(ROOT / "specs" / "demo.toml")
    outputs = []
    for hash_seed in ("1", "2"):
        out = tmp_path / hash_seed / "out"
        out.parent.mkdir()
        command = [sys.executable, "-m", "blink.cli", "run", spec, "--json", "--out", str(out)]
        command += ["--set", "workload.requests=40"]
        done = subprocess.run(
            command,
            capture_output=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        files = {
            path.relative_to(out): path.read_bytes()
            for path in sorted(out.rglob("*"))
            if path.is_file()
        }
        outputs.append((done.stdout, files))
    assert outputs[0][0] == outputs[1][0]
    assert outputs[0][1].keys() == outputs[1][1].keys()
    for name, content in outputs[0][1].items():
        assert content == outputs[1][1][name], f"{name} differs"


def test_outputs_of_several_specs_lie_side_by_side_and_can_be_made_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        assert main(["run", SMOKE, SMOKE, "--out", str(out), "--json"]) == 0
        assert sorted(path.name for path in out.iterdir()) == ["1-one_request", "2-one_request"]
        assert all((path / "summary.json").is_file() for path in out.iterdir())
