"""``blink validate``: a scenario on a real machine and in the twin, figure by figure.

The machine measures single things, then serves the scenario's requests. The twin predicts the same
run twice: with what was just measured (a hardware profile) and with the catalogue's constants. What
is left of the first error is what the model misses; the second says what calibration is worth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from blink import backends
from blink.hw.neighbours import Neighbours, neighbours
from blink.model.calibration import DIRECT, calibrate, without_a_slowed_gpu
from blink.model.errors import BadInput
from blink.model.hardware import gpu as gpu_sku
from blink.model.profile import Profile, RecordedRun, Requests, Timing
from blink.model.scenario import Scenario
from blink.model.setup import RunSetup
from blink.model.workload import Workload
from blink.plan import runner
from blink.plan.commit import commit_id
from blink.plan.profiling import (
    as_it_came,
    band_of,
    error_of,
    figure_of,
    metrics_of,
    profile_of,
    requests_of,
)
from blink.plan.runner import PlannedRun, Result

SYSTEMS: Final = ("blink", "host_resident")
"""The systems that a real machine can be."""
NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*")
Row = dict[str, Any]
Advance = Callable[[PlannedRun, int], None]


@dataclass(frozen=True, slots=True)
class Spec:
    """A scenario as the machine runs it, and what the command line said of it."""

    path: Path
    settings: tuple[str, ...]
    scenario: Scenario
    runs: tuple[PlannedRun, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """One run: on the metal, in the calibrated twin, and in the twin of the catalogue."""

    spec: Spec
    came: RunSetup
    metal: Result
    twin: Result
    catalogue: Result
    busy: tuple[Row, ...] = ()


# --- planning --------------------------------------------------------------------------------


def plan(
    path: Path, settings: Sequence[str], seed: int | None, board: str, *, interference: bool
) -> Spec:
    """The runs of a scenario that a machine with that GPU can do.

    The page's GPU becomes the machine's, its DPU and link are none; with ``interference`` both
    systems run alone and next to neighbours, else those of the page run alone. Raises BadInput,
    with what is wrong, before anything has run.
    """
    written = (*settings, *([f"seed={seed}"] if seed is not None else []))
    page = runner.load(path, written)
    systems = tuple(system for system in SYSTEMS if interference or system in page.systems)
    if not systems:
        raise BadInput(
            f"{path}: runs {', '.join(page.systems)}; a real machine can be "
            f"{' or '.join(SYSTEMS)}: add --set systems={SYSTEMS[0]}"
        )
    hardware = {"gpu": gpu_sku(board).name, "dpu": DIRECT, "link": DIRECT, "profile": None}
    conditions = ("isolated", "interfered") if interference else ("isolated",)
    scenario = page.model_copy(
        update={
            "systems": systems,
            "conditions": conditions,
            "hardware": page.hardware.model_copy(update=hardware),
        }
    )
    runs = tuple(
        replace(run, setup=without_a_slowed_gpu(run.setup)) for run in runner.plan_runs(scenario)
    )
    return Spec(path, written, scenario, runs)


def check_profile_out(path: Path) -> str:
    """The name of the profile that is to be written there.

    Raises BadInput, before anything runs, for a name that none may have or no such folder.
    """
    name = path.name.removesuffix(".json")
    if name == path.name or not NAME.fullmatch(name):
        raise BadInput(
            f"{path}: a profile's file is NAME.json, of small letters, digits, points and dashes"
        )
    if not path.parent.is_dir():
        raise BadInput(f"cannot write to {path}: there is no folder {path.parent}")
    return name


def write_profile(path: Path, measured: Profile) -> None:
    """Write a profile, whole or not at all."""
    scratch = path.with_suffix(".part")
    scratch.write_text(measured.text(), encoding="utf-8")
    scratch.replace(path)


# --- running ---------------------------------------------------------------------------------


def on_metal(
    spec: Spec, backend: backends.MetalBackend, advance: Advance, finish: Callable[[Result], None]
) -> list[tuple[Result, tuple[Row, ...]]]:
    """Run ``spec`` on the machine, where that is asked for next to real neighbours."""
    commit = commit_id()
    done = []
    for run in spec.runs:
        started: list[Neighbours] = []
        record = backend.run(
            run.setup,
            commit=commit,
            progress=partial(advance, run),
            beside=partial(_neighbours_of, run.setup, started),
        )
        result = Result(run, record, runner.summary_of(run, record))
        finish(result)
        busy = [{"what": b.what, "threads": b.threads, "cores": b.cores_taken} for b in started]
        done.append((result, tuple(busy)))
    return done


@contextmanager
def _neighbours_of(setup: RunSetup, started: list[Neighbours]) -> Iterator[None]:
    """The neighbours that ``setup`` has, for real; ``started`` learns of each."""
    with ExitStack() as stack:
        started.extend(
            stack.enter_context(neighbours(each.kind, each.threads))
            for each in setup.interference.neighbours
        )
        yield


def in_twin(run: PlannedRun, setup: RunSetup) -> Result:
    """``run`` in the twin, as ``setup``."""
    twin = backends.require("sim")
    record = twin.run(setup, commit=commit_id(), progress=lambda ended: None)
    return Result(run, record, runner.summary_of(run, record))


def compare(
    done: Sequence[tuple[Spec, Result, tuple[Row, ...]]], measured: Profile
) -> tuple[list[Pair], Profile]:
    """The twin's runs beside the metal's, and the profile with those runs and their bands."""
    pairs = []
    for spec, metal, busy in done:
        planned = metal.planned
        came = as_it_came(planned.setup, metal.record)
        twin = in_twin(planned, calibrate(came, measured))
        pairs.append(Pair(spec, came, metal, twin, in_twin(planned, came), busy))
    runs = tuple(_recorded(pair) for pair in pairs)
    return pairs, measured.model_copy(update={"runs": runs})


def _recorded(pair: Pair) -> RecordedRun:
    metrics = metrics_of(pair.metal.summary)
    errors = {
        name: error_of(figure_of(pair.twin.summary, name), value) for name, value in metrics.items()
    }
    planned = pair.metal.planned
    requests = requests_of(planned.setup, pair.came)
    return RecordedRun(
        spec=_from_here(pair.spec.path).as_posix(),
        settings=pair.spec.settings,
        system=planned.setup.system,
        condition=planned.setup.condition,
        point=planned.point,
        requests=Requests.model_validate(requests, strict=False) if requests else None,
        metrics=metrics,
        bands={name: band_of(name, each) for name, each in errors.items() if each is not None},
    )


def _from_here(path: Path) -> Path:
    """Relative to the working directory, if it lies below: where others find it in their clone."""
    whole, here = path.resolve(), Path.cwd()
    return whole.relative_to(here) if whole.is_relative_to(here) else whole


def measure(
    backend: backends.MetalBackend,
    microbenchmarks: Mapping[str, Timing],
    done: Sequence[tuple[Spec, Result, tuple[Row, ...]]],
    *,
    name: str,
    command: str,
) -> Profile:
    """The profile of what ran alone; runs next to neighbours are not calibrated with."""
    alone = [
        (as_it_came(result.planned.setup, result.record), result.record)
        for _, result, _ in done
        if result.record.condition == "isolated"
    ]
    return profile_of(
        backend.metal(),
        microbenchmarks,
        alone,
        name=name,
        commit=commit_id(),
        command=command,
    )


# --- recorded runs ---------------------------------------------------------------------------


def planned_run(measured: Profile, run: RecordedRun, root: Path) -> PlannedRun:
    """The run of the scenario below ``root`` that was recorded, with the catalogue's constants.

    Raises BadInput if the scenario has no such run any more.
    """
    path = root / run.spec
    spec = plan(path, run.settings, None, measured.gpu, interference=True)
    wanted = (run.system, run.condition, run.point)
    found = [each for each in spec.runs if _identity(each) == wanted]
    if not found:
        raise BadInput(f"{path}: no run of {run.system}, {run.condition} {run.point}".rstrip())
    return found[0]


def predict(measured: Profile, run: RecordedRun, root: Path) -> dict[str, Any]:
    """The twin's figures for a recorded run, whose scenario lies below ``root``.

    Raises BadInput if the scenario has no such run any more.
    """
    planned = planned_run(measured, run, root)
    setup = planned.setup
    if run.requests is not None:
        setup = replace(setup, workload=Workload(*run.requests.arrays()))
    return in_twin(planned, calibrate(setup, measured)).summary


def recorded_rows(measured: Profile, run: RecordedRun, root: Path) -> dict[str, Row]:
    """By metric of a recorded run: measured, predicted now, error, band, and whether it holds."""
    summary = predict(measured, run, root)
    rows = {}
    for name, band in run.bands.items():
        predicted = figure_of(summary, name)
        error = error_of(predicted, run.metrics[name])
        rows[name] = {
            "measured": run.metrics[name],
            "predicted": predicted,
            "error": error,
            "band": band,
            "holds": error is not None and abs(error) <= band,
        }
    return rows


def _identity(run: PlannedRun) -> tuple[str, str, str]:
    return run.setup.system, run.setup.condition, run.point
