"""The tables of a record as Parquet files, and back, without loss.

Nothing in a file depends on when or where it was written: no time stamp, one codec at its fixed
level, and the metadata says only seed, commit and versions.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from blink.model.record import (
    ABSENT,
    STEP_KINDS,
    DecodeRanges,
    Mark,
    RequestTable,
    RunRecord,
    StepTable,
)
from blink.ring_protocol.states import Outcome

if TYPE_CHECKING:
    import pyarrow as pa

TABLES: Final = {"requests": RequestTable, "steps": StepTable, "decode_ranges": DecodeRanges}
STEP_TOKENS: Final = "step_tokens.parquet"
COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL: Final = 3

_WORDS: Final[Mapping[str, Sequence[str]]] = {
    "outcome": [outcome.name.lower() for outcome in Outcome],
    "kind": STEP_KINDS,
}
"""Columns of small integers that are written as words; the integer is the word's place."""

assert [int(outcome) for outcome in Outcome] == list(range(len(Outcome))), "places are values"


def write_tables(directory: Path, record: RunRecord) -> None:
    """Write requests, steps, decode ranges and marks of ``record`` into ``directory``."""
    metadata = _metadata(record)
    for name, kind in TABLES.items():
        table = getattr(record, name)
        columns = {f.name: _column(f.name, getattr(table, f.name)) for f in fields(kind)}
        _write(directory / f"{name}.parquet", columns, metadata)
    _write(directory / "marks.parquet", _mark_columns(record.marks), metadata)
    if record.step_tokens is not None:
        columns = {"tokens": _column("tokens", record.step_tokens)}
        _write(directory / STEP_TOKENS, columns, metadata)


def read_tables(directory: Path) -> dict[str, Any]:
    """Return what :func:`write_tables` wrote, as arguments of RunRecord."""
    import pyarrow.parquet as pq

    found: dict[str, Any] = {}
    for name, kind in TABLES.items():
        table = pq.read_table(directory / f"{name}.parquet")
        found[name] = kind(**{f.name: _array(f.name, table[f.name]) for f in fields(kind)})
    if (directory / STEP_TOKENS).exists():
        column = pq.read_table(directory / STEP_TOKENS)["tokens"]
        found["step_tokens"] = _array("tokens", column).astype(np.int8)
    rows = pq.read_table(directory / "marks.parquet").to_pylist()
    found["marks"] = [Mark(**{**row, "details": json.loads(row["details"])}) for row in rows]
    return found


def _column(name: str, values: np.ndarray[Any, Any]) -> pa.Array:
    """Turn an array of a record into a column: words for codes, null for what never happened."""
    import pyarrow as pa

    if name in _WORDS:
        return pa.DictionaryArray.from_arrays(pa.array(values, pa.int8()), list(_WORDS[name]))
    return pa.array(values, pa.int64(), mask=values == ABSENT)


def _array(name: str, column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """The inverse of :func:`_column`."""
    if name in _WORDS:
        place = {word: code for code, word in enumerate(_WORDS[name])}
        return np.array([place[word] for word in column.to_pylist()], dtype=np.int8)
    return np.asarray(column.fill_null(ABSENT).to_numpy(), dtype=np.int64)


def _mark_columns(marks: Sequence[Mark]) -> dict[str, pa.Array]:
    import pyarrow as pa

    return {
        "track": pa.array([mark.track for mark in marks], pa.string()),
        "name": pa.array([mark.name for mark in marks], pa.string()),
        "start_ns": pa.array([mark.start_ns for mark in marks], pa.int64()),
        "duration_ns": pa.array([mark.duration_ns for mark in marks], pa.int64()),
        "details": pa.array([json.dumps(mark.details) for mark in marks], pa.string()),
    }


def _metadata(record: RunRecord) -> dict[str, str]:
    import pyarrow as pa

    return {
        "blink.seed": str(record.seed),
        "blink.commit": record.commit,
        "blink.system": record.system,
        "blink.condition": record.condition,
        "version.python": platform.python_version(),
        "version.numpy": np.__version__,
        "version.pyarrow": pa.__version__,
    }


def _write(path: Path, columns: Mapping[str, pa.Array], metadata: Mapping[str, str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(dict(columns)).replace_schema_metadata(dict(metadata))
    pq.write_table(
        table, path, compression=COMPRESSION, compression_level=COMPRESSION_LEVEL, version="2.6"
    )
