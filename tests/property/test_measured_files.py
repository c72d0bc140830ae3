"""Files of measured runs with anything wrong in them: an answer or a refusal, never a crash."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from blink.model.errors import BadInput
from blink.plan.fidelity import compare_files
from blink.plan.measured_files import STAMP_S_MAX

ROW = {
    "input_toks": 100,
    "output_toks": 11,
    "arrival_time": 1000.0,
    "queued_ts": 5.0,
    "first_token_ts": 5.5,
    "last_token_ts": 6.5,
}
META = {
    "model": "llama-3-8b",
    "engine_kwargs": {
        "tensor_parallel_size": 1,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "kv_cache_dtype": "auto",
    },
    "kv_cache": {
        "num_gpu_blocks": 2588,
        "block_size": 16,
        "gpu_memory_utilization": 0.9,
        "enable_prefix_caching": True,
    },
    "hardware": {"device_name": "NVIDIA GeForce RTX 4090"},
}
SUMMARY = {
    "what": "on an H200",
    "load": "temperature 0",
    "conditions": {"noisy": "3 threads of pbzip2"},
    "runs": [
        {
            "model": "llama-3-8b",
            "rate": 2,
            "condition": "noisy",
            "ttft_ms": {"mean": 20.0, "p99": 25.0},
            "tpot_ms": {"mean": 7.0},
            "out_tok_s": 5.0,
            "req_s": 1.0,
            "requests_file": "requests.csv",
        }
    ],
}
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 1 << 70)
    | st.floats(width=64)
    | st.sampled_from(
        [0, 1, -1, 1e300, STAMP_S_MAX, "7", "", "isolated", "pinned_99999", "H100", "x" * 300]
    )
)
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(max_size=3), SCALARS)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in ``document``."""
    children: dict[Any, Any] = document if isinstance(document, dict) else {}
    if isinstance(document, list):
        children = dict(enumerate(document))
    below = [found for key, child in children.items() for found in places(child, (*path, key))]
    return [*([path] if path else []), *below]


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    document = copy.deepcopy(document)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return document


def answers_or_refuses(path: Path) -> None:
    try:
        rows = compare_files([path])
    except BadInput:
        return
    json.dumps(rows, allow_nan=False)
    for row in rows:
        assert row["completed"] == row["requests"]


@given(st.sampled_from(places([ROW, ROW])[1:]).filter(lambda path: len(path) == 2), VALUES)
def test_requests(tmp_path_factory: Any, path: tuple[Any, ...], value: Any) -> None:
    file = tmp_path_factory.mktemp("rows") / "run.jsonl"
    rows = changed([ROW, ROW], path, value)
    file.write_text("\n".join(json.dumps(row) for row in rows))
    file.with_suffix(".meta.json").write_text(json.dumps(META))
    answers_or_refuses(file)


@given(st.sampled_from(places(META)), VALUES)
def test_settings(tmp_path_factory: Any, path: tuple[Any, ...], value: Any) -> None:
    file = tmp_path_factory.mktemp("meta") / "run_RTX4090.jsonl"
    file.write_text("\n".join(json.dumps(ROW) for _ in range(3)))
    file.with_suffix(".meta.json").write_text(json.dumps(changed(META, path, value)))
    answers_or_refuses(file)


@given(st.sampled_from(places(SUMMARY)), VALUES)
def test_summaries(tmp_path_factory: Any, path: tuple[Any, ...], value: Any) -> None:
    file = tmp_path_factory.mktemp("summary") / "summary.json"
    requests = "arrival_s,input_tokens,output_tokens\n0.0,10,3\n0.5,20,1\n"
    (file.parent / "requests.csv").write_text(requests)
    file.write_text(json.dumps(changed(SUMMARY, path, value)))
    answers_or_refuses(file)
