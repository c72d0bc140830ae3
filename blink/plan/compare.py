"""``blink compare A B``: two recorded runs, or outputs of several, figure by figure.

A side is what ``blink run --out`` wrote: the whole directory, or one run's directory in it. Runs
are paired by system, condition and point of the sweep; two single runs are compared whatever they
are. What only one side has is named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from blink.model.errors import BadInput
from blink.model.metrics import summarise
from blink.plan.account import objectives_of
from blink.plan.output import FORMAT, SCENARIO, SUMMARY, read_record
from blink.plan.report import number

FIGURES: Final = (
    *((f"ttft_ms.{q}", "TTFT", "ms") for q in ("mean", "p50", "p99")),
    *((f"tpot_ms.{q}", "TPOT", "ms") for q in ("mean", "p50", "p99")),
    *((f"itl_ms.{q}", "ITL", "ms") for q in ("mean", "p50", "p99")),
    *((f"e2e_ms.{q}", "E2E", "ms") for q in ("mean", "p50", "p99")),
    ("throughput_req_s", "throughput", "req/s"),
    ("output_tok_s", "output", "tok/s"),
    ("goodput_req_s", "goodput", "req/s"),
    ("energy_mj_per_tok", "energy", "mJ/tok"),
    ("host_cpu_on_token_path_s", "host CPU", "s"),
    ("makespan_s", "makespan", "s"),
    ("requests", "requests", ""),
    ("completed", "completed", ""),
)
"""Where a figure is in a summary, what it is called, its unit."""

RUN: Final = "run.json"
REQUESTS: Final = "requests.parquet"
NOT_A_RECORD: Final = "not what blink run --out writes (a directory with summary.json, or with"
_ONLY_IN_PAGES: Final = frozenset({"title", "question"})

_NEEDED: Final = ("system", "condition", "commit", "seed")

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Side:
    """One side: the figures of its runs by key, its scenario, and the commits that ran."""

    path: Path
    runs: Mapping[str, Mapping[str, Any]]
    scenario: Mapping[str, Any]

    @property
    def commits(self) -> list[str]:
        """The commits of its runs, each once."""
        return list(dict.fromkeys(str(run["commit"]) for run in self.runs.values()))

    @property
    def seeds(self) -> list[int]:
        """The seeds of its runs, each once."""
        return list(dict.fromkeys(int(run["seed"]) for run in self.runs.values()))


def read_side(path: Path) -> Side:
    """Read an output directory, or one run's. Raises BadInput, one line, for anything else."""
    if not path.exists():
        raise BadInput(f"{path}: no such directory")
    if not path.is_dir():
        raise BadInput(f"{path}: a file; name the directory that blink run --out wrote")
    if (path / SUMMARY).is_file():
        return _output(path)
    if (path / RUN).is_file() and (path / REQUESTS).is_file():
        return _single(path)
    raise BadInput(f"{path}: {NOT_A_RECORD} {RUN} and {REQUESTS})")


def _output(path: Path) -> Side:
    document, scenario = _json(path / SUMMARY), _json(path / SCENARIO)
    if document.get("format") != FORMAT:
        raise BadInput(f"{path / SUMMARY}: not of {FORMAT}: written by another program, or version")
    found = document.get("runs")
    runs: dict[str, Mapping[str, Any]] = {}
    for run in found if isinstance(found, list) else ():
        if not isinstance(run, dict) or not run.keys() >= set(_NEEDED):
            raise BadInput(f"{path / SUMMARY}: a run in it lacks one of {', '.join(_NEEDED)}")
        runs[_key(run)] = run
    if not runs:
        raise BadInput(f"{path / SUMMARY}: holds no run")
    return Side(path, runs, scenario)


def _single(path: Path) -> Side:
    try:
        record = read_record(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        said = " ".join(str(error).split())
        raise BadInput(f"{path}: its record cannot be read: {said}") from error
    summary = summarise(record, objectives_of(record.scenario))
    return Side(path, {record.label: summary}, record.scenario)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise BadInput(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadInput(f"{path}: not a JSON object")
    return found


def _key(run: Mapping[str, Any]) -> str:
    parts = (run["system"], run.get("point", ""), run["condition"])
    return " ".join(str(part) for part in parts if part)


# --- comparing -------------------------------------------------------------------------------


def compare(a: Side, b: Side) -> Document:
    """Return what differs between two sides, as ``blink compare --json`` prints it.

    Raises BadInput if no run of one is a run of the other.
    """
    if len(a.runs) == 1 and len(b.runs) == 1:
        [one], [other] = a.runs, b.runs
        pairs = [(one if one == other else f"{one} | {other}", a.runs[one], b.runs[other])]
        only_a: list[str] = []
        only_b: list[str] = []
    else:
        pairs = [(key, run, b.runs[key]) for key, run in a.runs.items() if key in b.runs]
        only_a = [key for key in a.runs if key not in b.runs]
        only_b = [key for key in b.runs if key not in a.runs]
    if not pairs:
        raise BadInput(
            f"no run is in both: {a.path} has {', '.join(a.runs)}; {b.path} has "
            f"{', '.join(b.runs)}. To compare two runs of different names, name their directories"
        )
    return {
        "a": {"path": str(a.path), "commits": a.commits, "seeds": a.seeds},
        "b": {"path": str(b.path), "commits": b.commits, "seeds": b.seeds},
        "scenario": _changed(a.scenario, b.scenario),
        "only_a": only_a,
        "only_b": only_b,
        "runs": [{"run": name, "figures": _figures(one, other)} for name, one, other in pairs],
    }


def _figures(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each figure of both; difference and ratio are B's over A's, None where one has none."""
    rows = []
    for path, name, unit in FIGURES:
        one, other = _figure(a, path), _figure(b, path)
        rows.append(
            {
                "figure": path,
                "name": " ".join([name, *path.split(".")[1:]]),
                "unit": unit,
                "a": one,
                "b": other,
                "difference": None if one is None or other is None else other - one,
                "ratio": None if not one or other is None else other / one,
            }
        )
    return rows


def _figure(run: Mapping[str, Any], path: str) -> int | float | None:
    value: Any = run
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) else None


def _changed(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The scenario keys that differ, dotted; a side that lacks a key has null."""
    one, other = _flat(a), _flat(b)
    keys = [key for key in dict.fromkeys([*one, *other]) if key not in _ONLY_IN_PAGES]
    return [
        {"key": key, "a": one.get(key), "b": other.get(key)}
        for key in keys
        if one.get(key) != other.get(key)
    ]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Keys of tables as dotted keys; what is None is as good as absent."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            flat[f"{prefix}{key}"] = value
    return flat


# --- printing --------------------------------------------------------------------------------


def print_comparison(found: Document) -> None:
    """Print both sides' origins, the changed keys, and the figures of every pair of runs."""
    console = Console()
    for side in ("a", "b"):
        about = found[side]
        origin = f"commit {', '.join(about['commits'])}, seed {', '.join(map(str, about['seeds']))}"
        console.print(Text(f"{side.upper()}  {about['path']}  ({origin})"), soft_wrap=True)
    if found["scenario"]:
        console.print()
        console.print(_key_table(found["scenario"]))
    else:
        console.print(Text("the scenarios are the same"))
    for run in found["runs"]:
        console.print()
        console.print(_figure_table(run))
    for side in ("a", "b"):
        if found[f"only_{side}"]:
            only = ", ".join(found[f"only_{side}"])
            console.print(Text(f"only in {side.upper()}: {only}", style="yellow"), soft_wrap=True)


def _key_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("scenario key", "A", "B"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for text in (row["key"], _value(row["a"]), _value(row["b"]))))
    return table


def _value(value: Any) -> str:
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def _figure_table(run: Mapping[str, Any]) -> Table:
    table = Table(
        title=Text(run["run"], style="bold"),
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    table.add_column("figure", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    for heading in ("A", "B", "B - A", "B / A"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in run["figures"]:
        if row["a"] is None and row["b"] is None:
            continue
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
        cells = (_text(row, "a"), _text(row, "b"), _text(row, "difference"), ratio)
        changed = row["a"] != row["b"]
        table.add_row(row["name"], row["unit"], *cells, style="" if changed else "dim")
    return table


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row[key]
    if value is None:
        return "-"
    sign = "+" if key == "difference" and value > 0 else ""
    return sign + (f"{value:,}" if isinstance(value, int) else number(value))
