"""Least squares over the twin: which constants observed runs can identify, and what they are.

The unknowns are logarithms of constants, the residuals logarithms of predicted over measured, each
in units of what its figure is trusted to (:data:`TRUST`). The twin is deterministic and its random
streams are the same in every evaluation, but it decides (a prompt joins this step or the next), so
its figures are rough on a small scale: derivatives are differences over :data:`STEP`, not less.

A constant is fitted only if the runs identify it (:mod:`blink.plan.identify`). Where there are runs
on a quiet host, these are fitted first: what they tell of the GPU and the engine is held while the
rest is fitted to the runs next to neighbours, so that no flaw of the mechanism of interference is
made good by a false GPU. The intervals carry the first stage's errors into the second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import exp, log, sqrt
from typing import Final

import numpy as np

from blink import backends
from blink.model.errors import BackendUnavailable, BadInput
from blink.model.fitted import constant_of
from blink.model.record import RunRecord
from blink.plan.identify import ERROR_MAX, Floats, choose, standard_errors
from blink.plan.observations import Observation, record_figures

Values = Mapping[str, float]
STEP: Final = 0.1
"""Of a logarithm: how far a constant is moved to see what it does."""
XTOL, FTOL = 5e-3, 1e-2
"""A step of half a per cent, or a per cent less misfit, is below what the figures can tell."""
LOST: Final = 1.5
"""A constant whose standard error has grown beyond that many times :data:`ERROR_MAX` is let go."""
TRUST: Final = {
    "ttft_ms.mean": 0.05,
    "ttft_ms.p50": 0.05,
    "tpot_ms.mean": 0.02,
    "tpot_ms.p50": 0.03,
    "itl_ms.mean": 0.02,
    "itl_ms.p50": 0.04,
    "output_tok_s": 0.02,
    "throughput_req_s": 0.02,
    "decode_step_ms.p50": 0.02,
    "prefill_step_ms.p50": 0.05,
    "control_us.p50": 0.05,
}
"""Assumed: relative error, one sigma, of a measured figure and the mechanism behind it together."""
NOISY_TRUST: Final = 2.0
"""Assumed: next to neighbours each is trusted to twice that."""
MISSING: Final = 3.0
"""Logarithm that stands for a figure which the prediction lacks: nothing completed."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A constant that may be fitted, and the least and most that it may become.

    ``noisy``: it does nothing on a quiet host.
    """

    name: str
    low: float
    high: float
    noisy: bool = False


CANDIDATES: Final = (
    Candidate("engine.memory_efficiency", 0.2, 1.0),
    Candidate("engine.compute_efficiency", 0.1, 1.4),
    Candidate("engine.attention_memory_efficiency", 0.1, 1.0),
    Candidate("engine.kernel_ns", 200, 40_000),
    Candidate("plane.step_serial_ns", 1_000, 20_000_000),
    Candidate("plane.step_host_ns", 10_000, 50_000_000),
    Candidate("plane.prefill_step_host_ns", 10_000, 50_000_000),
    Candidate("plane.api_request_ns", 10_000, 100_000_000),
    Candidate("plane.api_chunk_ns", 1_000, 5_000_000),
    Candidate("gpu.completion_poll_ns", 100, 5_000_000),
    Candidate("dpu.http_request_ns", 1_000, 50_000_000),
    Candidate("interference.queue_factor", 0.05, 20, noisy=True),
    Candidate("interference.memory_factor", 0.05, 20, noisy=True),
)


class Twin:
    """Runs observations with constants; the same twice is run once.

    ``progress`` hears of every run that was not remembered.
    """

    def __init__(self, progress: Callable[[int], None] = lambda runs: None) -> None:
        self._backend = backends.require("sim")
        self._known: dict[tuple[object, ...], dict[str, float]] = {}
        self._progress = progress
        self.runs = 0

    def figures(self, observation: Observation, constants: Values) -> dict[str, float]:
        """The predicted figures of an observation."""
        changed = {
            name: value
            for name, value in constants.items()
            if value != constant_of(observation.server, name)[0]
            and not (name.startswith("interference.") and not is_noisy(observation))
        }
        key = (observation.sha256, observation.label, tuple(sorted(changed.items())))
        if key not in self._known:
            self._known[key] = record_figures(self.record(observation, changed))
        return self._known[key]

    def record(self, observation: Observation, constants: Values) -> RunRecord:
        """The whole record of the prediction."""
        self.runs += 1
        self._progress(self.runs)
        setup = observation.setup(constants)
        return self._backend.run(setup, commit="", progress=lambda ended: None)


@dataclass(frozen=True, slots=True)
class Fit:
    """What came out: constants by name, and how well the figures determine their logarithms.

    rows: of each residual which observation and metric it is.
    slopes: float64 of shape (rows, constants), of the residuals by the logarithms.
    response: float64 of shape (constants, rows): a change d of the residuals, all else the same,
        moves the logarithms by ``-response @ d``.
    errors, free: of each constant's logarithm the standard error, and its degrees of freedom.
    scatter: of each row's stage how far its residuals scatter, in units of what they are trusted
        to; the errors are widened by it where it is above 1.
    left_out: constants that are not fitted, with the reason.
    identified_by: by observation's label, the constants that it alone would identify.
    """

    constants: dict[str, float]
    before: dict[str, float]
    rows: list[tuple[int, str]]
    slopes: Floats
    response: Floats
    errors: Floats
    free: tuple[int, ...]
    scatter: tuple[float, ...]
    left_out: dict[str, str]
    identified_by: dict[str, list[str]]

    @property
    def names(self) -> list[str]:
        """The fitted constants, in order."""
        return list(self.constants)


def fit(observations: Sequence[Observation], twin: Twin, wanted: Sequence[str] = ()) -> Fit:
    """Fit what ``observations`` identify, or of it only the constants ``wanted``.

    Raises BadInput if a wanted constant cannot be identified, or none at all; BackendUnavailable
    without SciPy.
    """
    check_scipy()
    _check_names(wanted)
    quiet = [at for at, each in enumerate(observations) if not is_noisy(each)]
    noisy = [at for at, each in enumerate(observations) if is_noisy(each)]
    stages: list[_Stage] = []
    left_out: dict[str, str] = {}
    identified_by: dict[str, list[str]] = {}
    held: dict[str, float] = {}
    for members in (quiet, noisy):
        if members:
            stage = _fit_stage(observations, members, twin, wanted, held)
            held |= stage.constants
            left_out |= stage.left_out
            identified_by |= stage.identified_by
            stages.append(stage)
    left_out = {name: why for name, why in left_out.items() if name not in held}
    for name in wanted:
        if name not in held:
            raise BadInput(f"--fit {name}: cannot be identified: {left_out[name]}")
    if not held:
        where = ", ".join(dict.fromkeys(each.file for each in observations))
        raise BadInput(f"{where}: identifies no constant of the twin: give more, or longer, runs")
    return _joined(observations, twin, stages, left_out, identified_by)


@dataclass(frozen=True, slots=True)
class _Stage:
    """One of at most two fits: of which observations, what came out, and the derivatives there."""

    members: list[int]
    constants: dict[str, float]
    before: dict[str, float]
    jacobian: Floats
    scatter: float
    left_out: dict[str, str]
    identified_by: dict[str, list[str]]


def _fit_stage(
    observations: Sequence[Observation],
    members: list[int],
    twin: Twin,
    wanted: Sequence[str],
    held: Values,
) -> _Stage:
    """Fit to some of the observations, with the constants in ``held`` as they are."""
    mine = [observations[at] for at in members]
    possible, left_out = _possible(mine, wanted, held)
    before = {each.name: constant_of(mine[0].server, each.name)[0] for each in possible}
    rows = rows_of(mine)
    whole = _Problem(mine, twin, list(before), before, rows, held)
    sensitivity = whole.certain_slopes(np.zeros(len(before)))
    chosen, unseen = choose(sensitivity, whole.names)
    left_out |= unseen
    identified_by = {
        each.label: choose(
            sensitivity[[row for row, (which, _) in enumerate(rows) if which == at]], whole.names
        )[0]
        for at, each in enumerate(mine)
    }
    limits = {each.name: each for each in possible}
    while True:
        problem = _Problem(mine, twin, chosen, before, rows, held)
        best = _solve(problem, limits) if chosen else np.empty(0)
        jacobian = problem.certain_slopes(best)
        errors = standard_errors(jacobian)
        if errors.max(initial=0.0) <= LOST * ERROR_MAX:
            break
        dropped = chosen[int(errors.argmax())]
        left_out[dropped] = "where the fit ends, the figures no longer tell it from the others"
        chosen = [name for name in chosen if name != dropped]
    left = problem.residuals(best)
    free = max(1, len(left) - len(chosen))
    return _Stage(
        members=members,
        constants={name: problem.values(best)[name] for name in chosen},
        before={name: before[name] for name in chosen},
        jacobian=jacobian,
        scatter=sqrt(float(left @ left) / free),
        left_out=left_out,
        identified_by=identified_by,
    )


def _solve(problem: _Problem, limits: Mapping[str, Candidate]) -> Floats:
    """The place with the least squares, within the limits of its constants."""
    from scipy.optimize import least_squares

    before = problem.before
    low = [log(limits[name].low / before[name]) for name in problem.names]
    high = [log(limits[name].high / before[name]) for name in problem.names]
    found = least_squares(
        problem.residuals,
        np.zeros(len(problem.names)),
        jac=problem.slopes,
        bounds=(np.minimum(low, -1e-3), np.maximum(high, 1e-3)),
        xtol=XTOL,
        ftol=FTOL,
        gtol=1e-6,
        max_nfev=20,
    )
    return np.asarray(found.x, dtype=np.float64)


def _joined(
    observations: Sequence[Observation],
    twin: Twin,
    stages: Sequence[_Stage],
    left_out: dict[str, str],
    identified_by: dict[str, list[str]],
) -> Fit:
    """The stages as one fit: a later one answers to what an earlier one gets wrong."""
    rows = rows_of(observations)
    constants = {name: value for each in stages for name, value in each.constants.items()}
    before = {name: value for each in stages for name, value in each.before.items()}
    place = {name: at for at, name in enumerate(constants)}
    slopes = np.zeros((len(rows), len(constants)))
    response = np.zeros((len(constants), len(rows)))
    scatter = np.ones(len(rows))
    free = [1] * len(constants)
    for stage in stages:
        mine = [row for row, (which, _) in enumerate(rows) if which in stage.members]
        names = list(stage.constants)
        own = [place[name] for name in names]
        slopes[np.ix_(mine, own)] = stage.jacobian
        scatter[mine] = stage.scatter
        earlier = [name for name in constants if place[name] < min(own, default=0)]
        inverse = np.linalg.pinv(stage.jacobian)
        response[np.ix_(own, mine)] = inverse
        if earlier and own:
            across = _across(observations, twin, stage, earlier, constants, before)
            slopes[np.ix_(mine, [place[name] for name in earlier])] = across
            passed = inverse @ across @ response[[place[name] for name in earlier]]
            response[own] -= passed
        for at in own:
            free[at] = max(1, len(mine) - len(own))
    errors = np.sqrt(np.sum((response * np.maximum(1.0, scatter)) ** 2, axis=1))
    return Fit(
        constants=constants,
        before=before,
        rows=rows,
        slopes=slopes,
        response=response,
        errors=errors,
        free=tuple(free),
        scatter=tuple(scatter.tolist()),
        left_out=left_out,
        identified_by=identified_by,
    )


def _across(
    observations: Sequence[Observation],
    twin: Twin,
    stage: _Stage,
    earlier: list[str],
    constants: Values,
    before: Values,
) -> Floats:
    """Derivatives of a stage's residuals by the constants that it held."""
    mine = [observations[at] for at in stage.members]
    problem = _Problem(mine, twin, earlier, before, rows_of(mine), stage.constants)
    return problem.slopes(np.array([log(constants[name] / before[name]) for name in earlier]))


def rows_of(observations: Sequence[Observation]) -> list[tuple[int, str]]:
    """Which observation and metric each residual is; requests/s only where tokens/s is missing."""
    return [
        (at, metric)
        for at, each in enumerate(observations)
        for metric in TRUST
        if metric in each.figures
        and not (metric == "throughput_req_s" and "output_tok_s" in each.figures)
    ]


def sigma_of(observation: Observation, metric: str) -> float:
    """What a figure is trusted to, relative, one sigma."""
    return TRUST[metric] * (NOISY_TRUST if is_noisy(observation) else 1.0)


def is_noisy(observation: Observation) -> bool:
    """Whether it ran next to neighbours."""
    return bool(observation.server.interference.neighbours)


class _Problem:
    """Residuals and their derivatives by the logarithms of ``names`` over ``before``."""

    def __init__(
        self,
        observations: Sequence[Observation],
        twin: Twin,
        names: list[str],
        before: Values,
        rows: Sequence[tuple[int, str]],
        held: Values,
    ) -> None:
        self.names, self._held = names, held
        self._observations, self._twin = observations, twin
        self.before, self._rows = before, rows

    def values(self, place: Floats) -> dict[str, float]:
        """The constants at a place, those that are held among them."""
        return {**self._held} | {
            name: self.before[name] * exp(float(each))
            for name, each in zip(self.names, place, strict=True)
        }

    def residuals(self, place: Floats) -> Floats:
        values = self.values(place)
        predicted = [self._twin.figures(each, values) for each in self._observations]
        found = np.empty(len(self._rows))
        for row, (at, metric) in enumerate(self._rows):
            value = predicted[at].get(metric)
            observation = self._observations[at]
            off = log(value / observation.figures[metric]) if value else MISSING
            found[row] = off / sigma_of(observation, metric)
        return found

    def slopes(self, place: Floats) -> Floats:
        """Two-sided derivatives: to go on from there."""
        ahead, behind = self._around(place)
        found: Floats = (ahead - behind) / (2 * STEP)
        return found

    def certain_slopes(self, place: Floats) -> Floats:
        """Derivatives to judge by: less what the two sides disagree by, which may be roughness."""
        ahead, behind = self._around(place)
        here = self.residuals(place)[:, np.newaxis]
        slopes, doubt = (
            (ahead - behind) / (2 * STEP),
            np.abs(ahead + behind - 2 * here) / (2 * STEP),
        )
        found: Floats = np.sign(slopes) * np.maximum(0.0, np.abs(slopes) - doubt)
        return found

    def _around(self, place: Floats) -> tuple[Floats, Floats]:
        steps = STEP * np.eye(len(place))
        shape = (len(place), len(self._rows))
        ahead = np.array([self.residuals(place + step) for step in steps]).reshape(shape)
        behind = np.array([self.residuals(place - step) for step in steps]).reshape(shape)
        return ahead.T, behind.T


def _check_names(wanted: Sequence[str]) -> None:
    known = [each.name for each in CANDIDATES]
    for name in wanted:
        if name not in known:
            raise BadInput(
                f"--fit {name}: no constant that can be fitted; known: {', '.join(known)}"
            )


def _possible(
    observations: Sequence[Observation], wanted: Sequence[str], held: Values
) -> tuple[list[Candidate], dict[str, str]]:
    """The candidates that mean something here, and why the others do not."""
    noisy = is_noisy(observations[0])
    possible, left_out = [], {}
    for each in CANDIDATES:
        if each.name in held:
            continue
        if wanted and each.name not in wanted:
            left_out[each.name] = "not asked for"
        elif each.noisy and not noisy:
            left_out[each.name] = "no observed run had neighbours"
        elif not _means_something(observations[0], each.name):
            left_out[each.name] = f"no part of system {observations[0].server.system}, or 0 there"
        else:
            possible.append(each)
    return possible, left_out


def _means_something(observation: Observation, name: str) -> bool:
    """Whether the constant is in use: a GPU that schedules has no host loop, and the reverse."""
    setup = observation.server
    on_gpu, part = setup.plane.processes == 0, name.partition(".")[0]
    if on_gpu and part in ("plane", "interference"):
        return False
    if part == "gpu" and not on_gpu:
        return False
    if part == "dpu" and setup.plane.front_end != "dpu":
        return False
    return constant_of(setup, name)[0] > 0


def check_scipy() -> None:
    """Raise BackendUnavailable, with the command that installs it, where SciPy is missing."""
    if find_spec("scipy") is None:
        raise BackendUnavailable(
            "calibrating needs SciPy, which is not installed here; install it with: "
            "pip install 'scipy>=1.14'"
        )
