"""The twin against real servers: the bands that the documentation states."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from blink.plan.fidelity import compare_files, print_fidelity
from tests.shared_files import shared_file

H200 = Path(str(files("blink.model") / "data" / "measured" / "vllm_h200.json"))
RATES = ("tpot_ms.mean", "itl_ms.mean", "output_tok_s", "throughput_req_s")
QUIET_BAND, QUIET_TTFT_BAND, NOISY_BAND = 0.05, 0.15, 0.25
NOISE = 0.03  # of one seed, in runs next to neighbours


@cache
def h200() -> list[dict[str, Any]]:
    return compare_files([H200])


def errors(row: dict[str, Any]) -> dict[str, float]:
    return {name: each["error"] for name, each in row["metrics"].items()}


def assert_quiet(row: dict[str, Any]) -> None:
    found = errors(row)
    for name in RATES:
        assert abs(found.get(name, 0.0)) <= QUIET_BAND, (row["run"], name, found[name])
    assert abs(found["ttft_ms.mean"]) <= QUIET_TTFT_BAND, (row["run"], found)


def test_every_request_of_every_run_completes() -> None:
    assert [row["completed"] for row in h200()] == [280, 280, 280, 300, 500, 300]


def test_quiet_runs_are_within_five_per_cent() -> None:
    quiet = [row for row in h200() if row["condition"] == "isolated"]
    assert len(quiet) == 3
    for row in quiet:
        assert_quiet(row)


def test_runs_next_to_neighbours_are_within_a_quarter() -> None:
    noisy = [row for row in h200() if row["condition"] != "isolated"]
    assert len(noisy) == 3
    for row in noisy:
        for name in (*RATES, "ttft_ms.mean"):
            error = errors(row)[name]
            assert abs(error) <= NOISY_BAND + NOISE, (row["run"], row["condition"], name, error)


@pytest.mark.parametrize("board", ["RTX4090", "RTXPRO6000"])
def test_other_boards_are_predicted_with_the_same_constants(board: str) -> None:
    path = shared_file(f"measured/llmservingsim_vllm_measured_{board}_Llama-3.1-8B.jsonl")
    assert_quiet(compare_files([path])[0])


def test_the_table_prints(capsys: pytest.CaptureFixture[str]) -> None:
    print_fidelity(h200()[:1])
    assert "ttft_ms.mean" in capsys.readouterr().out


def test_prompts_longer_than_a_default_slot_are_no_obstacle(tmp_path: Path) -> None:
    """A file never seen before, of a model and a GPU that were never measured."""
    rows = [
        {
            "input_toks": 20_000,
            "output_toks": 50,
            "arrival_time": 1000.0 + index,
            "queued_ts": 5.0 + index,
            "first_token_ts": 6.0 + index,
            "last_token_ts": 8.0 + index,
        }
        for index in range(5)
    ]
    file = tmp_path / "unseen.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    meta = {
        "model": "Qwen/Qwen3-30B-A3B",
        "engine_kwargs": {"max_num_seqs": 128, "max_num_batched_tokens": 2048},
        "hardware": {"device_name": "NVIDIA A100-SXM4-80GB"},
    }
    (tmp_path / "unseen.meta.json").write_text(json.dumps(meta))
    [row] = compare_files([file])
    assert row["completed"] == row["requests"] == 5
    assert row["metrics"]["ttft_ms.mean"]["measured"] == pytest.approx(1000.0)
