"""Reads trace files as they are published, and recognises which is which.

======================  ==========================================================================
Azure CSV               TIMESTAMP (a date and time), ContextTokens, GeneratedTokens
Mooncake JSONL          timestamp (ms), input_length, output_length, hash_ids if there are any
JSONL with lengths      vLLM's and guidellm's names, with arrivals in seconds or without
CSV                     arrival_s, input_tokens, output_tokens, or the names of `COLUMNS`
======================  ==========================================================================

Times that are dates or seconds since 1970 count from the trace's first request; others are kept.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from blink.model.errors import TraceError, suggestion
from blink.model.workload.timestamps import SECONDS, TimeUnit, date_ns

Int64Array = npt.NDArray[np.int64]

TOKENS_MAX: Final = (1 << 24) - 1
MOONCAKE_HASH_TOKENS: Final = 512
"""Prompt tokens of one of Mooncake's `hash_ids` (Qin et al., Mooncake, FAST 2025, its traces)."""
TIME_MAX_NS: Final = 1 << 62
"""146 years: a run that starts here still ends before int64 nanoseconds do."""
EPOCH_S_MIN: Final = 1e9
"""Seconds beyond this are a date (2001 or later), not a time since the start of a trace."""

INPUT_NAMES: Final = (
    "input_tokens",
    "input_length",
    "input_len",
    "input_toks",
    "prompt_tokens",
    "prompt_tokens_count",
    "prompt_len",
    "num_prefill_tokens",
    "contexttokens",
    "request tokens",
)
OUTPUT_NAMES: Final = (
    "output_tokens",
    "output_length",
    "output_len",
    "output_toks",
    "output_tokens_count",
    "completion_tokens",
    "num_decode_tokens",
    "generatedtokens",
    "response tokens",
)
ARRIVAL_NAMES: Final[Mapping[str, TimeUnit]] = {
    "arrival_s": "s",
    "arrival_time_s": "s",
    "arrival_time": "s",
    "arrived_at": "s",
    "timestamp_s": "s",
    "arrival_ms": "ms",
    "arrival_ns": "ns",
}
"""`timestamp` is not here: a date in Azure's CSV, seconds in other CSV, ms in Mooncake's JSONL."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace file's requests in order of arrival: int64 arrays of shape (requests,).

    arrival_ns: None for a file without arrivals. form: what the file was recognised as.
    prefix_hashes: Mooncake's `hash_ids` of each request, one for every 512 tokens of the prompt.
    """

    path: str
    form: str
    arrival_ns: Int64Array | None
    input_tokens: Int64Array
    output_tokens: Int64Array
    prefix_hashes: tuple[tuple[int, ...], ...] | None = None

    def __len__(self) -> int:
        return len(self.input_tokens)


def read_trace(path: str | Path) -> Trace:
    """Read a whole trace.

    Raises TraceError, with the line where there is one, for a file that is missing, empty, of no
    known format, or bad in any row.
    """
    text = _text(Path(path))
    rows = _Rows(str(path))
    if text.lstrip()[:1] == "{":
        _read_jsonl(text, rows)
    else:
        _read_csv(text, rows)
    return rows.trace()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise TraceError(path, None, "there is no such file") from None
    except UnicodeDecodeError as error:
        raise TraceError(path, None, f"not UTF-8 text: byte {error.start}") from None
    except OSError as error:
        raise TraceError(path, None, f"cannot be read: {error.strerror}") from None


class _Rows:
    """What has been read so far, and the columns it was read from."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.form = ""
        self.unit: TimeUnit | None = None
        self.arrivals: list[int | float] = []  # ns if dates: a float would round them
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.hashes: list[tuple[int, ...]] = []

    def columns(self, names: list[str], line: int, *, jsonl: bool) -> tuple[int | None, int, int]:
        """Find the arrival, input and output columns; sets the format and the time's unit."""
        lower = [name.strip().lower() for name in names]
        arrival = next((name for name in lower if name in ARRIVAL_NAMES), None)
        if arrival is not None:
            self.unit = ARRIVAL_NAMES[arrival]
        elif "timestamp" in lower:
            arrival = "timestamp"
            self.unit = "ms" if jsonl else "date or s"
        self.form = "JSONL" if jsonl else "CSV"
        if jsonl and arrival == "timestamp" and "input_length" in lower:
            self.form = "Mooncake JSONL"
        elif "contexttokens" in lower:
            self.form = "Azure CSV"
        return (
            None if arrival is None else lower.index(arrival),
            self._column(lower, INPUT_NAMES, "prompt lengths", line),
            self._column(lower, OUTPUT_NAMES, "output lengths", line),
        )

    def _column(self, lower: list[str], known: tuple[str, ...], what: str, line: int) -> int:
        for name in known:
            if name in lower:
                return lower.index(name)
        near = [suggestion(name, known) for name in lower if "mean" in suggestion(name, known)]
        hint = near[0] if near else f"; known: {', '.join(known)}"
        raise TraceError(self.path, line, f"no column of {what}{hint}")

    def add(self, line: int, arrival: Any, tokens_in: Any, tokens_out: Any) -> None:
        try:
            self.inputs.append(whole_tokens(tokens_in, "prompt"))
            self.outputs.append(whole_tokens(tokens_out, "output"))
            if self.unit is not None:
                self.arrivals.append(self._time(arrival))
        except (ValueError, OverflowError) as error:
            raise TraceError(self.path, line, str(error)) from None

    def add_hashes(self, line: int, written: Any) -> None:
        """The `hash_ids` of the request that was added last; blocks beyond them are its own."""
        most = -(-self.inputs[-1] // MOONCAKE_HASH_TOKENS)
        if not isinstance(written, list) or any(type(each) is not int for each in written):
            message = f'hash_ids "{shown(written)}" is not an array of whole numbers'
            raise TraceError(self.path, line, message)
        if len(written) > most:
            raise TraceError(
                self.path,
                line,
                f"{len(written)} hash_ids for a prompt of {self.inputs[-1]} tokens, which has "
                f"{most} blocks of {MOONCAKE_HASH_TOKENS}",
            )
        self.hashes.append(tuple(written))

    def _time(self, written: Any) -> int | float:
        if self.unit == "date or s":
            self.unit = "date" if isinstance(written, str) and "-" in written[1:] else "s"
        if self.unit == "date":
            return date_ns(written)
        try:
            value = float(written)
        except (TypeError, ValueError, OverflowError):
            value = np.nan
        if isinstance(written, bool) or "_" in str(written) or not 0 <= value < np.inf:
            raise ValueError(f'arrival "{shown(written)}" is not a time')
        assert self.unit in SECONDS
        if value / SECONDS[self.unit] >= TIME_MAX_NS / 1e9:
            raise ValueError(f"arrival {value:g} {self.unit} is beyond {TIME_MAX_NS / 1e9:.1e} s")
        return value

    def trace(self) -> Trace:
        if not self.inputs:
            raise TraceError(self.path, None, "has no requests")
        inputs = np.array(self.inputs, dtype=np.int64)
        outputs = np.array(self.outputs, dtype=np.int64)
        arrival_ns = self._arrival_ns()
        hashes = self.hashes
        if arrival_ns is not None and (np.diff(arrival_ns) < 0).any():
            order = np.argsort(arrival_ns, kind="stable")
            arrival_ns, inputs, outputs = arrival_ns[order], inputs[order], outputs[order]
            hashes = [hashes[each] for each in order.tolist()] if hashes else hashes
        return Trace(
            self.path, self.form, arrival_ns, inputs, outputs, tuple(hashes) if hashes else None
        )

    def _arrival_ns(self) -> Int64Array | None:
        if self.unit is None:
            return None
        if self.unit == "date":
            dates = np.array(self.arrivals, dtype=np.int64)
            return dates - int(dates.min())
        times = np.array(self.arrivals, dtype=np.float64)
        per_second = SECONDS[self.unit]
        if times.min() / per_second > EPOCH_S_MIN:
            times -= times.min()
        return np.rint(times * (1e9 / per_second)).astype(np.int64)


def whole_tokens(written: Any, what: str) -> int:
    """A length as a file writes it: 17, 17.0 or "17". Raises ValueError for anything else."""
    text = written.strip() if isinstance(written, str) else ""
    if re.fullmatch(r"-?[0-9]{1,19}", text):
        value = int(text)
    elif isinstance(written, int | float) and not isinstance(written, bool) and written % 1 == 0:
        value = int(written)
    else:
        raise ValueError(f'{what} length "{shown(written)}" is not a whole number of tokens')
    if not 1 <= value <= TOKENS_MAX:
        raise ValueError(f"{what} length {shown(written)} is not within 1 to {TOKENS_MAX:,} tokens")
    return value


def shown(written: Any) -> str:
    """What a file holds, short enough for a message."""
    text = str(written)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _read_csv(text: str, rows: _Rows) -> None:
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        _read_table(reader, rows)
    except csv.Error as error:
        raise TraceError(rows.path, reader.line_num, str(error)) from None


def _read_table(reader: Any, rows: _Rows) -> None:
    header = next((row for row in reader if row), None)
    if header is None:
        raise TraceError(rows.path, None, "is empty")
    arrival, tokens_in, tokens_out = rows.columns(header, reader.line_num, jsonl=False)
    width = len(header)
    for row in reader:
        if not row:
            continue
        if len(row) != width:
            message = f"{len(row)} fields, the header has {width}"
            raise TraceError(rows.path, reader.line_num, message)
        when = None if arrival is None else row[arrival]
        rows.add(reader.line_num, when, row[tokens_in], row[tokens_out])


def _read_jsonl(text: str, rows: _Rows) -> None:
    columns: tuple[str | None, str, str] | None = None
    hashed: list[str] = []
    for line, entry in _objects(text, rows.path):
        if columns is None:
            names = list(entry)
            arrival, tokens_in, tokens_out = rows.columns(names, line, jsonl=True)
            columns = (
                None if arrival is None else names[arrival],
                names[tokens_in],
                names[tokens_out],
            )
            hashed = ["hash_ids"] if rows.form == "Mooncake JSONL" and "hash_ids" in names else []
        missing = [name for name in (*columns, *hashed) if name is not None and name not in entry]
        if missing:
            raise TraceError(rows.path, line, f'no "{missing[0]}", which the first line has')
        when = None if columns[0] is None else entry[columns[0]]
        rows.add(line, when, entry[columns[1]], entry[columns[2]])
        if hashed:
            rows.add_hashes(line, entry["hash_ids"])


def _objects(text: str, path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, written in json_lines(text):
        try:
            entry = json.loads(written)
        except json.JSONDecodeError as error:
            raise TraceError(path, line, f"not JSON: {error.msg}, column {error.colno}") from None
        except (ValueError, RecursionError) as error:  # a number or a nesting beyond all use
            raise TraceError(path, line, f"not JSON that can be read: {error}") from None
        if not isinstance(entry, dict):
            raise TraceError(path, line, "not a JSON object")
        yield line, entry


def json_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of JSONL that hold something, numbered from 1.

    Only a line feed ends one: JSON strings may hold what `splitlines` takes for an end.
    """
    for line, written in enumerate(text.split("\n"), 1):
        if written.strip():
            yield line, written
