"""`blink compare`: what changed between two recorded runs, and one line for what is no record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from blink.cli import main

SPECS = Path(__file__).parents[2] / "specs"
DEMO = str(SPECS / "demo.toml")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two outputs: b is a at another load, without two of the systems."""
    place = tmp_path_factory.mktemp("outputs")
    few = ["--json", "--set", "workload.requests=30", "--set"]
    assert main(["run", DEMO, *few, "systems=blink,vllm,trtllm", "--out", str(place / "a")]) == 0
    fast = ["systems=blink,vllm", "--set", "workload.rate=9", "--seed", "2"]
    main(["run", DEMO, *few, *fast, "--out", str(place / "b")])
    return place


def document(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["compare", *map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_figures_keys_and_commits(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, outputs / "a", outputs / "b")
    changed = {row["key"]: (row["a"], row["b"]) for row in found["scenario"]}
    assert changed == {
        "systems": (["blink", "vllm", "trtllm"], ["blink", "vllm"]),
        "workload.rate": (5.53, 9.0),
        "seed": (1, 2),
    }
    assert found["a"]["seeds"] == [1]
    assert found["b"]["commits"] == found["a"]["commits"]
    assert found["only_a"] == ["trtllm isolated", "trtllm interfered"]
    assert found["only_b"] == []
    runs = {run["run"]: {f["figure"]: f for f in run["figures"]} for run in found["runs"]}
    assert list(runs) == [
        *("blink isolated", "blink interfered", "vllm isolated", "vllm interfered"),
    ]
    summaries = [json.loads((outputs / side / "summary.json").read_text()) for side in "ab"]
    figure = runs["vllm interfered"]["ttft_ms.p99"]
    one, other = (
        next(r for r in s["runs"] if (r["system"], r["condition"]) == ("vllm", "interfered"))
        for s in summaries
    )
    assert figure["a"] == one["ttft_ms"]["p99"]
    assert figure["difference"] == pytest.approx(other["ttft_ms"]["p99"] - one["ttft_ms"]["p99"])
    assert figure["ratio"] == pytest.approx(other["ttft_ms"]["p99"] / one["ttft_ms"]["p99"])
    assert figure["unit"] == "ms"
    assert runs["blink isolated"]["host_cpu_on_token_path_s"]["ratio"] is None  # 0 over 0


def test_the_same_output_twice_differs_in_nothing(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, outputs / "a", outputs / "a")
    assert found["scenario"] == []
    figures = [figure for run in found["runs"] for figure in run["figures"]]
    assert all(figure["difference"] in (0, None) for figure in figures)


def test_one_run_has_the_figures_of_its_summary(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run's own directory is enough: its figures are computed from its record."""
    found = document(capsys, outputs / "a" / "vllm-isolated", outputs / "a" / "blink-isolated")
    [run] = found["runs"]
    assert run["run"] == "vllm isolated | blink isolated"
    summary = json.loads((outputs / "a" / "summary.json").read_text())
    by_name = {(r["system"], r["condition"]): r for r in summary["runs"]}
    figures = {figure["figure"]: figure for figure in run["figures"]}
    for side, system in (("a", "vllm"), ("b", "blink")):
        expected = by_name[system, "isolated"]
        assert figures["itl_ms.p99"][side] == expected["itl_ms"]["p99"]
        assert figures["goodput_req_s"][side] == expected["goodput_req_s"]


def test_a_table_for_people(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["compare", str(outputs / "a"), str(outputs / "b")]) == 0
    out = capsys.readouterr().out
    for text in ("workload.rate", "5.53", "TTFT p99", "B / A", "commit", "only in A: trtllm"):
        assert text in out, text


def _break(what: str, place: Path) -> None:
    if what == "no such directory":
        shutil.rmtree(place)
    elif what == "a file":
        shutil.rmtree(place)
        place.write_text("{}")
    elif what == "not what blink run":
        (place / "summary.json").unlink()
    elif what == "not JSON":
        (place / "summary.json").write_text("{")
    elif what == "not of blink-output":
        (place / "summary.json").write_text('{"format": "other/2"}')
    elif what == "holds no run":
        (place / "summary.json").write_text('{"format": "blink-output/1", "runs": null}')
    elif what == "lacks one of":
        (place / "summary.json").write_text('{"format": "blink-output/1", "runs": [{"a": 1}]}')
    elif what == "scenario.resolved.json":
        (place / "scenario.resolved.json").unlink()
    else:
        assert what == "no run is in both"
        summary = json.loads((place / "summary.json").read_text())
        for run in summary["runs"]:
            run["system"] = "another"
        (place / "summary.json").write_text(json.dumps(summary))


@pytest.mark.parametrize(
    "what",
    [
        "no such directory",
        "a file",
        "not what blink run",
        "not JSON",
        "not of blink-output",
        "holds no run",
        "lacks one of",
        "scenario.resolved.json",
        "no run is in both",
    ],
)
def test_what_is_no_record_is_one_line(
    what: str, outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(outputs / "b", broken)
    _break(what, broken)
    capsys.readouterr()
    for sides in ((outputs / "a", broken), (broken, outputs / "a")):
        assert main(["compare", *map(str, sides), "--json"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("blink: ")
        assert err.count("\n") == 1
        assert what in err


@pytest.mark.parametrize("name", ["run.json", "requests.parquet", "steps.parquet"])
def test_a_damaged_run_is_one_line(
    name: str, outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "run"
    shutil.copytree(outputs / "a" / "vllm-isolated", broken)
    (broken / name).write_bytes(b"{}")
    capsys.readouterr()
    assert main(["compare", str(outputs / "a"), str(broken)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert str(broken) in err
