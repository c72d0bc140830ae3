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
    with pytest.raises(BadInput, match=r"jsonl:2: queued_ts: must be a valid number, is 'soon'"):
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


def summary_file(tmp_path: Path, *runs: object, **keys: object) -> Path:
    (tmp_path / "requests.csv").write_text(
        "arrival_s,input_tokens,output_tokens\n0.0,10,3\n0.5,20,1\n"
    )
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({"what": "on an H200", "runs": runs, **keys}))
    return path


RUN = {
    "model": "llama-3-8b",
    "condition": "isolated",
    "rate": 2,
    "ttft_ms": {"mean": 20.0, "p99": 21.0},
    "out_tok_s": 5.0,
    "requests_file": "requests.csv",
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"output_toks": 0}, "output_toks: length 0 is not within 1"),
        ({"output_toks": -3}, "output_toks: length -3 is not within 1"),
        ({"input_toks": 2.5}, 'input_toks: length "2.5" is not a whole number'),
        ({"input_toks": True}, 'input_toks: length "True" is not a whole number'),
        ({"queued_ts": float("nan")}, "queued_ts: must be a finite number, is nan"),
        ({"arrival_time": 1e300}, "arrival_time: must be less than or equal to 4000000000"),
        ({"queued_ts": None}, "queued_ts: must be a valid number, is None"),
        ({"last_token_ts": 5.2}, "are not in this order"),
        ({"first_token_ts": 4.0}, "are not in this order"),
    ],
)
def test_a_request_that_cannot_be_is_refused(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    with pytest.raises(BadInput) as caught:
        read_measured(requests_file(tmp_path, {}, change))
    assert ".jsonl:2: " in str(caught.value) and said in str(caught.value)


def test_stamps_that_are_all_the_same_have_no_rate(tmp_path: Path) -> None:
    same: dict[str, object] = {"first_token_ts": 5.0, "last_token_ts": 5.0}
    with pytest.raises(BadInput, match="all its time stamps are the same"):
        read_measured(requests_file(tmp_path, same, same))


def test_outputs_of_one_token_have_no_tpot(tmp_path: Path) -> None:
    run = read_measured(requests_file(tmp_path, {"output_toks": 1, "last_token_ts": 5.5}))[0]
    assert "tpot_ms" not in run.figures
    assert run.figures["ttft_ms"]["mean"] == pytest.approx(500)


def test_null_is_the_same_as_absent(tmp_path: Path) -> None:
    meta = {"model": "llama-3-8b", "engine_kwargs": None, "kv_cache": None, "hardware": None}
    run = read_measured(requests_file(tmp_path, {}, meta=meta))[0]
    assert (run.gpu.name, run.kv_blocks, run.prefix_caching) == ("rtx-4090", None, True)


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"engine_kwargs": {"max_num_seqs": "many"}}, "engine_kwargs.max_num_seqs"),
        ({"engine_kwargs": {"max_num_seqs": -4}}, "engine_kwargs.max_num_seqs"),
        ({"engine_kwargs": {"tensor_parallel_size": "two"}}, "tensor_parallel_size"),
        ({"engine_kwargs": 3}, "engine_kwargs"),
        ({"engine_kwargs": {"data_parallel_size": 2}}, "several GPUs (data parallel)"),
        ({"engine_kwargs": {"pipeline_parallel_size": 2}}, "several GPUs (pipeline parallel)"),
        ({"engine_kwargs": {"quantization": "awq"}}, 'quantization "awq"'),
        ({"engine_kwargs": {"dtype": "int3"}}, 'unknown dtype "int3"'),
        ({"kv_cache": {"num_gpu_blocks": "x"}}, "kv_cache.num_gpu_blocks"),
        ({"kv_cache": {"block_size": -1}}, "kv_cache.block_size"),
        ({"kv_cache": {"gpu_memory_utilization": 9}}, "kv_cache.gpu_memory_utilization"),
        ({"hardware": "A100"}, "hardware"),
        ({"hardware": {"device_name": "Abacus 3"}}, 'unknown GPU "Abacus 3"'),
        ({"model": "someone/new"}, "--model-config"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, meta: dict[str, object], said: str
) -> None:
    with pytest.raises(BadInput) as caught:
        read_measured(requests_file(tmp_path, {}, meta={"model": "llama-3-8b", **meta}))
    assert "server_RTX4090.meta.json: " in str(caught.value) and said in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rate": "7"}, "runs.1.rate: must be a valid number, is '7'"),
        ({"rate": 0}, "runs.1.rate: must be greater than 0, is 0"),
        ({"ttft_ms": {"mean": "fast"}}, "runs.1.ttft_ms.mean"),
        ({"ttft_ms": None, "out_tok_s": None}, "runs.1: states no figure"),
        ({"out_tok_s": -1}, "runs.1.out_tok_s"),
        ({"requests_file": None}, "runs.1.requests_file"),
        ({"model": "someone/new"}, "runs.1: unknown model"),
        ({"condition": "pinned_0 of 8"}, "runs.1.condition"),
        ({"condition": "noisy48_pinned99"}, "h200-vm has no 99 cores"),
    ],
)
def test_a_run_of_a_summary_that_cannot_be_is_refused(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    with pytest.raises(BadInput) as caught:
        read_measured(summary_file(tmp_path, RUN, {**RUN, **change}))
    assert said in str(caught.value)


def test_a_summary_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="runs: "):
        read_measured(summary_file(tmp_path))


def test_a_byte_order_mark_is_no_obstacle(tmp_path: Path) -> None:
    path = summary_file(tmp_path, RUN)
    path.write_text("\ufeff" + path.read_text(), encoding="utf-8")
    assert len(read_measured(path)) == 1


@pytest.mark.parametrize(
    ("condition", "described", "neighbours", "note"),
    [
        ("isolated", {}, (), ""),
        ("busy", {"busy": "3 threads of pbzip2"}, (Neighbour("pbzip2", 3),), ""),
        ("alone_pinned6", {"alone_pinned6": "nothing else on the machine"}, (), ""),
        ("quiet_pinned6", None, (), "none assumed"),
        ("noisy48", {}, (Neighbour("memory_thrash", 24), Neighbour("pbzip2", 24)), "GUESSED from"),
        ("stress", {"stress": "a lot"}, (), "none assumed"),
        ("stress", None, (), "none assumed"),
    ],
)
def test_what_was_guessed_about_neighbours_is_said(
    tmp_path: Path,
    condition: str,
    described: object,
    neighbours: tuple[Neighbour, ...],
    note: str,
) -> None:
    path = summary_file(tmp_path, {**RUN, "condition": condition}, conditions=described)
    [run] = read_measured(path)
    assert run.interference.neighbours == neighbours
    assert any("GUESSED" in each for each in run.notes) == bool(note)
    assert note in " ".join(run.notes)


def test_settings_of_the_engine_are_taken_or_said(tmp_path: Path) -> None:
    settings = {
        "gpu_memory_utilization": 0.5,
        "block_size": 32,
        "enable_prefix_caching": False,
        "dtype": "float32",
        "enforce_eager": True,
        "trust_remote_code": True,
    }
    meta = {"model": "llama-3-8b", "engine_kwargs": settings}
    run = read_measured(requests_file(tmp_path, {}, meta=meta))[0]
    assert (run.memory_utilization, run.kv_block_tokens, run.prefix_caching) == (0.5, 32, False)
    assert (run.model.bytes_per_weight, run.model.kv_bytes_per_element) == (4.0, 4.0)
    assert [note for note in run.notes if "MODELLED" in note] == ["NOT MODELLED: enforce_eager"]


def test_what_a_summary_says_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="several GPUs"):
        read_measured(summary_file(tmp_path, RUN, what="on 2 H200, tensor parallel 2"))
    [run] = read_measured(summary_file(tmp_path, RUN, what="fp8 weights on an H200"))
    assert 'NOT MODELLED: "fp8"' in run.notes


def test_a_jsonl_without_its_meta_file_says_so(tmp_path: Path) -> None:
    path = requests_file(tmp_path, {})
    path.with_suffix(".meta.json").unlink()
    with pytest.raises(BadInput, match=r"no server_RTX4090\.meta\.json to name its model"):
        read_measured(path)


def test_clocks_that_drift_apart_are_refused(tmp_path: Path) -> None:
    early: dict[str, object] = {"arrival_time": 9_000.0}
    with pytest.raises(BadInput, match="request 0 is queued 8000 s after it arrived"):
        read_measured(requests_file(tmp_path, {}, early))
