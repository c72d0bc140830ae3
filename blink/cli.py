"""The command line: results on stdout, progress and complaints on stderr.

Exit codes: 0 fine; 1 an expectation or invariant does not hold; 2 the input or the environment is
not what it should be, said in one line without a traceback; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from blink import backends
from blink.arguments import parser
from blink.model.errors import BackendFailed, BackendUnavailable, BadInput

EXIT_FAILED: Final = 1
EXIT_BAD_INPUT: Final = 2
EXIT_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = parser(COMMANDS).parse_args(arguments)
    options.words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        command: Callable[[argparse.Namespace], int] = options.command
        return command(options)
    except (BadInput, BackendUnavailable) as error:
        for line in str(error).splitlines():
            print(f"blink: {line}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except BackendFailed as error:
        print(f"blink: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("blink: interrupted; what is done of a sweep is kept", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_FAILED
    except OSError as error:  # a path that no file can have, a full disk: the environment's
        print(
            f"blink: {error.filename or 'cannot go on'}: {error.strerror or error}", file=sys.stderr
        )
        return EXIT_BAD_INPUT


# --- run -------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> int:
    """``blink run``: run scenarios and compare systems."""
    from blink.plan import runner

    backend = backends.require(options.backend)
    scenarios = [runner.load(spec, options.set, options.seed) for spec in options.specs]
    plans = []
    for scenario in scenarios:
        backends.check_capabilities(backend, list(scenario.requires))
        plans.append(runner.plan_runs(scenario))
    places = _places(options)
    document: dict[str, Any] = {"runs": [], "verdicts": [], "violations": []}
    for scenario, plan, place in zip(scenarios, plans, places, strict=True):
        results = _execute(plan, backend)
        _report(options, scenario, results, backend, document)
        if place is not None:
            _write(place, scenario, results, runner.verdicts(scenario, results, backend))
    if options.json:
        _print_json(document)
    return _failed(document)


def _execute(plan: Sequence[Any], backend: backends.Backend) -> list[Any]:
    """Run ``plan`` with progress on stderr, invariants checked on every record."""
    from blink.plan import runner
    from blink.plan.progress import Progress
    from blink.testing.invariants import violations

    results = []
    with Progress(plan) as progress:
        backends.tell_setup(backend, progress.prepare)
        for result in runner.execute(plan, backend, progress=progress.advance):
            result.record.violations = violations(result.record)
            progress.finish(result)
            results.append(result)
    return results


def _report(
    options: argparse.Namespace,
    scenario: Any,
    results: Sequence[Any],
    backend: backends.Backend,
    document: dict[str, Any],
) -> None:
    """Add the results to ``document``, and unless that is all that is wanted, print a table."""
    from blink.plan import runner

    verdicts = runner.verdicts(scenario, results, backend)
    broken = [f"{r.record.label}: {each}" for r in results for each in r.record.violations]
    document["runs"] += [result.summary for result in results]
    document["verdicts"] += [
        {"text": v.text, "point": v.point, "holds": v.holds, "value": v.number} for v in verdicts
    ]
    document["violations"] += broken
    if not options.json:
        from blink.plan.table import print_run

        print_run(scenario, results, verdicts, broken)


def _write(
    directory: Path, scenario: Any, results: Sequence[Any], verdicts: Sequence[Any] = ()
) -> None:
    from blink.model.scenario import resolved
    from blink.plan import output
    from blink.plan.run_report import run_report

    print(f"writing {len(results)} record(s) and their report", file=sys.stderr)
    records = [result.record for result in results]
    summaries = [result.summary for result in results]
    report = run_report(scenario, results, verdicts)
    output.write_run(directory, records, summaries, resolved(scenario), report=report)
    print(f"written to {directory}/: report.html for any browser,", file=sys.stderr, end=" ")
    print("timeline.json for ui.perfetto.dev", file=sys.stderr)


def _places(options: argparse.Namespace, *below: str) -> list[Path | None]:
    """Where each spec's output goes: --out itself, or below it by the specs' names.

    ``below``: the folders of it that are written, if it is not the place itself.

    Raises BadInput, before anything runs, if one cannot be written.
    """
    if options.out is None:
        return [None] * len(options.specs)
    from blink.plan.output import check_out_dir

    names = [spec.stem for spec in options.specs]
    if len(set(names)) < len(names):
        names = [f"{number}-{name}" for number, name in enumerate(names, start=1)]
    places = [options.out] if len(names) == 1 else [options.out / name for name in names]
    for place in places:
        for folder in below or (".",):
            check_out_dir(place / folder)
    return list(places)


# --- validate, bench -------------------------------------------------------------------------


def validate(options: argparse.Namespace) -> int:
    """``blink validate``: scenarios on the real machine and in the twin, figure by figure."""
    from blink.plan import validate as steps
    from blink.plan.progress import Progress, announce
    from blink.plan.validate_report import document, machine_rows, print_validation

    metal = backends.require_metal()
    machine = metal.metal()
    specs = [
        steps.plan(
            path, options.set, options.seed, machine["gpu"], interference=options.interference
        )
        for path in options.specs
    ]
    for spec in specs:
        backends.check_capabilities(metal, list(spec.scenario.requires))
    out = options.profile_out
    name = steps.check_profile_out(out) if out is not None else "just-measured"
    places = _places(options, "metal", "twin")
    microbenchmarks = metal.microbenchmarks(announce)
    done = []
    for spec, place in zip(specs, places, strict=True):
        with Progress(spec.runs) as progress:
            backends.tell_setup(metal, progress.prepare)
            ran = steps.on_metal(spec, metal, progress.advance, progress.finish)
        done += [(spec, *each) for each in ran]
        _keep(place, "metal", spec, [result for result, _ in ran])
    measured = steps.measure(
        metal, microbenchmarks, done, name=name, command=shlex.join(["blink", *options.words])
    )
    announce("the same runs in the twin")
    pairs, measured = steps.compare(done, measured)
    if out is not None:
        steps.write_profile(out, measured)
        announce(f"profile {name} written to {out}")
    for spec, place in zip(specs, places, strict=True):
        _keep(place, "twin", spec, [pair.twin for pair in pairs if pair.spec is spec])
    found: dict[str, Any] = {"machine": machine, "profile": name}
    found["microbenchmarks"] = machine_rows(microbenchmarks, machine["gpu"])
    found |= document(pairs)
    if options.json:
        _print_json(found)
    else:
        print_validation(found)
    return _failed(found)


def _keep(place: Path | None, name: str, spec: Any, results: Sequence[Any]) -> None:
    """Check the invariants of every record, and write it, if it is to be kept, at once."""
    from blink.testing.invariants import violations

    for result in results:
        result.record.violations = violations(result.record)
    if place is not None:
        _write(place / name, spec.scenario, results)


def _failed(document: dict[str, Any]) -> int:
    """The exit code of what was expected of the runs in ``document``."""
    failed = document["violations"] or any(v["holds"] is False for v in document["verdicts"])
    return EXIT_FAILED if failed else 0


def bench(options: argparse.Namespace) -> int:
    """``blink bench gpu``: what single things cost on this GPU, and whether that will do."""
    from blink.plan.bench_gpu import print_bench, rows_of
    from blink.plan.progress import announce

    metal = backends.require_metal()
    machine = metal.metal()
    rows = rows_of(metal.microbenchmarks(announce), machine["gpu"])
    if options.json:
        _print_json({"machine": machine, "microbenchmarks": rows})
    else:
        print_bench(machine, rows)
    return EXIT_FAILED if any(row["holds"] is False for row in rows) else 0


# --- specs, explain --------------------------------------------------------------------------


def specs(options: argparse.Namespace) -> int:
    """``blink specs``: the scenarios and their questions."""
    from blink.plan.catalogue import list_specs, print_specs

    found = list_specs(options.directory)
    if options.json:
        _print_json({"specs": found})
    else:
        print_specs(found)
    return 0


def explain(options: argparse.Namespace) -> int:
    """``blink explain``: a scenario with every default, and the origin of every constant."""
    from blink.plan import runner
    from blink.plan.explain import explanation, print_explanation

    scenario = runner.load(options.spec, options.set, options.seed)
    found = explanation(scenario, runner.plan_runs(scenario))
    if options.json:
        _print_json(found)
    else:
        print_explanation(found)
    return 0


def compare(options: argparse.Namespace) -> int:
    """``blink compare``: two recorded runs, figure by figure."""
    from blink.plan import compare as comparing

    found = comparing.compare(comparing.read_side(options.a), comparing.read_side(options.b))
    if options.json:
        _print_json(found)
    else:
        comparing.print_comparison(found)
    return 0


# --- fidelity, calibrate, reproduce ----------------------------------------------------------


def fidelity(options: argparse.Namespace) -> int:
    """``blink fidelity``: predict measured runs and print the error of every metric."""
    from blink.plan.fidelity import compare_files, print_fidelity

    rows = compare_files(options.files, model_config=options.model_config, gpu=options.gpu)
    if options.json:
        _print_json({"runs": rows})
    else:
        print_fidelity(rows)
    return 0


def calibrate(options: argparse.Namespace) -> int:
    """``blink calibrate``: observed runs in, a fitted profile out."""
    from blink.plan import calibrate_command

    calibrate_command.run(options, shlex.join(["blink", *options.words]), _print_json)
    return 0


def reproduce(options: argparse.Namespace) -> int:
    """``blink reproduce``: the paper's evaluation in the twin, every figure held against it."""
    from blink.plan.executor import TimeLeft
    from blink.plan.paper import reproduce as paper
    from blink.plan.paper.evaluation import SEED

    if options.jobs is not None and options.jobs < 1:
        raise BadInput(f"--jobs {options.jobs}: at least 1")
    if options.out is not None:
        if options.only is not None:
            raise BadInput("--out writes the whole evaluation: leave --only or --out out")
        paper.check_folder(options.out)
    document, results = paper.reproduce(
        options.only,
        whole=options.only is None,
        seed=SEED if options.seed is None else options.seed,
        workers=options.jobs,
        progress=lambda number: TimeLeft(f"runs, part {number}", sys.stderr.write),
    )
    if options.out is not None:
        written = paper.write(document, results, options.out)
        print(
            f"written to {options.out}/: {written[0].name} and {len(written) - 1} more",
            file=sys.stderr,
        )
    if options.json:
        _print_json(document)
    else:
        paper.print_reproduction(document, entries=options.only is not None)
    return 0


# --- plan ------------------------------------------------------------------------------------


def plan(options: argparse.Namespace) -> int:
    """``blink plan``: the largest load that each candidate serves within an SLO, and its price."""
    from blink.model.scenario.loader import load_page
    from blink.plan.capacity.answer import answer, check_runnable, feasible
    from blink.plan.capacity.page import Plan
    from blink.plan.executor import default_cache

    page = load_page(options.plan, _seeded(options), Plan)
    if options.out is not None:
        from blink.plan.capacity.files import FILES
        from blink.plan.output import check_out_dir

        check_out_dir(options.out, FILES)
    document = answer(
        page,
        where=options.executor,
        workers=options.workers,
        cache=None if options.no_cache else options.cache or default_cache(),
        say=sys.stderr.write,
    )
    check_runnable(document)
    if options.out is not None:
        from blink.plan.capacity.files import write_plan

        write_plan(options.out, page, document)
        print(f"written to {options.out}/", file=sys.stderr)
    if options.json:
        _print_json(document)
    else:
        from blink.plan.capacity.table import print_plan

        print_plan(document)
    return 0 if feasible(document) else EXIT_FAILED


def _seeded(options: argparse.Namespace) -> list[str]:
    return [*options.set, f"seed={options.seed}"] if options.seed is not None else options.set


# --- check -----------------------------------------------------------------------------------


def check(options: argparse.Namespace) -> int:
    """``blink check``: explore every interleaving of a small ring."""
    from blink.testing.explorer import command

    return command.check(options, _print_json)


def fuzz(options: argparse.Namespace) -> int:
    """``blink fuzz``: random walks through larger rings, each from its seed."""
    from blink.plan.commit import commit_id
    from blink.testing.explorer import command

    return command.fuzz(options, commit_id(), _print_json)


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, allow_nan=False))


COMMANDS: Final = {
    "run": run,
    "plan": plan,
    "validate": validate,
    "bench": bench,
    "specs": specs,
    "explain": explain,
    "compare": compare,
    "fidelity": fidelity,
    "calibrate": calibrate,
    "reproduce": reproduce,
    "check": check,
    "fuzz": fuzz,
}


if __name__ == "__main__":
    sys.exit(main())
