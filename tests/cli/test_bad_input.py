"""What a user gets wrong is answered by a clear message and exit code 2; nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from blink.cli import main

SMOKE = str(Path(__file__).parents[2] / "specs" / "smoke" / "one_request.toml")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command, which must refuse; return what it says on stderr."""
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == "", "no partial output"
    assert "Traceback" not in captured.err
    lines = captured.err.splitlines()
    assert lines and all(line.startswith("blink: ") for line in lines)
    return captured.err


def test_missing_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere.toml" in refused(capsys, "run", "nowhere.toml")


def test_malformed_toml(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    spec = tmp_path / "bad.toml"
    spec.write_text('title = "x"\nquestion = \n')
    assert "bad.toml:2" in refused(capsys, "run", str(spec))


def test_every_error_of_a_scenario_in_one_pass(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    spec = tmp_path / "bad.toml"
    text = Path(SMOKE).read_text(encoding="utf-8")
    spec.write_text(text + "\n[enginee]\nbatch_max = 0\n[slo]\nttft_ms = -1\n")
    said = refused(capsys, "run", str(spec))
    assert "enginee" in said and "engine" in said
    assert "ttft_ms" in said


def test_negative_rate(capsys: pytest.CaptureFixture[str]) -> None:
    demo = str(Path(SMOKE).parents[1] / "bench" / "ten_thousand.toml")
    assert "rate" in refused(capsys, "run", demo, "--set", "workload.rate=-7")


def test_missing_trace(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "run", SMOKE, "--set", "workload.trace=nowhere.csv")
    assert "nowhere.csv" in said


def test_a_bad_line_of_a_trace_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0.0,10,10\n0.5,ten,10\n")
    assert "trace.csv:3" in refused(capsys, "run", SMOKE, "--set", f"workload.trace={trace}")


def test_a_model_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(
        capsys, "run", SMOKE, "--set", "model=qwen3-32b", "--set", "hardware.gpu=RTX 4090"
    )
    assert "larger GPU" in said


def test_a_prompt_longer_than_the_slot(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "run", SMOKE, "--set", "ring.prompt_tokens_max=4")
    assert "prompt_tokens_max" in said


def test_a_capability_that_the_backend_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "run", SMOKE, "--set", "requires=warp_drive")
    assert "warp_drive" in said


def test_an_unknown_name_offers_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "llama-3-8b" in refused(capsys, "run", SMOKE, "--set", "model=lama3-8b")


@pytest.mark.parametrize(
    "setting",
    [
        "step_host_ns=-5",
        "step_host_ns=1.5",
        "overlap=7",
        "jitter_sigma=-0.1",
        "jitter_sigma=500",
        "step_host_ns=1e300",
        "step_host_ns=1e18",
        "threads=0",
        "engine=3",
        "scheduling=x",
        "batch_max=0",
    ],
)
def test_a_control_plane_that_cannot_be(capsys: pytest.CaptureFixture[str], setting: str) -> None:
    said = refused(capsys, "run", SMOKE, "--set", f"control_plane.blink.{setting}")
    assert setting.partition("=")[0] in said


def test_an_unknown_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert "sim" in refused(capsys, "run", SMOKE, "--backend", "simm")


def test_an_output_directory_with_other_things_in_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    assert "thesis.txt" in refused(capsys, "run", SMOKE, "--out", str(tmp_path))
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_nothing_is_written_when_nothing_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    refused(capsys, "run", SMOKE, "--out", str(out), "--set", "ring.prompt_tokens_max=4")
    assert not out.exists()


@pytest.mark.parametrize("seed", ["-1", "x", "1.5"])
def test_a_bad_seed(capsys: pytest.CaptureFixture[str], seed: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["run", SMOKE, "--seed", seed])
    assert stop.value.code == 2
    assert "seed" in capsys.readouterr().err


CSV = "arrival_s,input_tokens,output_tokens\n0.0,10,10\n"
JSONL = '{"arrival_s": 0, "input_tokens": 5, "output_tokens": 5}\n'


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("huge.csv", CSV + "1e300,10,10\n", "huge.csv:3: arrival 1e+300 s is beyond"),
        ("long.csv", CSV + "1e10,10,10\n", "long.csv:3: arrival 1e+10 s is beyond"),
        ("nan.csv", CSV + "nan,10,10\n", 'nan.csv:3: arrival "nan" is not a time'),
        ("grouped.csv", CSV + "0.5,1_000,10\n", 'grouped.csv:3: prompt length "1_000" is not'),
        ("header.csv", '"' + "x" * 200_000 + '"\n', "header.csv:1: field larger than"),
        (
            "digits.jsonl",
            JSONL + JSONL.replace("0,", "9" * 5000 + ",", 1),
            "digits.jsonl:2: not JSON that can be read",
        ),
        ("deep.jsonl", JSONL + '{"a":' * 100_000, "deep.jsonl:2: not JSON that can be read"),
    ],
)
def test_a_trace_that_no_run_can_hold(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    assert said in refused(capsys, "run", SMOKE, "--set", f"workload.trace={tmp_path / name}")


def test_arrivals_scaled_beyond_all_time(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "trace.csv").write_text(CSV + "9.0,10,10\n")
    trace = f"workload.trace={tmp_path / 'trace.csv'}"
    for setting in ("workload.time_scale=1e12", "workload.rate=1e-300"):
        assert "would arrive after" in refused(
            capsys, "run", SMOKE, "--set", trace, "--set", setting
        )


def test_settings_beside_a_trace_are_named_by_their_own_keys(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "trace.csv").write_text(CSV)
    trace = f"workload.trace={tmp_path / 'trace.csv'}"
    wrong = ("slice=5", "rate=-1", "start_s=x", "arrivals=poison")
    settings = [part for each in wrong for part in ("--set", f"workload.{each}")]
    said = refused(capsys, "run", SMOKE, "--set", trace, *settings).splitlines()
    assert len(said) == len(wrong)
    for each in wrong:
        key = f"workload.{each.partition('=')[0]}"
        assert any(f": {key}: " in line for line in said), (key, said)


@pytest.mark.parametrize("place", ["/dev/null/x", "/dev/null", "{tmp}/file/deeper/out"])
def test_a_place_that_cannot_be_written_is_known_before_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    said = refused(capsys, "run", SMOKE, "--out", place.format(tmp=tmp_path))
    assert "[1/1]" not in said and place.format(tmp=tmp_path) in said


@pytest.mark.parametrize(
    "setting",
    [
        "front_end.tokenizer_cores=1000000000",
        "interference.pinned_cores=500",
        "interference.llc_ways=99",
        "engine.batch_max=100000000",
        "control_plane.blink.batch_max=100000000",
        "control_plane.blink.step_host_ns=5000000",
    ],
)
def test_more_than_the_hardware_has(capsys: pytest.CaptureFixture[str], setting: str) -> None:
    assert setting.partition("=")[0] in refused(capsys, "run", SMOKE, "--set", setting)


def test_names_that_no_file_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    name = "x" * 300
    refused(capsys, "run", name)
    refused(capsys, "fidelity", name)
    refused(capsys, "specs", name)
    refused(capsys, "run", SMOKE, "--set", f"model={name}")
    refused(capsys, "run", SMOKE, "--set", f"workload.trace={name}")
    refused(capsys, "run", SMOKE, "--out", name)


def test_an_unknown_figure_of_the_paper_offers_groups(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "reproduce", "--only", "zzz")
    assert "fig3" in said and len(said) < 250


def test_how_to_be_rid_of_requests_that_are_too_long(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "trace.csv").write_text(CSV + "1.0,10,5000\n")
    said = refused(
        capsys,
        "run",
        SMOKE,
        "--set",
        f"workload.trace={tmp_path / 'trace.csv'}",
        "--set",
        "ring.output_tokens_max=100",
    )
    assert "has an output of 5000 tokens" in said
    assert "workload.output_tokens_max" in said and "workload.input_tokens_max" not in said
    said = refused(capsys, "run", SMOKE, "--set", "engine.context_tokens_max=2")
    assert "shorten workload.lengths" in said
