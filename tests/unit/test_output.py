"""What is written is whole, reads back without loss, and never eats a stranger's files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from blink.model.errors import BadInput
from blink.model.metrics import Objectives, summarise
from blink.model.record import RunRecord
from blink.plan import output
from blink.plan.output import check_out_dir, read_run, replace_directory, run_directories, write_run
from blink.plan.picture import POINTS_MAX, cumulative, draw_picture
from tests.builders import build_pair, build_record

SCENARIO = {"title": "Zwölf Fragen", "question": "Is it whole?", "workload": {"rate_per_s": 7.0}}


def write(out_dir: Path, records: list[RunRecord]) -> list[dict[str, Any]]:
    summaries = [summarise(record, Objectives(ttft_ms=100)) for record in records]
    write_run(out_dir, records, summaries, SCENARIO)
    return summaries


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def assert_same(one: RunRecord, other: RunRecord) -> None:
    for field in dataclasses.fields(RunRecord):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if not dataclasses.is_dataclass(mine):
            assert mine == theirs, field.name
            continue
        for column in dataclasses.fields(mine):
            left, right = getattr(mine, column.name), getattr(theirs, column.name)
            assert left.dtype == right.dtype, column.name
            assert np.array_equal(left, right), column.name


def test_a_run_reads_back_as_it_was(tmp_path: Path) -> None:
    records = [*build_pair("blink"), build_record(system="vllm", requests=9, unfinished=4)]
    summaries = write(tmp_path / "out", records)
    found = read_run(tmp_path / "out")
    assert found.summaries == summaries
    assert found.scenario == SCENARIO
    for mine, theirs in zip(records, found.records, strict=True):
        assert_same(mine, theirs)


def test_an_empty_run_reads_back(tmp_path: Path) -> None:
    records = [build_record(requests=0)]
    write(tmp_path / "out", records)
    assert_same(read_run(tmp_path / "out").records[0], records[0])


def test_the_same_records_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, build_pair("blink"))
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert one == two
    assert set(one) >= {"summary.json", "scenario.resolved.json", "comparison.png"}
    assert {name.split("/")[1] for name in one if name.startswith("blink-isolated/")} == {
        *("requests.parquet", "steps.parquet", "decode_ranges.parquet", "marks.parquet"),
        *("run.json", "timeline.json"),
    }


def test_others_read_words_and_nulls(tmp_path: Path) -> None:
    write(tmp_path / "out", [build_record(requests=5, unfinished=1)])
    path = tmp_path / "out" / "blink-isolated" / "requests.parquet"
    rows = pq.read_table(path).to_pylist()
    assert [row["outcome"] for row in rows] == ["stop"] * 4 + ["rejected"]
    assert rows[4]["first_token_ns"] is None
    metadata = pq.read_schema(path).metadata
    assert metadata[b"blink.seed"] == b"1"
    assert metadata[b"blink.commit"] == b"0" * 40
    assert b"version.numpy" in metadata


def test_an_earlier_output_is_replaced_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, [build_record(system="vllm")])
    write(out, [build_record(system="blink")])
    assert not (out / "vllm-isolated").exists()
    assert [record.system for record in read_run(out).records] == ["blink"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_new_directory_may_be_deep_and_an_empty_one_may_exist(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    write(deep, [build_record(requests=3)])
    empty = tmp_path / "empty"
    empty.mkdir()
    write(empty, [build_record(requests=3)])
    assert contents(deep) == contents(empty)


def test_files_of_others_are_never_touched(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInput, match=r"thesis\.tex"):
        write(out, [build_record(requests=3)])
    assert contents(tmp_path) == {"out/thesis.tex": b"years of work"}


def test_a_file_added_to_an_earlier_output_is_not_eaten(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, [build_record(requests=3)])
    (out / "blink-isolated" / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"notes\.txt"):
        check_out_dir(out)


def test_a_foreign_summary_does_not_make_an_output(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"files": ["summary.json"]}))
    with pytest.raises(BadInput, match=r"summary\.json"):
        check_out_dir(tmp_path)
    with pytest.raises(BadInput, match="not an output"):
        read_run(tmp_path)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(BadInput, match="is a file"):
        write(tmp_path / "out", [build_record(requests=3)])
    with pytest.raises(BadInput, match="cannot write"):
        write(tmp_path / "out" / "below", [build_record(requests=3)])


def test_the_current_directory_is_not_pulled_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    for directory in (Path(), tmp_path):
        with pytest.raises(BadInput, match="current directory"):
            check_out_dir(directory)


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    write(out, [build_record(requests=3)])
    before = contents(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output, "draw_picture", fail)
    with pytest.raises(BadInput, match="No space left"):
        write(out, build_pair("vllm"))
    assert contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(directory: Path) -> None:
        (directory / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_directory(tmp_path / "out", interrupted)
    assert list(tmp_path.iterdir()) == []


def test_runs_of_the_same_name_are_numbered() -> None:
    records = [build_record(requests=1) for _ in range(2)]
    assert run_directories(records) == ["blink-isolated-1", "blink-isolated-2"]
    assert run_directories(records[:1]) == ["blink-isolated"]


@pytest.mark.parametrize("requests", [0, 1, 3])
def test_a_picture_of_little_is_still_a_picture(tmp_path: Path, requests: int) -> None:
    records = [build_record(requests=requests, system=f"system {i}") for i in range(14)]
    summaries = [summarise(record, Objectives()) for record in records]
    draw_picture(tmp_path / "picture.png", records, summaries, {})
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_thinned_curve_keeps_both_ends() -> None:
    values = np.arange(1.0, 100_001.0)
    x, y = cumulative(values, np.ones(len(values)))
    assert len(x) <= POINTS_MAX + 1
    assert (x[0], x[-1], y[0], y[-1]) == (1.0, 100_000.0, 0.0, 1.0)
    assert np.allclose(y[1:], x[1:] / 100_000)
