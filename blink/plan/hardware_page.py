"""`python -m blink.plan.hardware_page` prints docs/hardware.md with its tables made anew.

Run from the root of a clone. The prose is the page's own; what stands between the two marks comes
from the committed profiles, and from the twin's predictions of their runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from blink.model import profile
from blink.model.profile import MICROBENCHMARKS, Profile, RecordedRun
from blink.plan.bench_gpu import LIMITS_NS
from blink.plan.profiling import AIMS
from blink.plan.validate import recorded_rows
from blink.plan.validate_report import catalogue_ns

PAGE: Final = Path("docs/hardware.md")
BEGIN: Final = "<!-- made by `make gen` from blink/model/data/profiles: do not edit -->"
END: Final = "<!-- end of what is made -->"
NOTHING: Final = "No profile is committed yet: nothing stands here that was not measured.\n"
SHOWN: Final = ("ttft_ms.p50", "ttft_ms.p99", "tpot_ms.mean", "tpot_ms.p99", "itl_ms.p99")
CONTROL: Final = {
    "to_start_ns": "a decode step's launch until the GPU works",
    "to_next_ns": "end of a decode step to the next launch",
    "prefill_to_start_ns": "a prefill's launch until the GPU works",
    "submit_ns": "arrival to submitted",
    "pickup_ns": "submitted to taken up by an idle scheduler",
    "deliver_ns": "end of a step until its tokens are with their clients",
}


def page_text(page: str, measured: Sequence[Profile], root: Path) -> str:
    """The page with its tables; scenarios of recorded runs lie below ``root``."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    made = "\n".join(line for each in measured for line in _sections(each, root)) or NOTHING
    return f"{before}{BEGIN}\n\n{made.rstrip()}\n\n{END}{after}"


def _sections(measured: Profile, root: Path) -> Iterator[str]:
    clocks = ", ".join(f"{name} {mhz} MHz" for name, mhz in measured.clocks_mhz.items())
    yield f"### Profile `{measured.name}`\n"
    yield (
        f"{measured.gpu}, driver {measured.driver}, CUDA {measured.cuda}, {clocks}; "
        f"{measured.date}, commit {measured.commit}:\n"
    )
    yield f"```sh\n{measured.command}\n```\n"
    yield from _single_things(measured)
    yield from _control(measured)
    yield from _runs(measured, root)


def _single_things(measured: Profile) -> Iterator[str]:
    stated = catalogue_ns(measured.gpu)
    yield "| single things, us | p50 | p99 | catalogue | limit |"
    yield "|---|---|---|---|---|"
    for name, each in measured.microbenchmarks.items():
        what = MICROBENCHMARKS.get(name, name.removesuffix("_ns").replace("_", " "))
        figures = (each.p50, each.p99, stated.get(name), LIMITS_NS.get(name))
        yield f"| {what} | {' | '.join(map(_us, figures))} |"
    yield ""


def _control(measured: Profile) -> Iterator[str]:
    yield "| around steps and requests, us (p50 / p99) | " + " | ".join(measured.control) + " |"
    yield "|---" * (1 + len(measured.control)) + "|"
    for name, what in CONTROL.items():
        spreads = [getattr(each, name) for each in measured.control.values()]
        cells = [f"{_us(s.p50)} / {_us(s.p99)}" if s else "-" for s in spreads]
        yield f"| {what} | {' | '.join(cells)} |"
    yield ""


def _runs(measured: Profile, root: Path) -> Iterator[str]:
    yield "Measured, and the twin's error; **bold** where it misses its aim:\n"
    names = [name for name in AIMS if name in (*SHOWN, "output_tok_s")]
    yield f"| run | {' | '.join(names)} |"
    yield "|---" * (1 + len(names)) + "|"
    for run in measured.runs:
        rows = recorded_rows(measured, run, root)
        cells = [_cell(run, name, rows.get(name, {}).get("error")) for name in names]
        yield f"| {_label(run)} | {' | '.join(cells)} |"
    yield ""


def _label(run: RecordedRun) -> str:
    return " ".join(filter(None, (f"`{run.spec}`", run.system, run.point, run.condition)))


def _cell(run: RecordedRun, name: str, error: float | None) -> str:
    if name not in run.metrics:
        return "-"
    said = "" if error is None else f" ({error:+.1%})"
    if error is not None and abs(error) > AIMS[name]:
        said = f" (**{error:+.1%}**)"
    return f"{run.metrics[name]:.4g}{said}"


def _us(ns: float | None) -> str:
    return "-" if ns is None else f"{ns / 1e3:.2f}"


if __name__ == "__main__":
    packaged = [profile.lookup(name) for name in profile.names()]
    sys.stdout.write(page_text(PAGE.read_text(encoding="utf-8"), packaged, Path()))
