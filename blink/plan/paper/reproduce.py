"""``blink reproduce``: the paper's evaluation, whole, in the twin; every figure held against it.

``data/paper.toml`` holds what is stated, :mod:`predictions` how the twin answers, :mod:`verdict`
the rule between them, :mod:`orderings` which system should be better. A document of JSON values
holds the outcome; the page and the printed summary are made from it alone.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from blink.model.errors import BadInput, UnknownName, nearest
from blink.model.provenance import Entry, catalogue
from blink.plan.executor import Progress
from blink.plan.paper.evaluation import ASSUMED, SEED, grid
from blink.plan.paper.figures import FIGURES, FOLDER, draw_figures
from blink.plan.paper.orderings import OTHERWISE, SAME, TIED, ordered, orderings
from blink.plan.paper.page import page_text, shown_value
from blink.plan.paper.predictions import PREDICTIONS, Value
from blink.plan.paper.results import Results
from blink.plan.paper.runs import Runs, ask
from blink.plan.paper.tables import tables
from blink.plan.paper.verdict import AS_STATED, NOT_PREDICTED, VERDICTS, WITHIN_10, ends, verdict

Document = dict[str, Any]
Line = dict[str, Any]
PAGE: Final = "paper.md"
DATA: Final = "paper.json"
DIGITS: Final = 6
"""Significant digits that are kept: what differs beyond differs between machines."""
GOOD: Final = (AS_STATED, WITHIN_10, SAME)
EVERYTHING: Final = "whole"


def reproduce(
    only: str | None = None,
    *,
    whole: bool = False,
    seed: int = SEED,
    workers: int | None = None,
    progress: Callable[[int], Progress] = lambda round_: lambda done, total: None,
) -> tuple[Document, Results]:
    """Predict every figure whose id begins with ``only`` (None: all), and every ordering.

    ``document["entries"]`` has one entry a figure: ``id``, ``part``, ``what``, ``unit``,
    ``source``, ``stated``, ``predicted``, ``ratio`` (predicted over stated, end by end for two
    ends; of one number to the nearest end of a range, 1 inside), ``verdict`` and, where there is
    one, ``second_hand``, ``fitted``, ``suspected``, ``contradicted``, ``not_predicted``. Orderings
    are entries whose id begins with ``order``: ``predicted`` is how many times better the system is
    that the paper puts first, and ``stated`` is "above 1". ``summary`` counts the verdicts.

    ``seed`` draws the requests. ``whole``: execute all of the evaluation, which pictures and tables
    need. Raises UnknownName for an ``only`` that no id begins with.
    """
    stated, wanted = _stated(), orderings()
    known = [*stated, *wanted]
    chosen = [key for key in known if key.startswith(only or "")]
    if not chosen:
        groups = {each.partition(".")[0] for each in known}
        raise UnknownName("figure of the paper", str(only), _nearby(str(only), known, groups))
    questions: dict[str, Callable[[Runs], Any]] = {
        key: partial(_answer, PREDICTIONS[key] if key in stated else wanted[key].advantage)
        for key in chosen
        if key in wanted or "not_predicted" not in stated[key].labels
    }
    if whole:
        questions[EVERYTHING] = lambda runs: (runs(list(grid())), tables(Results(runs)))[1]
    runs = Runs(seed)
    answers = ask(questions, runs, workers=workers, progress=progress)
    entries = [
        _entry(stated[key], answers.get(key)) if key in stated else _order(key, answers[key])
        for key in chosen
    ]
    document: Document = {"seed": seed, "summary": summary_of(entries), "entries": entries}
    if whole:
        document["runs"] = len(runs)
        document["tables"] = answers[EVERYTHING]
        document["assumed"] = list(ASSUMED)
        document["contradictions"] = _contradictions()
    return document, Results(runs)


def write(document: Document, results: Results, folder: Path) -> list[Path]:
    """Write page, data and pictures of a whole document below ``folder``; return what was written.

    Other files in ``folder`` stay. Nothing is replaced before all is made. Raises BadInput if it
    cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        nest = Path(tempfile.mkdtemp(prefix=".reproduce.", dir=folder))
        try:
            (nest / FOLDER).mkdir(parents=True)
            draw_figures(nest / FOLDER, results)
            text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
            (nest / DATA).write_text(text + "\n", encoding="utf-8")
            (nest / PAGE).write_text(page_text(document), encoding="utf-8")
            (folder / FOLDER).mkdir(parents=True, exist_ok=True)
            names = [PAGE, DATA, *(f"{FOLDER}/{name}" for name in FIGURES)]
            return [(nest / name).replace(folder / name) for name in names]
        finally:
            shutil.rmtree(nest, ignore_errors=True)
    except OSError as error:
        raise BadInput(f"cannot write to {folder}: {error.strerror or error}") from None


def check_folder(folder: Path) -> None:
    """Raise BadInput unless :func:`write` may write below ``folder``. Call it before a long run."""
    place = next(each for each in (folder, *folder.resolve().parents) if each.exists())
    try:
        Path(tempfile.mkdtemp(prefix=".reproduce.", dir=place)).rmdir()
    except OSError as error:
        raise BadInput(f"cannot write to {folder}: {error.strerror or error}") from None


def print_reproduction(
    document: Document, *, entries: bool, console: Console | None = None
) -> None:
    """Print how many figures have which verdict; with ``entries`` each of them first."""
    console = console or Console()
    if entries:
        _print_entries(document["entries"], console)
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("verdict", "figures", "of them fitted"):
        table.add_column(heading, justify="left" if heading == "verdict" else "right")
    for name, count in document["summary"].items():
        table.add_row(name, str(count["figures"]), str(count["fitted"] or "-"))
    console.print(table)


def _print_entries(entries: Sequence[Line], console: Console) -> None:
    """One line a figure; below them what is suspected of those that are off."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("", "stated", "predicted", "ratio", "unit", "verdict"):
        right = heading in ("stated", "predicted", "ratio")
        table.add_column(heading, justify="right" if right else "left")
    reasons: dict[str, list[str]] = {}
    for each in entries:
        shown = [shown_value(each[key]) for key in ("stated", "predicted", "ratio")]
        what = f"{each['what']} [dim]{each['id']}[/dim]"
        table.add_row(what, *shown, each["unit"], each["verdict"])
        if "suspected" in each:
            reasons.setdefault(each["suspected"], []).append(each["id"])
    console.print(table)
    for reason, ids in reasons.items():
        console.print(f"{', '.join(ids)}: suspected: {reason}.")


def summary_of(entries: Sequence[Line]) -> dict[str, dict[str, int]]:
    """How many entries have which verdict, and how many of these a constant was fitted to."""
    found = {}
    for name in (*VERDICTS, SAME, TIED, OTHERWISE):
        mine = [each for each in entries if each["verdict"] == name]
        if mine:
            found[name] = {"figures": len(mine), "fitted": sum("fitted" in each for each in mine)}
    return found


# --- entries ---------------------------------------------------------------------------------


def _stated() -> Mapping[str, Entry]:
    return {name: each for name, each in catalogue("paper.toml").items() if name[0] != "_"}


def _nearby(name: str, known: Sequence[str], groups: set[str]) -> Sequence[str]:
    return known if nearest(name, known) else sorted(groups)


def _answer(question: Callable[[Results], Value], runs: Runs) -> Value:
    return question(Results(runs))


def _entry(entry: Entry, predicted: Value | None) -> Line:
    labels = entry.labels
    line: Line = {name: labels[name] for name in ("part", "what", "source")}
    line = {"id": entry.name, **line, "unit": labels.get("unit", ""), "stated": labels["stated"]}
    if predicted is None:
        line |= {"predicted": None, "ratio": None, "verdict": NOT_PREDICTED}
        line["not_predicted"] = labels["not_predicted"]
    else:
        low, high = map(_rounded, ends(predicted))
        value: Value = (low, high) if isinstance(predicted, tuple) else low
        line["predicted"] = [low, high] if isinstance(predicted, tuple) else low
        line["ratio"] = _ratio(value, labels["stated"])
        line["verdict"] = verdict(
            value,
            labels["stated"],
            labels["exactness"],
            neutral=labels.get("neutral"),
            at_most=labels.get("at_most", False),
        )
    for name in ("second_hand", "fitted"):
        if name in labels:
            line[name] = labels[name]
    if "suspected" in labels and line["verdict"] not in GOOD:
        line["suspected"] = catalogue("paper.toml")["_suspected"].labels[labels["suspected"]]
    if any(entry.name in each["ids"] for each in _contradictions()):
        line["contradicted"] = True
    return line


def _order(key: str, advantage: float) -> Line:
    advantage = _rounded(advantage)
    found = ordered(advantage)
    line: Line = {
        "id": key,
        "part": "Orderings",
        "what": orderings()[key].what,
        "source": key.split(".")[1],
        "unit": "x",
        "stated": "above 1",
        "predicted": advantage,
        "ratio": None,
        "verdict": found,
    }
    if found != SAME:
        line["suspected"] = _why_not(key)
    return line


def _why_not(key: str) -> str:
    """Why an ordering comes out otherwise; ``[_orderings]`` has patterns of ids."""
    for each in catalogue("paper.toml")["_orderings"].labels.values():
        if any(fnmatch(key, pattern) for pattern in each["ids"]):
            return str(each["text"])
    return "not known"


def _contradictions() -> list[dict[str, Any]]:
    return list(catalogue("paper.toml")["_contradictions"].labels.values())


def _ratio(predicted: Value, stated: Any) -> Any:
    """Predicted over stated; see :func:`reproduce`. None where nothing can be divided."""
    low, high = ends(stated)
    if isinstance(predicted, tuple):
        pairs = zip(predicted, (low, high), strict=True)
        return [_rounded(mine / theirs) if theirs else None for mine, theirs in pairs]
    nearest_end = min(max(predicted, low), high)
    return _rounded(predicted / nearest_end) if nearest_end else None


def _rounded(value: float) -> float:
    if not value or not math.isfinite(value):
        return 0.0
    return round(value, DIGITS - 1 - math.floor(math.log10(abs(value))))
