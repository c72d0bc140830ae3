"""``blink calibrate``: observed runs in, a fitted profile out, and how far it can be believed.

The constants are fitted to all runs (:mod:`blink.plan.fitting`). Each one's interval is the wider
of two: from the Jacobian, widened where the runs disagree with the twin by more than they are
trusted to; and, where every run has its requests' times, from a bootstrap over the requests. Then
each run is left out in turn, fitted without, and predicted: its hold-out error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
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
from blink.plan.fitting import Fit, Twin, fit, is_noisy, sigma_of
from blink.plan.identify import Floats
from blink.plan.measured import RequestTimes
from blink.plan.observations import Observation, record_figures, record_times

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
) -> tuple[FittedProfile, list[Row]]:
    """Fit a profile to ``observations``, and predict each run with a fit to all the others.

    The rows are those of :func:`cross_validate`, of kind "others"; none for a single run. Raises
    BadInput if the runs identify no constant, or not one that is ``wanted``.
    """
    announce(f"fitting to {len(observations)} {'runs' if len(observations) > 1 else 'run'}")
    found = fit(observations, twin, wanted)
    records = [twin.record(each, found.constants) for each in observations]
    held_out = _leave_one_out(observations, twin, wanted, announce)
    errors = {row["predicted"]: row.get("all_errors", {}) for row in held_out}
    first = observations[0].server
    profile = FittedProfile(
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
        held_out_by="refitted without the run" if held_out else None,
        range=_range(observations, records),
        runs=tuple(
            _observed(each, record, found, errors.get(each.label, {}))
            for each, record in zip(observations, records, strict=True)
        ),
    )
    return profile, [_told(row) for row in held_out]


def cross_validate(
    observations: Sequence[Observation],
    twin: Twin,
    *,
    wanted: Sequence[str] = (),
    announce: Announce = lambda text: None,
) -> list[Row]:
    """Fit to each run alone and predict every other.

    A row holds ``kind`` ("one", or "others" for a fit to all runs but one), ``fitted_to`` and
    ``predicted`` (labels), ``constants``, ``errors`` by metric of :data:`AIMS`, ``misses`` (metrics
    beyond their aim), ``extrapolated`` (lines), or ``refused`` with the reason. Raises BadInput for
    fewer than two runs.
    """
    if len(observations) < 2:
        raise BadInput("--cross-validate: needs two runs at least: one to fit to, one to predict")
    rows = []
    for number, each in enumerate(observations, start=1):
        announce(f"[{number}/{len(observations)}] fitted to {each.label} alone")
        rest = [other for other in observations if other is not each]
        rows += _fold("one", each.label, [each], rest, twin, wanted)
    return [_told(row) for row in rows]


def _leave_one_out(
    observations: Sequence[Observation], twin: Twin, wanted: Sequence[str], announce: Announce
) -> list[Row]:
    if len(observations) < 2:
        return []
    rows = []
    for number, each in enumerate(observations, start=1):
        announce(f"[{number}/{len(observations)}] held out: {each.label}")
        others = [other for other in observations if other is not each]
        rows += _fold("others", f"all but {each.label}", others, [each], twin, wanted)
    return rows


def _told(row: Row) -> Row:
    """A row without the errors of the metrics that have no aim: the profile has them."""
    return {name: value for name, value in row.items() if name != "all_errors"}


# --- the profile -----------------------------------------------------------------------------


def _constants(
    observations: Sequence[Observation], found: Fit, records: Sequence[RunRecord]
) -> dict[str, FittedConstant]:
    drawn = _bootstrap(observations, found, records)
    made = {}
    for at, (name, value) in enumerate(found.constants.items()):
        low, high, method = _interval(found, at)
        if drawn is not None:
            by_draws = [float(each) for each in np.quantile(drawn[:, at], [0.025, 0.975])]
            if by_draws[1] - by_draws[0] > high - low:
                low, high = by_draws
                method = f"bootstrap over requests, linearised, {DRAWS} draws"
        made[name] = FittedConstant(
            value=value,
            low=value * exp(low),
            high=value * exp(high),
            before=found.before[name],
            unit=constant_of(observations[0].server, name)[1],
            method=method,
            seen_in=_seen_in(observations, found, at),
        )
    return made


def _interval(found: Fit, at: int) -> tuple[float, float, str]:
    """The 95 % interval of a logarithm, from the Jacobian, and how it was computed."""
    from scipy.stats import t

    width = float(t.ppf(0.975, found.free[at])) * float(found.errors[at])
    widened = max(
        scatter
        for scatter, weight in zip(found.scatter, found.response[at], strict=True)
        if weight or len(found.scatter) == 1
    )
    said = f", widened {widened:.2g} times, as the runs scatter" if widened > 1 else ""
    return -width, width, f"Jacobian, {found.free[at]} degrees of freedom{said}"


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
    counts = [len(measured.ttft_ms) for measured, _ in pairs]
    before = [_errors_of(*pair, np.arange(n)) for pair, n in zip(pairs, counts, strict=True)]
    changes = np.empty((DRAWS, len(found.names)))
    for draw in range(DRAWS):
        after = [
            _errors_of(*pair, rng.integers(0, n, n)) for pair, n in zip(pairs, counts, strict=True)
        ]
        moved = [
            (after[at].get(metric, 0.0) - before[at].get(metric, 0.0))
            / sigma_of(observations[at], metric)
            for at, metric in found.rows
        ]
        changes[draw] = -found.response @ np.array(moved)
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
    order = np.argsort(-np.abs(found.slopes[:, at]), kind="stable")[:SEEN_IN]
    return tuple(
        f"{found.rows[row][1]} of {observations[found.rows[row][0]].label}"
        for row in order.tolist()
        if found.slopes[row, at]
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
    wanted: Sequence[str],
) -> list[Row]:
    """Fit to some, predict the rest; what the some cannot identify stays as it was."""
    row = {"kind": kind, "fitted_to": named}
    noisy = any(is_noisy(each) for each in fitted_to)
    asked = [name for name in wanted if noisy or not name.startswith("interference.")]
    try:
        found = fit(fitted_to, twin, asked)
    except BadInput as error:
        return [row | {"predicted": each.label, "refused": str(error)} for each in rest]
    known = _range(fitted_to, [twin.record(each, found.constants) for each in fitted_to])
    rows = []
    for each in rest:
        record = twin.record(each, found.constants)
        predicted = record_figures(record)
        errors = {
            metric: _error(predicted.get(metric), measured)
            for metric, measured in each.figures.items()
        }
        judged = {metric: errors[metric] for metric in AIMS if metric in errors}
        rows.append(
            row
            | {
                "predicted": each.label,
                "constants": found.constants,
                "errors": judged,
                "all_errors": errors,
                "misses": [name for name, error in judged.items() if beyond_aim(name, error)],
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
