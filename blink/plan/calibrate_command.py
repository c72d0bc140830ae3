"""What ``blink calibrate`` prints and writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from blink.model.errors import BadInput
from blink.model.fitted import FittedProfile
from blink.plan.bench_files import Asked
from blink.plan.calibrating import AIMS, Origin, Row, beyond_aim, calibrate, cross_validate
from blink.plan.commit import commit_id
from blink.plan.fitting import Twin
from blink.plan.observations import Observation, observe
from blink.plan.progress import announce
from blink.plan.validate import check_profile_out

RUNS_A_LINE: Final = 100
HEADINGS: Final = {
    "tpot_ms.mean": "TPOT\nmean",
    "itl_ms.mean": "ITL\nmean",
    "ttft_ms.mean": "TTFT\nmean",
    "output_tok_s": "\ntok/s",
}
Printed = Callable[[Mapping[str, Any]], None]


def run(options: Any, command: str, print_json: Printed) -> None:
    """Read, fit, print, and write the profile if that is asked for.

    Raises BadInput, before anything is fitted, for a record that cannot be used or a place that
    cannot be written; BackendUnavailable without SciPy.
    """
    out: Path | None = options.out
    name = check_profile_out(out) if out is not None else "fitted"
    asked = Asked(gpu=options.gpu, model=options.model, host=options.host)
    observations = _of_system(observe(options.records, asked), options.system)
    wanted = [each.strip() for each in (options.fit or "").split(",") if each.strip()]
    twin = Twin(progress=_said_now_and_then)
    if options.cross_validate and len(observations) < 2:
        cross_validate(observations, twin)
    today = datetime.now(UTC).date().isoformat()
    origin = Origin(name, today, commit_id(), command)
    fitted, rows = calibrate(observations, origin, twin, wanted=wanted, announce=announce)
    if options.cross_validate:
        rows = cross_validate(observations, twin, wanted=wanted, announce=announce) + rows
    if out is not None:
        _write(out, fitted)
        announce(f"written to {out}: a page loads it as hardware.profile")
    if options.json:
        document = fitted.model_dump(mode="json", by_alias=True)
        print_json({"profile": document, "cross_validation": rows})
    else:
        print_profile(fitted)
        if options.cross_validate:
            print_cross_validation(rows)


def _of_system(observations: Sequence[Observation], system: str | None) -> list[Observation]:
    """Those of one system, GPU and model; BadInput if there are several and none was chosen."""
    chosen = [each for each in observations if system in (None, each.server.system)]
    if not chosen:
        known = ", ".join(dict.fromkeys(each.server.system for each in observations))
        raise BadInput(f"--system {system}: no such runs; there are runs of {known}")
    for what, values, hint in (
        ("systems", [each.server.system for each in chosen], ": choose one with --system"),
        ("GPUs", [each.server.gpu.name for each in chosen], ""),
        ("models", [each.server.llm.name for each in chosen], ""),
    ):
        several = list(dict.fromkeys(values))
        if len(several) > 1:
            raise BadInput(
                f"runs of several {what} ({', '.join(several)}); a profile is of one{hint}"
            )
    return chosen


def _said_now_and_then(runs: int) -> None:
    if runs % RUNS_A_LINE == 0:
        announce(f"  {runs} runs of the twin")


def _write(path: Path, fitted: FittedProfile) -> None:
    """Write a profile, whole or not at all."""
    scratch = path.with_suffix(".part")
    scratch.write_text(fitted.text(), encoding="utf-8")
    scratch.replace(path)


# --- printing --------------------------------------------------------------------------------


def print_profile(fitted: FittedProfile, console: Console | None = None) -> None:
    """Print the constants, what was not fitted, the errors that are left, and the range."""
    console = console or Console()
    runs = f"{len(fitted.runs)} {'runs' if len(fitted.runs) > 1 else 'run'}"
    console.print(Text(f"{fitted.system}, {fitted.model}, {fitted.gpu}: {runs}", "bold"))
    console.print(_constants_table(fitted))
    for name, reason in fitted.not_fitted.items():
        console.print(Text(f"not fitted: {_short(name)}: {reason}", style="dim"))
    console.print()
    console.print(_errors_table(fitted))
    for line in _range_lines(fitted):
        console.print(Text(line))
    notes = dict.fromkeys(note for each in fitted.runs for note in each.notes)
    console.print(Text("; ".join(notes), style="dim"))


def _constants_table(fitted: FittedProfile) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for heading in ("constant", "fitted", "95 % interval", "before"):
        table.add_column(
            heading, justify="left" if heading == "constant" else "right", no_wrap=True
        )
    table.add_column("unit", overflow="fold")
    for name, each in fitted.constants.items():
        interval = f"{_number(each.low)} .. {_number(each.high)}"
        table.add_row(
            Text(_short(name)), _number(each.value), interval, _number(each.before), each.unit
        )
    return table


def _number(value: float) -> str:
    """Three digits, in as few characters as they take."""
    return f"{value:.3g}".replace("e+0", "e").replace("e-0", "e-")


def _errors_table(fitted: FittedProfile) -> Table:
    """The error of the fit, and below it that of the prediction without the run."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("error", overflow="fold")
    for metric in AIMS:
        table.add_column(HEADINGS[metric], justify="right", no_wrap=True)
    labels = [f"{each.run}, {each.condition}" for each in fitted.runs]
    common = _common_words(labels)
    for label, each in zip(labels, fitted.runs, strict=True):
        figures = [each.figures.get(metric) for metric in AIMS]
        table.add_row(
            Text(label.removeprefix(common)),
            *(_percent(figure.error if figure else None, metric=None) for figure in figures),
        )
        if fitted.held_out_by:
            table.add_row(
                "  held out",
                *(
                    _percent(figure.held_out if figure else None, metric)
                    for metric, figure in zip(AIMS, figures, strict=True)
                ),
                style="cyan",
            )
    return table


def _range_lines(fitted: FittedProfile) -> list[str]:
    known = fitted.range
    rate = f"{known.rate_req_s} req/s" if known.rate_req_s else "closed loops"
    lines = [
        f"range: batch {known.batch}; context {known.context_tokens} tokens a sequence; prefill "
        f"{known.prefill_tokens} tokens a step; prompts of {known.prompt_tokens} tokens; {rate}",
        "hosts: " + "; ".join(str(each) for each in known.hosts),
    ]
    if not fitted.held_out_by:
        lines.append("held out: nothing, for there is one run only")
    return lines


def print_cross_validation(rows: Sequence[Row], console: Console | None = None) -> None:
    """Print the errors of every prediction; ``!`` misses its aim, ``x`` is an extrapolation."""
    console = console or Console()
    console.print()
    for kind, title in (
        ("one", "fitted to one run, the others predicted"),
        ("others", "fitted to all runs but one, that one predicted"),
    ):
        mine = [row for row in rows if row["kind"] == kind]
        if mine:
            console.print(_folds_table(title, mine))
            console.print()
    aims = ", ".join(
        f"{HEADINGS[m].replace(chr(10), ' ').strip()} {a:.0%}" for m, a in AIMS.items()
    )
    console.print(Text(f"! beyond its aim ({aims}); x outside the fitted range, in part at least"))
    judged = [row for row in rows if "errors" in row]
    for scope, some in (
        ("on a host as it was when fitted", [row for row in judged if not _other_host(row)]),
        ("on a host in another condition", [row for row in judged if _other_host(row)]),
    ):
        total = sum(len(row["errors"]) for row in some)
        held = total - sum(len(row["misses"]) for row in some)
        if total:
            console.print(Text(f"{held} of {total} predictions within their aims {scope}"))


def _other_host(row: Row) -> bool:
    return any(line.startswith("host condition") for line in row["extrapolated"])


def _folds_table(title: str, rows: Sequence[Row]) -> Table:
    """One line a prediction; those of one fit to one run below its name."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, title=title)
    table.title_justify = "left"
    common = _common_words([row["predicted"] for row in rows])
    table.add_column("predicted", overflow="fold")
    for metric in AIMS:
        table.add_column(HEADINGS[metric], justify="right", no_wrap=True)
    table.add_column("")
    before = None
    for row in rows:
        if row["kind"] == "one" and row["fitted_to"] != before:
            before = row["fitted_to"]
            table.add_row(Text(f"fitted to {before.removeprefix(common)}", style="bold"))
        name = Text(f"  {row['predicted'].removeprefix(common)}")
        if "refused" in row:
            table.add_row(name, *("-" for _ in AIMS), "identifies no constant")
            continue
        errors = (_percent(row["errors"].get(metric), metric) for metric in AIMS)
        table.add_row(name, *errors, "x" if row["extrapolated"] else "")
    return table


def _common_words(labels: Sequence[str]) -> str:
    """The words that all labels begin with: they say nothing here."""
    words = [label.split(" ") for label in labels]
    shared: list[str] = []
    for each in zip(*words, strict=False):
        if len(set(each)) > 1:
            break
        shared.append(each[0])
    everything = len(shared) == min(len(each) for each in words)
    return " ".join(shared) + " " if shared and not everything else ""


def _percent(error: float | None, metric: str | None) -> str:
    if error is None:
        return "-"
    missed = metric is not None and beyond_aim(metric, error)
    return f"{error:+.1%}{'!' if missed else ' '}"


def _short(name: str) -> str:
    return re.sub(r"^(engine|plane)\.", "", name)
