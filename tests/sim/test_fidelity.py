"""The twin against real servers: the bands that the documentation states."""

from __future__ import annotations

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
