"""A run on disk: written whole or not at all, the same bytes for the same record.

::

    OUT/summary.json              the figures of every run, and the list of files below OUT
    OUT/scenario.resolved.json    the scenario with every default filled in
    OUT/report.html               the report, one file that any browser shows
    OUT/comparison.png            the picture
    OUT/blink-isolated/           one directory a run
        requests.parquet          one row a request
        steps.parquet             one row a GPU step
        decode_ranges.parquet     which decode steps gave tokens to which request
        step_tokens.parquet       tokens of each step of these ranges, with speculation only
        marks.parquet             what is worth seeing on a timeline
        run.json                  everything else that is in the record
        timeline.json             for https://ui.perfetto.dev

In the tables times are int64 nanoseconds, a time that never happened is null, and outcomes and
kinds of step are words.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from blink.model.errors import BadInput
from blink.model.record import RunRecord
from blink.plan.parquet import read_tables, write_tables
from blink.plan.picture import draw_picture
from blink.plan.timeline import write_timeline

FORMAT: Final = "blink-output/1"
SUMMARY: Final = "summary.json"
SCENARIO: Final = "scenario.resolved.json"
PICTURE: Final = "comparison.png"
REPORT: Final = "report.html"
_RUN_FIELDS: Final = (
    "label",
    "system",
    "condition",
    "backend",
    "seed",
    "commit",
    "energy_j",
    "host_cpu_on_token_path_ns",
    "counters",
    "violations",
    "assumptions",
    "scenario",
)


@dataclass(frozen=True, slots=True)
class Output:
    """What :func:`read_run` finds: the arguments of :func:`write_run`."""

    records: list[RunRecord]
    summaries: list[dict[str, Any]]
    scenario: dict[str, Any]


def write_run(
    out_dir: Path,
    records: Sequence[RunRecord],
    summaries: Sequence[Mapping[str, Any]],
    scenario: Mapping[str, Any],
    *,
    report: str | None = None,
) -> None:
    """Write everything about one ``blink run`` below ``out_dir``, which appears complete or not.

    ``summaries[i]`` belongs to ``records[i]``; ``scenario`` is the resolved one, JSON values only.
    ``report`` is a whole page of HTML.
    Raises BadInput if ``out_dir`` holds anything but an earlier output, or cannot be written.
    """

    def fill(directory: Path) -> None:
        names = run_directories(records)
        for record, name in zip(records, names, strict=True):
            _write_record(directory / name, record)
        _write_json(directory / SCENARIO, scenario)
        draw_picture(directory / PICTURE, records, summaries, scenario)
        if report is not None:
            (directory / REPORT).write_text(report, "utf-8")
        document = {"format": FORMAT, "runs": list(summaries), "directories": names}
        document["files"] = sorted([*_files_below(directory), SUMMARY])
        _write_json(directory / SUMMARY, document)

    try:
        replace_directory(out_dir, fill)
    except OSError as error:
        message = f"cannot write to {out_dir}: {error.strerror or error}"
        raise BadInput(message) from error


def read_run(out_dir: Path) -> Output:
    """Read back what :func:`write_run` wrote. Raises BadInput if ``out_dir`` is no such output."""
    document = _manifest(out_dir)
    if document is None:
        raise BadInput(f"{out_dir} is not an output of blink run: no {SUMMARY} of {FORMAT} in it")
    records = [read_record(out_dir / name) for name in document["directories"]]
    scenario = json.loads((out_dir / SCENARIO).read_text("utf-8"))
    return Output(records, document["runs"], scenario)


def check_out_dir(out_dir: Path, own: Collection[str] = ()) -> None:
    """Raise BadInput unless :func:`write_run` may put its output at ``out_dir``.

    ``own``: names of files that another command writes there, and may replace.

    It may where nothing is, into an empty directory, and over an earlier output to which nobody
    has added a file. Call it before a long run: it tries the place by making a directory in it.
    """
    try:
        _check_out_dir(out_dir, own)
    except OSError as error:
        raise BadInput(f"cannot write to {out_dir}: {error.strerror}") from None


def _check_out_dir(out_dir: Path, own: Collection[str]) -> None:
    if not out_dir.exists():
        _try_to_write(next(each for each in out_dir.resolve().parents if each.exists()), out_dir)
        return
    if not out_dir.is_dir():
        raise BadInput(
            f"{out_dir} is a file: name a directory that is new, or of an earlier output"
        )
    if Path.cwd().is_relative_to(out_dir.resolve()):
        raise BadInput(f"{out_dir} is the current directory or around it: name one inside it")
    _try_to_write(out_dir.resolve().parent, out_dir)
    present = _files_below(out_dir)
    if not present:
        return
    document = _manifest(out_dir)
    strange = sorted(set(present) - set(document["files"] if document else own))
    if strange:
        raise BadInput(
            f"{out_dir} holds files that are not from an earlier blink run, {strange[0]} among"
            " them: name a new directory, or empty this one"
        )


def _try_to_write(parent: Path, out_dir: Path) -> None:
    try:
        nest = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.", dir=parent))
    except OSError as error:
        raise BadInput(f"cannot write to {out_dir}: {parent}: {error.strerror}") from None
    nest.rmdir()


def run_directories(records: Sequence[RunRecord]) -> list[str]:
    """Return a directory name for each run: system-condition, numbered where that is not unique."""
    plain = [f"{record.system}-{record.condition}" for record in records]
    if len(set(plain)) == len(plain):
        return plain
    width = len(str(len(plain)))
    return [f"{name}-{index:0{width}d}" for index, name in enumerate(plain, start=1)]


def replace_directory(destination: Path, fill: Callable[[Path], None]) -> None:
    """Let ``fill`` write into a fresh sibling of ``destination``, then move that into its place.

    If ``fill`` or the move fails, ``destination`` is as it was and the sibling is gone.
    """
    check_out_dir(destination)
    destination = destination.resolve()
    destination.parent.mkdir(parents=True, exist_ok=True)
    nest = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    fresh, previous = nest / "fresh", nest / "previous"
    try:
        fresh.mkdir()  # inside, for mkdtemp keeps others out and this need not
        fill(fresh)
        if destination.exists():
            destination.rename(previous)
        try:
            fresh.rename(destination)
        except OSError:
            if previous.exists():
                previous.rename(destination)
            raise
    finally:
        shutil.rmtree(nest, ignore_errors=True)


def _write_record(directory: Path, record: RunRecord) -> None:
    directory.mkdir()
    write_tables(directory, record)
    _write_json(directory / "run.json", {name: getattr(record, name) for name in _RUN_FIELDS})
    write_timeline(directory / "timeline.json", record)


def read_record(directory: Path) -> RunRecord:
    """Read one run's directory. Raises OSError, ValueError, KeyError or TypeError if it is none."""
    fields = json.loads((directory / "run.json").read_text("utf-8"))
    return RunRecord(**fields, **read_tables(directory))


def _manifest(out_dir: Path) -> dict[str, Any] | None:
    """Return the summary of an earlier output, or None if there is none."""
    try:
        document = json.loads((out_dir / SUMMARY).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    known = isinstance(document, dict) and document.get("format") == FORMAT
    return document if known else None


def _files_below(directory: Path) -> list[str]:
    paths = (path for path in directory.rglob("*") if not path.is_dir() or path.is_symlink())
    return sorted(path.relative_to(directory).as_posix() for path in paths)


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", "utf-8")
