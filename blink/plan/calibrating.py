"""``blink calibrate``: observed runs in, a fitted profile out, and how far it can be believed.

The constants are fitted to all runs (:mod:`blink.plan.fitting`). Each one's interval is the wider
of two: from the Jacobian, widened where the runs disagree with the twin by more than they are
trusted to; and, where every run has its requests' times, from a bootstrap over the requests. Then
each run is left out in turn, fitted without, and predicted: its hold-out error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from blink.model.calibrated_range import (
    CalibratedRange,
    condition_of,
    coverage,
    extrapolation,
    range_of,
    rate_of,
)
from blink.model.errors import BadInput
from blink.model.fitted import Figure, FittedConstant, FittedProfile, ObservedRun, constant_of
from blink.model.random import stream_of
from blink.model.record import RunRecord
from blink.plan.fitting import Fit, Floats, Twin, fit, rows_of, sigma_of, standard_errors
from blink.plan.observations import Observation, RequestTimes, record_figures, record_times

Announce = Callable[[str], None]
Row = dict[str, Any]
DRAWS: Final = 400
AIMS: Final = {
    "tpot_ms.mean": 0.05,
    "itl_ms.mean": 0.05,
    "ttft_ms.mean": 0.10,
    "output_tok_s": 0.05,
}
"""What a prediction of a held-out run should be within."""
RESAMPLED: Final = ("ttft_ms.mean", "ttft_ms.p50", "tpot_ms.mean", "tpot_ms.p50")
SEEN_IN: Final = 3


@dataclass(frozen=True, slots=True)
class Origin:
    """Where and when a profile is made."""

    name: str
    date: str
    commit: str
    command: str


def calibrate(
    observations: Sequence[Observation],
    origin: Origin,
    twin: Twin,
    *,
    wanted: Sequence[str] = (),
    announce: Announce = lambda text: None,
) -> FittedProfile:
    """Fit a profile to ``observations``.

    Raises BadInput if they identify no constant, or not one that is ``wanted``.
    """
    announce(f"fitting to {len(observations)} runs")
    found = fit(observations, twin, wanted)
    records = [twin.record(each, found.constants) for each in observations]
    held_out = _held_out(observations, twin, wanted, found, announce)
    first = observations[0].server
    return FittedProfile(
        schema=1,
        kind="fitted",
        name=origin.name,
        date=origin.date,
        commit=origin.commit,
        command=origin.command,
        gpu=first.gpu.name,
        model=first.llm.name,
        system=first.system,
        constants=_constants(observations, found, records),
        not_fitted=found.left_out,
        held_out_by="refitted without the run" if len(observations) > 1 else None,
        range=_range(observations, records),
        runs=tuple(
            _observed(each, record, found, held_out.get(at, {}))
            for at, (each, record) in enumerate(zip(observations, records, strict=True))
        ),
    )


def cross_validate(
    observations: Sequence[Observation], twin: Twin, *, announce: Announce = lambda text: None
) -> list[Row]:
    """Fit on one run and predict each other; then fit on all but one and predict that.

    A row holds ``kind`` ("one", "others"), ``fitted_to``, ``predicted`` (labels), ``constants``,
    ``errors`` by metric of :data:`AIMS`, ``misses`` (metrics beyond their aim), ``extrapolated``
    (lines), or ``refused`` with the reason. Raises BadInput for fewer than two runs.
    """
    if len(observations) < 2:
        raise BadInput("--cross-validate: needs two runs at least: one to fit to, one to predict")
    rows = []
    everything = list(range(len(observations)))
    folds = [("one", [at]) for at in everything]
    if len(observations) > 2:
        folds += [("others", [each for each in everything if each != at]) for at in everything]
    for number, (kind, members) in enumerate(folds, start=1):
        fitted_to = [observations[at] for at in members]
        rest = [observations[at] for at in everything if at not in members]
        named = fitted_to[0].label if kind == "one" else f"all but {rest[0].label}"
        announce(f"[{number}/{len(folds)}] fit on {named}")
        rows += _fold(kind, named, fitted_to, rest, twin)
    return rows


# --- the profile -----------------------------------------------------------------------------


def _constants(
    observations: Sequence[Observation], found: Fit, records: Sequence[RunRecord]
) -> dict[str, FittedConstant]:
    widths, why = _jacobian_widths(found)
    lows, highs = -widths, widths
    drawn = _bootstrap(observations, found, records)
    methods = [why] * len(found.names)
    if drawn is not None:
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
        wider = high - low > highs - lows
        lows, highs = np.where(wider, low, lows), np.where(wider, high, highs)
        by_draws = f"bootstrap over requests, linearised, {DRAWS} draws"
        methods = [by_draws if each else why for each in wider]
    return {
        name: FittedConstant(
            value=value,
            low=value * exp(float(lows[at])),
            high=value * exp(min(10.0, float(highs[at]))),
            before=found.before[name],
            unit=constant_of(observations[0].server, name)[1],
            method=methods[at],
            seen_in=_seen_in(observations, found, at),
        )
        for at, (name, value) in enumerate(found.constants.items())
    }


def _jacobian_widths(found: Fit) -> tuple[Floats, str]:
    """Half of the 95 % interval of each logarithm, and how it was computed."""
    from scipy.stats import t

    free = len(found.residuals) - len(found.names)
    scatter = sqrt(float(found.residuals @ found.residuals) / free)
    widened = max(1.0, scatter)
    quantile = float(t.ppf(0.975, free))
    said = f", widened {widened:.2g} times, for the runs scatter so" if widened > 1 else ""
    widths: Floats = quantile * widened * standard_errors(found.jacobian)
    return widths, f"Jacobian, {free} degrees of freedom{said}"


def _bootstrap(
    observations: Sequence[Observation], found: Fit, records: Sequence[RunRecord]
) -> Floats | None:
    """Changes of the logarithms when requests are drawn anew, with the Jacobian as it is.

    float64 of shape (draws, constants); None unless every run has its requests' times. The same
    requests are drawn from the measured run and from the predicted one.
    """
    pairs = [
        (each.times, record_times(record))
        for each, record in zip(observations, records, strict=True)
        if each.times is not None
    ]
    if len(pairs) < len(observations):
        return None
    rng = stream_of(1)("calibrate.bootstrap")
    inverse = np.linalg.pinv(found.jacobian)
    before = [_errors_of(*pair, np.arange(len(pair[0].ttft_ms))) for pair in pairs]
    changes = np.empty((DRAWS, len(found.names)))
    for draw in range(DRAWS):
        after = [
            _errors_of(*pair, rng.integers(0, len(pair[0].ttft_ms), len(pair[0].ttft_ms)))
            for pair in pairs
        ]
        moved = np.array(
            [
                (after[at].get(metric, 0.0) - before[at].get(metric, 0.0))
                / sigma_of(observations[at], metric)
                for at, metric in found.rows
            ]
        )
        changes[draw] = -inverse @ moved
    return changes


def _errors_of(
    measured: RequestTimes, predicted: RequestTimes, drawn: NDArray[np.int64]
) -> dict[str, float]:
    """Logarithms of predicted over measured of :data:`RESAMPLED`, of the drawn requests."""
    found = {}
    for name in ("ttft_ms", "tpot_ms"):
        both = getattr(predicted, name)[drawn], getattr(measured, name)[drawn]
        seen = ~(np.isnan(both[0]) | np.isnan(both[1]))
        if seen.any():
            for part, of in (("mean", np.mean), ("p50", np.median)):
                found[f"{name}.{part}"] = float(np.log(of(both[0][seen]) / of(both[1][seen])))
    return {metric: found[metric] for metric in RESAMPLED if metric in found}


def _seen_in(observations: Sequence[Observation], found: Fit, at: int) -> tuple[str, ...]:
    """The figures that tell most of a constant."""
    order = np.argsort(-np.abs(found.jacobian[:, at]), kind="stable")[:SEEN_IN]
    return tuple(
        f"{found.rows[row][1]} of {observations[found.rows[row][0]].label}"
        for row in order.tolist()
        if found.jacobian[row, at]
    )


def _observed(
    each: Observation, record: RunRecord, found: Fit, held_out: Mapping[str, float | None]
) -> ObservedRun:
    predicted = record_figures(record)
    return ObservedRun(
        run=each.name,
        condition=each.condition,
        file=each.file,
        sha256=each.sha256,
        date=each.date,
        requests=len(each.server.workload),
        identifies=tuple(found.identified_by.get(each.label, ())),
        figures={
            metric: Figure(
                measured=measured,
                predicted=predicted.get(metric),
                error=_error(predicted.get(metric), measured),
                held_out=held_out.get(metric),
            )
            for metric, measured in each.figures.items()
        },
        notes=each.notes,
    )


def _error(predicted: float | None, measured: float) -> float | None:
    return None if predicted is None else predicted / measured - 1


def _held_out(
    observations: Sequence[Observation],
    twin: Twin,
    wanted: Sequence[str],
    found: Fit,
    announce: Announce,
) -> dict[int, dict[str, float | None]]:
    """The errors of each run, predicted with what the others identify."""
    errors: dict[int, dict[str, float | None]] = {}
    for at, each in enumerate(observations):
        others = [other for other in observations if other is not each]
        if not others:
            break
        announce(f"held out: {each.label}")
        constants = _constants_without(others, twin, wanted, found)
        predicted = twin.figures(each, constants)
        errors[at] = {
            metric: _error(predicted.get(metric), measured)
            for metric, measured in each.figures.items()
        }
    return errors


def _constants_without(
    others: Sequence[Observation], twin: Twin, wanted: Sequence[str], found: Fit
) -> dict[str, float]:
    """What the others identify; nothing, and so the catalogue's constants, if that is none."""
    try:
        return fit(others, twin, wanted and _still(others, wanted), found.constants).constants
    except BadInput:
        return {}


def _still(others: Sequence[Observation], wanted: Sequence[str]) -> Sequence[str]:
    """The wanted constants that mean something without the run that is left out."""
    noisy = any(each.server.interference.neighbours for each in others)
    return [name for name in wanted if noisy or not name.startswith("interference.")]


def _range(observations: Sequence[Observation], records: Sequence[RunRecord]) -> CalibratedRange:
    return range_of(
        [
            (
                record.steps,
                each.server.workload.input_tokens,
                rate_of(each.server.workload.arrival_ns)
                if each.server.workload.concurrency is None
                else None,
                condition_of(each.server.host.name, each.server.interference),
            )
            for each, record in zip(observations, records, strict=True)
        ]
    )


# --- cross-validation ------------------------------------------------------------------------


def _fold(
    kind: str,
    named: str,
    fitted_to: Sequence[Observation],
    rest: Sequence[Observation],
    twin: Twin,
) -> list[Row]:
    row = {"kind": kind, "fitted_to": named}
    try:
        found = fit(fitted_to, twin)
    except BadInput as error:
        return [row | {"predicted": each.label, "refused": str(error)} for each in rest]
    known = _range(fitted_to, [twin.record(each, found.constants) for each in fitted_to])
    rows = []
    for each in rest:
        record = twin.record(each, found.constants)
        predicted = record_figures(record)
        errors = {
            metric: _error(predicted.get(metric), each.figures[metric])
            for metric in AIMS
            if metric in each.figures
        }
        rows.append(
            row
            | {
                "predicted": each.label,
                "constants": found.constants,
                "errors": errors,
                "misses": [name for name, error in errors.items() if beyond_aim(name, error)],
                "extrapolated": _outside(known, each, record),
            }
        )
    return rows


def beyond_aim(metric: str, error: float | None) -> bool:
    """Whether an error is larger than its metric's aim; a figure that is missing is."""
    return error is None or abs(error) > AIMS[metric]


def _outside(known: CalibratedRange, each: Observation, record: RunRecord) -> list[str]:
    workload = each.server.workload
    condition = condition_of(each.server.host.name, each.server.interference)
    covered = coverage(known, condition, workload.arrival_ns)
    return extrapolation(covered, record.steps, workload.input_tokens)[1]


def figures_count(observations: Sequence[Observation]) -> int:
    """How many figures there are to fit to."""
    return len(rows_of(observations))
