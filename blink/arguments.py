"""The words of the command line: every command's arguments, with an example each."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from blink import __version__

SPECS_DIR: Final = Path("specs")
Commands = Mapping[str, Callable[[argparse.Namespace], int]]


def parser(functions: Commands) -> argparse.ArgumentParser:
    """The whole command line; ``functions`` are the commands by name."""
    made = argparse.ArgumentParser(
        prog="blink",
        description="CPU-free LLM serving: a digital twin with pluggable hardware backends.",
        epilog="start with:  blink run specs/demo.toml",
    )
    made.add_argument("--version", action="version", version=f"blink {__version__}")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    _add_plan(commands)
    _add_validate(commands)
    one = _add(commands, "specs", "list the scenarios and their questions", "blink specs")
    one.add_argument("directory", nargs="?", type=Path, default=SPECS_DIR, metavar="DIR")
    one = _add(
        commands,
        "explain",
        "print a scenario with every default, and where each constant comes from",
        "blink explain specs/demo.toml",
    )
    one.add_argument("spec", type=Path, metavar="SPEC")
    _add_settings(one)
    one = _add(
        commands,
        "compare",
        "compare two outputs of blink run --out, or two runs in them, figure by figure",
        "blink compare out/before out/after",
    )
    one.add_argument("a", type=Path, metavar="A", help="an output directory, or a run's in it")
    one.add_argument("b", type=Path, metavar="B", help="another; differences are B's against A's")
    one = _add(
        commands,
        "fidelity",
        "predict measured runs and print the error of every metric",
        "blink fidelity blink/model/data/measured/vllm_h200.json",
    )
    one.add_argument("files", nargs="+", type=Path, metavar="FILE")
    one.add_argument("--model-config", type=Path, help="HF config.json of the measured model")
    one.add_argument("--gpu", help="GPU of the measurement, if the file does not say")
    _add_reproduce(commands)
    _add_calibrate(commands)
    _add_check(commands)
    _add_fuzz(commands)
    for name, function in functions.items():
        commands.choices[name].set_defaults(command=function)
    return made


def _add_reproduce(commands: Any) -> None:
    one = _add(
        commands,
        "reproduce",
        "run the paper's whole evaluation in the twin, and hold every figure against the paper's",
        "blink reproduce --only t6",
    )
    one.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write page, data and pictures",
    )
    one.add_argument("--only", metavar="ID", help="entries whose id begins with ID, each shown")
    one.add_argument("--jobs", type=int, metavar="N", help="processes; default: one a core")
    one.add_argument("--seed", type=_seed, metavar="N", help="draw other requests; default: 1")


def _add_calibrate(commands: Any) -> None:
    one = _add(
        commands,
        "calibrate",
        "fit the twin's constants to observed runs, and say how far they can be believed",
        "blink calibrate blink/model/data/measured/vllm_h200.json --out h200-vllm.json",
    )
    one.add_argument(
        "records",
        nargs="+",
        type=Path,
        metavar="RECORD",
        help="what blink run or validate wrote, a profile, vllm bench serve or GuideLLM JSON, or "
        "measured requests",
    )
    one.add_argument(
        "--cross-validate", action="store_true", help="fit to one run and to all but one, and judge"
    )
    one.add_argument("--out", type=Path, metavar="FILE", help="write the profile as NAME.json")
    one.add_argument("--fit", metavar="NAMES", help="fit these constants only; all must be told")
    one.add_argument("--system", metavar="NAME", help="of a record of several systems, this one")
    one.add_argument("--model", type=Path, metavar="NAME", help="model, or its HF config.json")
    one.add_argument("--gpu", metavar="NAME", help="GPU of the runs, if the file does not say")
    one.add_argument("--host", metavar="NAME", help="host of the runs, if the file does not say")


def _add_check(commands: Any) -> None:
    one = _add(
        commands,
        "check",
        "explore every interleaving of the real protocol code on a small ring",
        "blink check --slots 2 --front-ends 2 --requests 3 --window 3 --faults all",
    )
    for name, default, what in (
        ("slots", 2, "slots, shared out evenly among the front ends"),
        ("front-ends", 2, "front ends, each with its own connection"),
        ("requests", 3, "requests, dealt to the front ends in turn"),
        ("window", 3, "launches in one execution of the scheduler"),
        ("threads", 2, "scanning threads that may see a slot before one of them claims it"),
        ("disturbances", 1, "crashes, early relaunches, farewells and repeats in all"),
        ("output-tokens", 3, "tokens of a long answer"),
        ("blocks", 4, "KV blocks, of one token each"),
        ("batch", 2, "sequences decoded together"),
    ):
        one.add_argument(f"--{name}", type=int, default=default, metavar="N", help=what)
    one.add_argument(
        "--faults",
        default="all",
        metavar="LIST",
        help="all, none, or names: cancel, crash, relaunch, farewell, repeat",
    )
    one.add_argument("--whole", action="store_true", help="leave no order out: far slower")
    one.add_argument("--budget", type=float, metavar="SECONDS", help="stop after so long")
    one.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    one.add_argument("--plant", metavar="BUG", help="plant a bug of blink.testing.explorer.planted")
    one.add_argument("--replay", metavar="WAY", help="go one way again, as a violation printed it")
    one.add_argument(
        "--timeline", type=Path, metavar="FILE", help="with --replay: the way, for ui.perfetto.dev"
    )


def _add_fuzz(commands: Any) -> None:
    one = _add(
        commands,
        "fuzz",
        "walk through larger rings at random, with faults, until something breaks",
        "blink fuzz --for 10m --jobs 2",
    )
    one.add_argument("--for", dest="time", default="1m", metavar="TIME", help="30s, 10m, 1h")
    one.add_argument("--seed", type=_seed, metavar="N", help="the first seed; default: a new one")
    one.add_argument("--walks", type=int, metavar="N", help="stop after so many")
    one.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    one.add_argument("--plant", metavar="BUG", help="plant a bug of blink.testing.explorer.planted")


def _add_validate(commands: Any) -> None:
    one = _add(
        commands,
        "validate",
        "run scenarios on the real machine and in the twin, and print the error of every figure",
        "blink validate specs/hardware/poisson.toml --profile-out h200.json",
    )
    one.add_argument("specs", nargs="+", type=Path, metavar="SPEC")
    one.add_argument(
        "--interference",
        action="store_true",
        help="run blink and host_resident alone, and next to real neighbours on this host",
    )
    one.add_argument("--out", type=Path, metavar="DIR", help="write both records of each run")
    one.add_argument(
        "--profile-out", type=Path, metavar="FILE", help="write what was measured as NAME.json"
    )
    _add_settings(one)
    one = _add(
        commands,
        "bench",
        "measure what single things cost on this GPU, beside the twin's constants and their limits",
        "blink bench gpu --json",
    )
    one.add_argument("what", choices=["gpu"], help="gpu: launches, scans, claims, copies")


def _add_plan(commands: Any) -> None:
    one = _add(
        commands,
        "plan",
        "find the largest load that meets an SLO, and what serving a demand takes and costs",
        "blink plan specs/capacity/quickstart.toml --set demand.rate=50 --out out/plan",
    )
    one.add_argument("plan", type=Path, metavar="PLAN")
    one.add_argument("--out", type=Path, metavar="DIR", help="write the answer and a report")
    one.add_argument(
        "--executor",
        choices=["local", "ray"],
        default="local",
        help="local: all cores here; ray: an existing Ray cluster (pip install 'blink-twin[ray]')",
    )
    one.add_argument("--workers", type=int, metavar="N", help="processes; default: one a core")
    one.add_argument("--cache", type=Path, metavar="DIR", help="where finished runs are kept")
    one.add_argument("--no-cache", action="store_true", help="keep none, take none")
    _add_settings(one)


def _add_run(commands: Any) -> None:
    one = _add(
        commands,
        "run",
        "run scenarios and compare systems",
        "blink run specs/demo.toml --set workload.rate=6 --out out/demo",
    )
    one.add_argument("specs", nargs="+", type=Path, metavar="SPEC")
    one.add_argument("--backend", default="sim", help="default: sim, the twin")
    one.add_argument("--out", type=Path, metavar="DIR", help="write record, report, timeline")
    _add_settings(one)


def _add(commands: Any, name: str, what: str, example: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=what, description=what, epilog=f"example:  {example}"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key"
    )
    parser.add_argument("--seed", type=_seed, metavar="N", help="override the scenario's seed")


def _seed(text: str) -> int:
    try:
        seed = int(text)
    except ValueError:
        seed = -1
    if not 0 <= seed < 1 << 63:
        raise argparse.ArgumentTypeError(f"a seed is a whole number from 0 to 2**63 - 1: {text}")
    return seed
