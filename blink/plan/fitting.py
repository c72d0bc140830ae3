"""Least squares over the twin: which constants observed runs can identify, and what they are.

The unknowns are logarithms of constants, the residuals logarithms of predicted over measured, each
in units of what its figure is trusted to (:data:`TRUST`). The twin is deterministic and its random
streams are the same in every evaluation, but it decides (a prompt joins this step or the next), so
its figures are rough on a small scale: derivatives are differences over :data:`STEP`, not less.

A constant is fitted only if the runs identify it. Constants are taken up one by one, the one that
the figures tell most of first, as long as each has a standard error of at most
:data:`ERROR_MAX` given all the others. This is a forward selection on the sensitivity matrix, as in
Brun, Reichert, Künsch: Practical identifiability analysis of large environmental simulation
models, Water Resources Research 37 (2001). What is left out is named, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blink import backends
from blink.model.errors import BackendUnavailable, BadInput
from blink.model.fitted import constant_of
from blink.model.record import RunRecord
from blink.plan.observations import Observation, record_figures

Floats = NDArray[np.float64]
Values = Mapping[str, float]
STEP: Final = 0.1
"""Of a logarithm: how far a constant is moved to see what it does."""
ERROR_MAX: Final = 0.2
"""Of a logarithm: the largest standard error with which a constant counts as identified."""
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
            and not (name.startswith("interference.") and not _is_noisy(observation))
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

    jacobian: float64 of shape (residuals, constants), of ``residuals`` by the logarithms. ``rows``
        says of each residual which observation and metric it is.
    left_out: constants that are not fitted, with the reason.
    identified_by: by observation's label, the constants that it alone would identify.
    """

    constants: dict[str, float]
    before: dict[str, float]
    jacobian: Floats
    residuals: Floats
    rows: list[tuple[int, str]]
    left_out: dict[str, str]
    identified_by: dict[str, list[str]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The fitted constants, in order."""
        return list(self.constants)


def fit(
    observations: Sequence[Observation],
    twin: Twin,
    wanted: Sequence[str] = (),
    start: Values | None = None,
) -> Fit:
    """Fit what ``observations`` identify, or of it only the constants ``wanted``.

    ``start``: where to begin, instead of at the catalogue's values.

    Raises BadInput if a wanted constant cannot be identified, or none at all; BackendUnavailable
    without SciPy.
    """
    possible, left_out = _possible(observations, wanted)
    before = {each.name: constant_of(observations[0].server, each.name)[0] for each in possible}
    rows = rows_of(observations)
    whole = _Problem(observations, twin, list(before), before, rows)
    sensitivity = whole.certain_slopes(np.zeros(len(before)))
    chosen, unseen = choose(sensitivity, whole.names)
    left_out |= unseen
    _refuse(observations, wanted, chosen, left_out)
    while True:
        problem = _Problem(observations, twin, chosen, before, rows)
        best = _solve(problem, {each.name: each for each in possible}, start or {})
        jacobian = problem.certain_slopes(best)
        errors = standard_errors(jacobian)
        if errors.max() <= LOST * ERROR_MAX:
            break
        dropped = chosen[int(errors.argmax())]
        left_out[dropped] = "where the fit ends, the figures no longer tell it from the others"
        chosen = [name for name in chosen if name != dropped]
        _refuse(observations, wanted, chosen, left_out)
    return Fit(
        constants=problem.values(best),
        before={name: before[name] for name in chosen},
        jacobian=jacobian,
        residuals=problem.residuals(best),
        rows=rows,
        left_out=left_out,
        identified_by=_identified_by(observations, rows, sensitivity, whole.names),
    )


def _solve(problem: _Problem, limits: Mapping[str, Candidate], start: Values) -> Floats:
    """The place with the least squares, within the limits of its constants."""
    before = problem.before
    low = [log(limits[name].low / before[name]) for name in problem.names]
    high = [log(limits[name].high / before[name]) for name in problem.names]
    lower, upper = np.minimum(low, -1e-3), np.maximum(high, 1e-3)
    place = [log(start.get(name, before[name]) / before[name]) for name in problem.names]
    found = _least_squares()(
        problem.residuals,
        np.clip(place, lower + 1e-6, upper - 1e-6),
        jac=problem.slopes,
        bounds=(lower, upper),
        xtol=2e-3,
        ftol=2e-3,
        gtol=1e-6,
        max_nfev=20,
    )
    return np.asarray(found.x, dtype=np.float64)


def choose(sensitivity: Floats, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Which constants the figures identify together, in the order of ``names``, and why not others.

    sensitivity: float64 of shape (residuals, constants), residuals in units of their sigma, by the
    constants' logarithms.
    """
    sizes = np.linalg.norm(sensitivity, axis=0)
    reasons = {
        names[at]: f"no observed figure tells it: 10 % more of it moves none by more than "
        f"{0.1 * float(np.abs(sensitivity[:, at]).max(initial=0.0)):.2g} sigma"
        for at in range(len(names))
        if sizes[at] * ERROR_MAX < 1
    }
    taken: list[int] = []
    waiting = [at for at in range(len(names)) if names[at] not in reasons]
    while waiting and len(taken) < len(sensitivity) // 2:
        own = [float(np.linalg.norm(_beyond(sensitivity, taken, at))) for at in waiting]
        best = waiting.pop(int(np.argmax(own)))
        if standard_errors(sensitivity[:, [*taken, best]]).max() <= ERROR_MAX:
            taken.append(best)
        else:
            reasons[names[best]] = _alike(sensitivity, names, taken, best)
    for at in waiting:
        reasons[names[at]] = f"{len(sensitivity)} figures determine no more constants"
    return [names[at] for at in sorted(taken)], reasons


def standard_errors(sensitivity: Floats) -> Floats:
    """Of each constant's logarithm, given all the others; inf where they cannot be told apart."""
    information = sensitivity.T @ sensitivity
    if np.linalg.cond(information) > 1e12:
        return np.full(len(information), np.inf)
    found: Floats = np.sqrt(np.diag(np.linalg.inv(information)))
    return found


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
    return TRUST[metric] * (NOISY_TRUST if _is_noisy(observation) else 1.0)


def _is_noisy(observation: Observation) -> bool:
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
    ) -> None:
        self.names = names
        self._observations, self._twin = observations, twin
        self.before, self._rows = before, rows

    def values(self, place: Floats) -> dict[str, float]:
        return {
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
        ahead = np.stack([self.residuals(place + step) for step in steps], axis=1)
        behind = np.stack([self.residuals(place - step) for step in steps], axis=1)
        return ahead, behind


def _possible(
    observations: Sequence[Observation], wanted: Sequence[str]
) -> tuple[list[Candidate], dict[str, str]]:
    """The candidates that mean something here, and why the others do not."""
    known = [each.name for each in CANDIDATES]
    for name in wanted:
        if name not in known:
            raise BadInput(
                f"--fit {name}: no constant that can be fitted; known: {', '.join(known)}"
            )
    noisy = any(_is_noisy(each) for each in observations)
    possible, left_out = [], {}
    for each in CANDIDATES:
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


def _refuse(
    observations: Sequence[Observation],
    wanted: Sequence[str],
    chosen: Sequence[str],
    left_out: Mapping[str, str],
) -> None:
    for name in wanted:
        if name not in chosen:
            raise BadInput(f"--fit {name}: cannot be identified: {left_out[name]}")
    if not chosen:
        where = ", ".join(dict.fromkeys(each.file for each in observations))
        raise BadInput(f"{where}: identifies no constant of the twin: give more, or longer, runs")


def _beyond(sensitivity: Floats, taken: Sequence[int], at: int) -> Floats:
    """What is left of a column when all that the taken ones can do as well is out of it."""
    column = sensitivity[:, at]
    if not taken:
        return column
    others = sensitivity[:, list(taken)]
    weights, *_ = np.linalg.lstsq(others, column, rcond=None)
    left: Floats = column - others @ weights
    return left


def _alike(sensitivity: Floats, names: Sequence[str], taken: Sequence[int], at: int) -> str:
    """Which taken constants do what this one does."""
    column = sensitivity[:, at] / np.linalg.norm(sensitivity[:, at])
    cosines = {
        names[other]: abs(
            float(column @ sensitivity[:, other] / np.linalg.norm(sensitivity[:, other]))
        )
        for other in taken
    }
    nearest = sorted(cosines, key=lambda name: -cosines[name])[:2]
    return f"moves the figures as {' and '.join(nearest)} do: these runs cannot tell them apart"


def _identified_by(
    observations: Sequence[Observation],
    rows: Sequence[tuple[int, str]],
    sensitivity: Floats,
    names: Sequence[str],
) -> dict[str, list[str]]:
    found = {}
    for at, each in enumerate(observations):
        mine = [row for row, (which, _) in enumerate(rows) if which == at]
        found[each.label], _ = choose(sensitivity[mine], names)
    return found


def _least_squares() -> Any:
    try:
        from scipy.optimize import least_squares
    except ModuleNotFoundError:
        raise BackendUnavailable(
            "calibrating needs SciPy, which is not installed here; install it with: "
            "pip install 'scipy>=1.14'"
        ) from None
    return least_squares
