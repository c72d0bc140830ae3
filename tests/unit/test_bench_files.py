"""Results of load generators: read as runs, and refused with one line for what they lack."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink.model.errors import BadInput
from blink.plan.bench_files import DRAWN, Asked
from blink.plan.observations import Observation, observe

ASKED = Asked(gpu="H200")
Document = dict[str, Any]


def summary(**changes: Any) -> Document:
    """What ``vllm bench serve --save-result`` writes; a key that is None is missing."""
    found: Document = {
        "date": "20261130-101112",
        "backend": "openai",
        "model_id": "meta-llama/Meta-Llama-3-8B",
        "num_prompts": 4,
        "request_rate": 2.0,
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": 4.0,
        "completed": 4,
        "failed": 0,
        "total_input_tokens": 400,
        "total_output_tokens": 40,
        "request_throughput": 1.0,
        "output_throughput": 10.0,
        "mean_ttft_ms": 50.0,
        "median_ttft_ms": 45.0,
        "mean_tpot_ms": 8.0,
        "mean_itl_ms": 8.1,
    }
    return {key: value for key, value in (found | changes).items() if value is not None}


def detailed(**changes: Any) -> Document:
    """The same with ``--save-detailed``: four requests, the second sent first, the last failed."""
    lists: Document = {
        "input_lens": [100, 200, 50, 50],
        "output_lens": [3, 2, 1, 0],
        "ttfts": [0.05, 0.06, 0.04, 0.0],
        "itls": [[0.008, 0.010], [0.009], [], []],
        "start_times": [1000.5, 1000.0, 1001.5, 1002.0],
    }
    return summary(**lists, completed=3, failed=1) | changes


def guide(**changes: Any) -> Document:
    request = {
        "prompt_tokens": 100,
        "output_tokens": 11,
        "time_to_first_token_ms": 40.0,
        "inter_token_latency_ms": 7.0,
        "time_per_output_token_ms": 10.0,
        "request_start_time": 1000.0,
        "request_end_time": 1000.11,
    }
    later = request | {"request_start_time": 1001.0, "request_end_time": 1002.0}
    requests = {"successful": [later, request | changes], "incomplete": [{}], "errored": []}
    return {"args": {"backend": {"model": "llama-3-8b"}}, "benchmarks": [{"requests": requests}]}


def read(tmp_path: Path, document: Any, asked: Asked = ASKED) -> list[Observation]:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    return observe([path], asked)


def test_a_detailed_result_has_every_request(tmp_path: Path) -> None:
    [run] = read(tmp_path, detailed())
    workload, times = run.server.workload, run.times
    assert times is not None
    assert workload.arrival_ns.tolist() == [0, 500_000_000, 1_500_000_000]
    assert workload.input_tokens.tolist() == [200, 100, 50]
    assert workload.output_tokens.tolist() == [2, 3, 1]
    assert times.ttft_ms.tolist() == [60.0, 50.0, 40.0]
    assert times.tpot_ms[:2] == pytest.approx([9.0, 9.0]) and np.isnan(times.tpot_ms[2])
    assert run.figures["ttft_ms.mean"] == pytest.approx(50.0)
    assert run.figures["itl_ms.p50"] == pytest.approx(9.0)
    assert run.figures["output_tok_s"] == 10.0
    assert (run.date, run.over_http) == ("2026-11-30", True)
    assert "1 failed requests left out" in run.notes


def test_a_summary_has_means_only(tmp_path: Path) -> None:
    [run] = read(tmp_path, summary())
    assert run.times is None
    assert run.figures == {
        "ttft_ms.mean": 50.0,
        "tpot_ms.mean": 8.0,
        "itl_ms.mean": 8.1,
        "output_tok_s": 10.0,
        "throughput_req_s": 1.0,
    }
    assert run.server.workload.input_tokens.tolist() == [100] * 4
    assert any(note.startswith("SUMMARY") for note in run.notes)
    assert any(note.startswith(DRAWN) for note in run.notes)


def test_arrivals_that_are_not_stated_are_drawn_as_the_generator_draws_them(tmp_path: Path) -> None:
    [run] = read(tmp_path, summary(completed=4000, request_rate=50.0))
    gaps = np.diff(run.server.workload.arrival_ns) / 1e9
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.1)


def test_a_closed_loop_is_one(tmp_path: Path) -> None:
    loop = detailed(request_rate="inf", max_concurrency=2)
    del loop["start_times"]
    [run] = read(tmp_path, loop)
    assert run.server.workload.concurrency == 2
    assert not run.server.workload.arrival_ns.any()


def test_guidellm_calls_tpot_inter_token_latency(tmp_path: Path) -> None:
    [run] = read(tmp_path, guide())
    assert run.figures["tpot_ms.mean"] == pytest.approx(7.0)
    assert run.server.workload.arrival_ns.tolist() == [0, 1_000_000_000]
    assert run.figures["throughput_req_s"] == pytest.approx(1.0)
    assert run.server.llm.name == "llama-3-8b"
    assert "1 incomplete or failed requests left out" in run.notes


def without(*keys: str) -> Callable[[Document], Document]:
    return lambda document: {key: value for key, value in document.items() if key not in keys}


@pytest.mark.parametrize(
    ("document", "asked", "said"),
    [
        (summary(), Asked(), "result.json: does not say its GPU; say which with --gpu"),
        (without("model_id")(summary()), ASKED, "does not say its model; say which with --model"),
        (summary(model_id="my-own"), ASKED, "give its config.json with --model-config"),
        (without("duration")(summary()), ASKED, "result.json: duration: missing"),
        (summary(completed=0), ASKED, "completed: must be greater than or equal to 1"),
        (summary(mean_ttft_ms="fast"), ASKED, "mean_ttft_ms: must be a valid number"),
        (
            without("mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms")(summary()),
            ASKED,
            "states no mean of TTFT, TPOT or ITL",
        ),
        (without("itls")(detailed()), ASKED, "run vllm bench serve with --save-detailed"),
        (detailed(ttfts=[0.1]), ASKED, "input_lens, output_lens, ttfts and itls differ in length"),
        (detailed(start_times=[1.0]), ASKED, "start_times and input_lens differ in length"),
        (detailed(output_lens=[0] * 4), ASKED, "no request of it completed"),
        (summary(max_concurrency=8), ASKED, "max_concurrency and request_rate together"),
        (guide(output_tokens=1.5), ASKED, "output_tokens"),
        (guide(request_start_time=None), ASKED, "benchmarks.0: a request without request_start_"),
        ({"benchmarks": [{"requests": {}}]}, ASKED, "benchmarks.0: no request of it succeeded"),
        ({"benchmarks": []}, ASKED, "benchmarks"),
        ({"answer": 42}, ASKED, "neither a result of vllm bench serve or GuideLLM"),
        ([1, 2], ASKED, "must hold one JSON object, holds a list"),
        ({"kind": "fitted"}, ASKED, "is a fitted profile already"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    tmp_path: Path, document: Any, asked: Asked, said: str
) -> None:
    with pytest.raises(BadInput) as refused:
        read(tmp_path, document, asked)
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert "result.json" in str(refused.value)


def test_many_bad_requests_are_a_few_lines(tmp_path: Path) -> None:
    document = guide(time_to_first_token_ms=None)
    requests = document["benchmarks"][0]["requests"]
    requests["successful"] = requests["successful"][1:] * 500
    with pytest.raises(BadInput) as refused:
        read(tmp_path, document)
    lines = str(refused.value).splitlines()
    assert len(lines) == 6 and lines[-1].endswith("and 495 more such lines")


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(detailed()))
    with pytest.raises(BadInput, match="the same run is in"):
        observe([path, path], ASKED)


def test_a_place_that_is_no_output_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not an output of blink run"):
        observe([tmp_path], ASKED)
    with pytest.raises(BadInput, match="cannot be read"):
        observe([tmp_path / "nothing.json"], ASKED)
