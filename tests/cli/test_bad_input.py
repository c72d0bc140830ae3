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
