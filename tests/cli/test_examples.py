"""The scripts in examples/ run on what `blink run --out` writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from blink.cli import main

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "slow_first_tokens.py"


def example(*arguments: str, without_polars: bool = False) -> subprocess.CompletedProcess[str]:
    begin = "import sys, runpy; sys.argv = sys.argv[1:]; "
    hide = "sys.modules['polars'] = None; " if without_polars else ""
    code = f"{begin}{hide}runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_answers_its_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("polars", reason="needs polars: pip install polars")
    out = tmp_path / "out"
    few = ["--set", "workload.requests=60", "--set", "systems=blink,vllm"]
    assert main(["run", str(ROOT / "specs" / "demo.toml"), *few, "--out", str(out), "--json"]) == 0
    capsys.readouterr()
    done = example(str(out))
    assert done.returncode == 0, done.stderr
    for text in ("blink-isolated", "vllm-interfered", "ttft_p99_ms", "before_engine_ms"):
        assert text in done.stdout
    nothing = example(str(tmp_path / "nowhere"))
    assert nothing.returncode == 1
    assert "no requests.parquet below it" in nothing.stderr


def test_without_polars_it_says_what_to_install() -> None:
    done = example("anywhere", without_polars=True)
    assert done.returncode == 1
    assert done.stderr == "this example needs polars: pip install polars\n"
