"""``blink check`` and ``blink fuzz``: from their options to an answer."""

from __future__ import annotations

import argparse
import multiprocessing
import re
import secrets
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from typing import Any

from rich.console import Console

from blink.model.errors import BadInput, UnknownName
from blink.testing.explorer.fuzz import Found, finish, walk
from blink.testing.explorer.machine import Broken
from blink.testing.explorer.parts import FAULTS, Config
from blink.testing.explorer.planted import planted
from blink.testing.explorer.report import document, print_report, print_trace, write_timeline
from blink.testing.explorer.search import Search, replay
from blink.testing.explorer.world import World

EXIT_VIOLATED = 1
WALKS_AT_ONCE = 64


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
            print_report(report, _command(config, options.plant))
    return EXIT_VIOLATED if report.violations else 0


def fuzz(options: argparse.Namespace, commit: str, print_json: Callable[[Any], None]) -> int:
    """Walk until the time is up or something breaks. Exit code 1 then. Raises BadInput."""
    seconds = _seconds(options.time)
    if options.walks is not None and options.walks < 1:
        raise BadInput(f"--walks: must be at least 1, is {options.walks}")
    seed = secrets.randbits(48) if options.seed is None else options.seed
    with planted(options.plant) if options.plant else nullcontext():
        walks, found = _walk_all(seed, seconds, options.walks, max(1, options.jobs))
    violations = [] if found is None else [_told(found, options.plant)]
    if options.json:
        print_json({"walks": walks, "first_seed": seed, "commit": commit, "violations": violations})
    elif found is None:
        Console().print(f"{walks:,} walks from seed {seed} on, none broke anything ({commit})")
    else:
        told = f"violated: {found.what}\nseed {found.seed}, commit {commit}\n"
        told += f"again: {violations[0]['again']}"
        Console().print(told, soft_wrap=True, highlight=False, markup=False)
    return EXIT_VIOLATED if found else 0


def _told(found: Found, plant: str | None) -> dict[str, Any]:
    way = ".".join(map(str, found.path))
    again = f"{_command(found.config, plant)} --replay {way}"
    return {"what": found.what, "seed": found.seed, "steps": len(found.path), "again": again}


def _walk_all(
    seed: int, seconds: float, walks_max: int | None, jobs: int
) -> tuple[int, Found | None]:
    """Walk seeds in order, some at a time, until the time is up; and what the first broke."""
    deadline, walks = time.monotonic() + seconds, 0
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        while time.monotonic() < deadline and walks != walks_max:
            some = min(jobs * WALKS_AT_ONCE, (walks_max or 1 << 62) - walks)
            seeds = range(seed + walks, seed + walks + some)
            for found in pool.map(walk, seeds, chunksize=WALKS_AT_ONCE // 4):
                walks += 1
                if found is not None:
                    return walks, found
            _progress_walks(walks)
    return walks, None


def _seconds(written: str) -> float:
    match = re.fullmatch(r"(\d{1,6})(s|m|h)", written)
    if match is None or int(match[1]) == 0:
        raise BadInput(f'--for: "{written}" is not a time such as 30s, 10m or 1h')
    return int(match[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


def _progress_walks(walks: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{walks:,} walks\x1b[K\r")
        sys.stderr.flush()


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
    if any(step.broken for step in steps):
        return EXIT_VIOLATED
    return _end(steps[-1].world if steps else World(config))


def _end(world: World) -> int:
    """A way that broke nothing may lead to where a request never ends, or something is left."""
    try:
        finish(world, [])
    except Broken as broken:
        sys.stderr.write(f"and then, without any fault: {broken}\n")
        return EXIT_VIOLATED
    return 0


def _config(options: argparse.Namespace) -> Config:
    """The ring that the options describe. Raises BadInput, naming the option."""
    limits = {"slots": 8, "front_ends": 8, "requests": 16, "window": 120, "threads": 8}
    limits |= {"disturbances": 8, "output_tokens": 8, "blocks": 64, "batch": 8}
    for name, most in limits.items():
        if not 1 <= getattr(options, name) <= most:
            flag = name.replace("_", "-")
            raise BadInput(f"--{flag}: must be 1 to {most}, is {getattr(options, name)}")
    if options.window < 2:
        raise BadInput("--window: must be at least 2: a prefill and the decode it resumes")
    if options.slots % options.front_ends:
        raise BadInput("--slots: must be a multiple of --front-ends: each has as many")
    if options.blocks <= options.output_tokens:
        raise BadInput("--blocks: must be more than --output-tokens, or no long answer ever fits")
    if options.budget is not None and not options.budget > 0:
        raise BadInput(f"--budget: must be above 0, is {options.budget:g}")
    return Config(
        slots=options.slots,
        front_ends=options.front_ends,
        requests=options.requests,
        window=options.window,
        threads=options.threads,
        faults=_faults(options.faults),
        disturbances=options.disturbances,
        output_tokens=options.output_tokens,
        blocks=options.blocks,
        batch=options.batch,
        reduced=not options.whole,
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


def _command(config: Config, plant: str | None) -> str:
    """The command line that means this configuration."""
    names = ("slots", "front_ends", "requests", "window", "threads", "disturbances")
    flags = [
        f"--{name.replace('_', '-')} {getattr(config, name)}"
        for name in (*names, "output_tokens", "blocks", "batch")
    ]
    flags.append(f"--faults {','.join(sorted(config.faults)) or 'none'}")
    flags += [] if config.reduced else ["--whole"]
    flags += [f"--plant {plant}"] if plant else []
    return " ".join(["blink check", *flags])


def _progress(states: int | None, transitions: int) -> None:
    if not sys.stderr.isatty():
        return
    if states is None:
        sys.stderr.write("\r\x1b[K")
    else:
        sys.stderr.write(f"\r{states:,} states, {transitions:,} transitions")
    sys.stderr.flush()
