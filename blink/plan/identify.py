"""Which constants observed figures can tell, and which they cannot.

Constants are taken up one by one, the one that the figures tell most of first, as long as each has
a standard error of at most :data:`ERROR_MAX` given all the others. This is a forward selection on
the sensitivity matrix, as in Brun, Reichert, Künsch: Practical identifiability analysis of large
environmental simulation models, Water Resources Research 37 (2001). What is left out is named, with
the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ERROR_MAX: Final = 0.1
"""Of a logarithm: the largest standard error with which a constant counts as identified; about 20 %
either way at 95 %."""
CONDITION_MAX: Final = 1e12


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
    if not len(information):
        return np.empty(0)
    if np.linalg.cond(information) > CONDITION_MAX:
        return np.full(len(information), np.inf)
    found: Floats = np.sqrt(np.diag(np.linalg.inv(information)))
    return found


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
