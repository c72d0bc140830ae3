"""The twin against real servers: the bands that the documentation states."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from blink.plan.fidelity import compare_files, known_misses, misses, print_fidelity
from tests.shared_files import shared_file

H200 = Path(str(files("blink.model") / "data" / "measured" / "vllm_h200.json"))
BOARDS = ("RTX4090", "RTXPRO6000")


@cache
def h200() -> list[dict[str, Any]]:
    return compare_files([H200])


def missed(rows: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """The errors that are beyond their aims, of means, p99s and rates."""
    return {
        (f"{row['run']}, {row['condition']}", metric): figure["error"]
        for row in rows
        for metric, figure in row["metrics"].items()
        if misses(figure)
    }


def test_every_request_of_every_run_completes() -> None:
    assert [row["completed"] for row in h200()] == [280, 280, 280, 300, 500, 300]


def test_means_and_p99s_are_within_their_aims_but_for_the_misses_on_record() -> None:
    """5 %, TTFT 15 %, next to neighbours 25 %. A new miss fails, and so does a mended one."""
    known = {(each["run"], each["metric"]): each["error"] for each in known_misses()}
    assert missed(h200()) == pytest.approx(known, abs=0.02)


def test_means_miss_no_aim() -> None:
    """What is on record are tails only."""
    assert [metric for _, metric in missed(h200()) if not metric.endswith(".p99")] == []


@pytest.mark.parametrize("board", BOARDS)
def test_other_boards_are_predicted_with_the_same_constants(board: str) -> None:
    path = shared_file(f"measured/llmservingsim_vllm_measured_{board}_Llama-3.1-8B.jsonl")
    rows = compare_files([path])
    assert missed(rows) == {}
    assert {"ttft_ms.p99", "tpot_ms.p99", "output_tok_s"} <= rows[0]["metrics"].keys()


def test_the_table_prints(capsys: pytest.CaptureFixture[str]) -> None:
    print_fidelity(h200()[:1])
    printed = capsys.readouterr().out
    assert "ttft_ms.mean" in printed
    assert "itl_ms.p99 misses 5%. Suspected: " in printed


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
