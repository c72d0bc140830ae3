"""Reading measured runs: both formats, what they do not say, and what is wrong with them."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from blink.model.errors import BadInput
from blink.model.interference import QUIET, Neighbour
from blink.plan.measured import read_measured

H200 = Path(str(files("blink.model") / "data" / "measured" / "vllm_h200.json"))
REQUEST = {
    "input_toks": 100,
    "output_toks": 11,
    "arrival_time": 1000.0,
    "queued_ts": 5.0,
    "first_token_ts": 5.5,
    "last_token_ts": 6.5,
}


def requests_file(tmp_path: Path, *changes: dict[str, object], meta: object = None) -> Path:
    path = tmp_path / "server_RTX4090.jsonl"
    path.write_text("\n".join(json.dumps({**REQUEST, **change}) for change in changes))
    settings = {"model": "llama-3-8b"} if meta is None else meta
    path.with_suffix(".meta.json").write_text(json.dumps(settings))
    return path


def test_a_summary_is_one_run_an_entry() -> None:
    runs = read_measured(H200)
    assert len(runs) == 6
    assert {run.gpu.name for run in runs} == {"h200-sxm-141gb"}
    assert all(run.over_http and run.greedy and not run.prefix_caching for run in runs)
    assert [len(run.workload) for run in runs] == [280, 280, 280, 300, 500, 300]


def test_a_condition_names_its_neighbours() -> None:
    found = {run.condition: run.interference for run in read_measured(H200)}
    both = (Neighbour("memory_thrash", 24), Neighbour("pbzip2", 24))
    assert found["isolated"] == QUIET
    assert found["interference48_all16"].neighbours == both
    assert found["interference48_all16"].pinned_cores is None
    assert found["interference48_pinned6"].neighbours == both
    assert found["interference48_pinned6"].pinned_cores == 6


def test_requests_with_stamps_become_figures(tmp_path: Path) -> None:
    later: dict[str, object] = {
        "arrival_time": 1001.0,
        "queued_ts": 6.2,
        "first_token_ts": 7.0,
        "last_token_ts": 9.0,
    }
    run = read_measured(requests_file(tmp_path, later, {}))[0]
    assert run.gpu.name == "rtx-4090" and run.model.name == "llama-3-8b"
    assert not run.over_http
    assert run.workload.arrival_ns.tolist() == [0, 1_000_000_000]
    assert run.figures["ttft_ms"]["mean"] == pytest.approx(750)
    assert run.figures["tpot_ms"]["mean"] == pytest.approx(150)
    assert run.figures["output_tok_s"] == pytest.approx(22 / 4)


def test_the_engines_settings_are_taken(tmp_path: Path) -> None:
    meta = {
        "model": "Qwen/Qwen3-8B",
        "engine_kwargs": {"max_num_seqs": 7, "max_num_batched_tokens": 99},
        "kv_cache": {"num_gpu_blocks": 1234, "block_size": 32, "enable_prefix_caching": False},
        "hardware": {"device_name": "NVIDIA L40S"},
    }
    run = read_measured(requests_file(tmp_path, {}, meta=meta))[0]
    assert (run.batch_max, run.prefill_tokens_max) == (7, 99)
    assert (run.kv_blocks, run.kv_block_tokens, run.prefix_caching) == (1234, 32, False)
    assert run.gpu.name == "l40s" and run.model.name == "qwen3-8b"


def test_a_model_and_gpu_can_be_given(tmp_path: Path) -> None:
    path = requests_file(tmp_path, {}, meta={"model": "someone/new-model"})
    with pytest.raises(BadInput, match="--model-config"):
        read_measured(path)
    config = tmp_path / "config.json"
    shape = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 2}
    config.write_text(json.dumps({**shape, "vocab_size": 1000, "intermediate_size": 3072}))
    run = read_measured(path, model_config=config, gpu="B200")[0]
    assert run.model.layers == 2 and run.gpu.name == "b200-sxm-180gb"


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    path = requests_file(tmp_path, {}, {"queued_ts": "soon"})
    with pytest.raises(BadInput, match=r"2: .*not a measured request"):
        read_measured(path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"runs": 3}', '{"runs": [{}], "what": "H200"}'])
def test_what_is_no_summary_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "summary.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"summary\.json"):
        read_measured(path)


def test_missing_and_multi_gpu_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_measured(tmp_path / "none.jsonl")
    meta = {"model": "llama-3-8b", "engine_kwargs": {"tensor_parallel_size": 2}}
    with pytest.raises(BadInput, match="several GPUs"):
        read_measured(requests_file(tmp_path, {}, meta=meta))
