"""``blink check``: from its options to an exploration and back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from blink.model.errors import BadInput, UnknownName
from blink.testing.explorer.parts import FAULTS, Config
from blink.testing.explorer.planted import planted
from blink.testing.explorer.report import document, print_report, print_trace, write_timeline
from blink.testing.explorer.search import Search, replay

EXIT_VIOLATED = 1


def check(options: argparse.Namespace, print_json: Callable[[Any], None]) -> int:
    """Explore, or go one way again. Exit code 1 on a violation. Raises BadInput."""
    config = _config(options)
    if options.timeline is not None and options.replay is None:
        raise BadInput("--timeline: goes with --replay")
    with planted(options.plant) if options.plant else nullcontext():
        if options.replay is not None:
            return _replay(options, config, print_json)
        search = Search(
            config, budget_s=options.budget, jobs=max(1, options.jobs), progress=_progress
        )
        report = search.run()
        _progress(None, 0)
        if options.json:
            print_json(document(report))
        else:
            print_report(report, _command(options))
    return EXIT_VIOLATED if report.violations else 0


def _replay(options: argparse.Namespace, config: Config, print_json: Callable[[Any], None]) -> int:
    path = _path(options.replay)
    try:
        steps = replay(config, path)
    except IndexError:
        raise BadInput("--replay: this ring has no such way; give the same options") from None
    if options.timeline is not None:
        write_timeline(config, path, options.timeline)
        sys.stderr.write(f"written to {options.timeline} (opens in ui.perfetto.dev)\n")
    if options.json:
        print_json({"trace": [step.said for step in steps]})
    else:
        print_trace(config, path)
    return EXIT_VIOLATED if any(step.broken for step in steps) else 0


def _config(options: argparse.Namespace) -> Config:
    limits = {"slots": 8, "front_ends": 8, "requests": 16, "window": 120, "threads": 8}
    for name, most in limits.items():
        if not 1 <= getattr(options, name) <= most:
            flag = name.replace("_", "-")
            raise BadInput(f"--{flag}: must be 1 to {most}, is {getattr(options, name)}")
    if options.window < 2:
        raise BadInput("--window: must be at least 2: a prefill and the decode it resumes")
    if options.slots % options.front_ends:
        raise BadInput("--slots: must be a multiple of --front-ends: each has as many")
    if options.budget is not None and not options.budget > 0:
        raise BadInput(f"--budget: must be above 0, is {options.budget:g}")
    return Config(
        slots=options.slots,
        front_ends=options.front_ends,
        requests=options.requests,
        window=options.window,
        threads=options.threads,
        faults=_faults(options.faults),
    )


def _faults(written: str) -> frozenset[str]:
    if written in ("all", "none"):
        return frozenset(FAULTS if written == "all" else ())
    names = [name.strip() for name in written.split(",")]
    for name in names:
        if name not in FAULTS:
            raise UnknownName("fault", name, FAULTS)
    return frozenset(names)


def _path(written: str) -> tuple[int, ...]:
    parts = written.split(".") if written else []
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadInput(f'--replay: "{written}" is not numbers with dots between them')
    return tuple(map(int, parts))


def _command(options: argparse.Namespace) -> str:
    names = ("slots", "front_ends", "requests", "window", "threads", "faults", "plant")
    flags = [
        f"--{name.replace('_', '-')} {getattr(options, name)}"
        for name in names
        if getattr(options, name) is not None
    ]
    return " ".join(["blink check", *flags])


def _progress(states: int | None, transitions: int) -> None:
    if not sys.stderr.isatty():
        return
    if states is None:
        sys.stderr.write("\r\x1b[K")
    else:
        sys.stderr.write(f"\r{states:,} states, {transitions:,} transitions")
    sys.stderr.flush()
