"""The rule by which a figure of the twin is held against a figure of the paper.

For a comparison (a ratio, a gain, a share kept) it is the effect that counts, the distance from
what would mean "no difference": 1.05 for 1.35 is a seventh of the effect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

Exactness = Literal["exact", "approximate", "range"]
Value = float | Sequence[float]

AS_STATED: Final = "as stated"
WITHIN_10: Final = "within 10 %"
WITHIN_2X: Final = "within 2x"
SAME_ORDER: Final = "same order of magnitude"
SAME_DIRECTION: Final = "same direction"
OFF: Final = "off"
NOT_PREDICTED: Final = "not predicted"
VERDICTS: Final = {
    AS_STATED: "rounds to what is stated (about: within 5 %), lies in the range, keeps the limit",
    WITHIN_10: "at most 10 % off",
    WITHIN_2X: "at most a factor of 2 off",
    SAME_ORDER: "at most a factor of 3.16 off",
    SAME_DIRECTION: "further off, but a comparison that comes out on the same side",
    OFF: "further off, or on the other side",
    NOT_PREDICTED: "the twin has no such figure: an input, a counter, another paper's figure",
}
"""From the best to the worst; a range has the verdict of its worse end."""
FACTORS: Final = ((WITHIN_10, 1.1), (WITHIN_2X, 2.0), (SAME_ORDER, math.sqrt(10)))
ABOUT: Final = 0.05


def verdict(
    predicted: Value,
    stated: Value,
    exactness: Exactness,
    *,
    neutral: float | None = None,
    at_most: bool = False,
) -> str:
    """One of VERDICTS.

    ``predicted`` with two ends is held against ``stated`` end by end, one number against a range as
    a whole. ``neutral``: the value that would mean no difference; None for what is no comparison.
    """
    ours, theirs = ends(predicted), ends(stated)
    if at_most:
        limit = theirs[1]
        return AS_STATED if max(ours) <= limit else _one(max(ours), limit, exactness, neutral)
    if ours[0] == ours[1] and theirs[0] != theirs[1]:
        if theirs[0] <= ours[0] <= theirs[1]:
            return AS_STATED
        return _one(ours[0], theirs[ours[0] > theirs[1]], exactness, neutral)
    found = [
        _one(mine, other, exactness, neutral) for mine, other in zip(ours, theirs, strict=True)
    ]
    return max(found, key=list(VERDICTS).index)


def ends(value: Value) -> tuple[float, float]:
    """A figure's two ends; those of one number are the same."""
    if isinstance(value, int | float):
        return value, value
    low, high = value
    return low, high


def _one(predicted: float, stated: float, exactness: Exactness, neutral: float | None) -> str:
    if abs(predicted - stated) <= _tolerance(stated, exactness):
        return AS_STATED
    zero = neutral or 0.0
    ours, theirs = predicted - zero, stated - zero
    if not theirs or ours / theirs <= 0:
        return OFF
    factor = max(ours / theirs, theirs / ours)
    for name, limit in FACTORS:
        if factor <= limit:
            return name
    return OFF if neutral is None else SAME_DIRECTION


def _tolerance(stated: float, exactness: Exactness) -> float:
    """Half a unit of the last digit that is written; 5 % for what is said to be about so much."""
    if exactness == "approximate":
        return ABOUT * abs(stated)
    digits = len(f"{stated:g}".partition(".")[2]) if "e" not in f"{stated:g}" else 0
    return 0.5 * 0.1**digits * (1 + 1e-9)
