"""Numbers as text, and the scales of a chart: where a value lies, and where the ticks are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10
from typing import Final

NOTHING: Final = "–"
TICKS: Final = 5
DECADES_MAX: Final = 8


def number(value: float | None) -> str:
    """Three significant digits, thousands apart, never in exponent form; – is no value."""
    if value is None or not isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    rounded = round(value, 2 - floor(log10(abs(value))))
    digits = 2 - floor(log10(abs(rounded)))
    if abs(rounded) >= 100:
        return f"{value:,.0f}".replace("-", "−")
    return f"{rounded:.{min(max(digits, 0), 4)}f}".replace("-", "−")


def tick_text(value: float) -> str:
    """A tick's value, as short as it is round."""
    return f"{value:,.10g}".replace("-", "−")


@dataclass(frozen=True, slots=True)
class Axis:
    """From values to places: ``low`` .. ``high`` of a value lie at ``begin`` .. ``end``."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The place of ``value``; what lies outside is put at the nearest end."""
        low, high = (log10(self.low), log10(self.high)) if self.log else (self.low, self.high)
        if self.log:
            value = log10(max(value, self.low))
        share = (value - low) / (high - low)
        return self.begin + min(max(share, 0.0), 1.0) * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Round values between the ends, some five of them."""
        return _log_ticks(self.low, self.high) if self.log else _ticks(self.low, self.high)


def axis(values: Sequence[float], begin: float, end: float, *, log: bool, zero: bool) -> Axis:
    """An axis around ``values`` (at least one if ``log``): from 0 if ``zero``, with round ends."""
    if log:
        positive = [value for value in values if value > 0] or [1.0]
        low, high = min(positive), max(positive)
        if high <= low * 1.01:
            low, high = low / 2, high * 2
        return Axis(_round_log(low, up=False), _round_log(high, up=True), begin, end, log=True)
    low, high = min(values, default=0.0), max(values, default=1.0)
    low = min(low, 0.0) if zero else low
    if high <= low:
        high = low + (abs(low) or 1.0)
    step = _step(low, high)
    above = ceil(high / step - 1e-9) * step
    return Axis(
        floor(low / step + 1e-9) * step if zero else low, above if zero else high, begin, end
    )


def _step(low: float, high: float) -> float:
    rough = (high - low) / TICKS
    power = 10.0 ** floor(log10(rough))
    return next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough * 0.999)


def _ticks(low: float, high: float) -> list[float]:
    step = _step(low, high)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _round_log(value: float, *, up: bool) -> float:
    """The nearest 1, 2 or 5 times a power of ten, at or beyond ``value``."""
    power = 10.0 ** floor(log10(value) + 1e-9)
    marks = [power * each for each in (1, 2, 5, 10)]
    if up:
        return min(mark for mark in marks if mark >= value * (1 - 1e-9))
    return max(mark for mark in marks if mark <= value * (1 + 1e-9))


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = floor(log10(low) + 1e-9), ceil(log10(high) - 1e-9)
    every = (1, 2, 5) if log10(high / low) <= 2 else (1, 3) if log10(high / low) <= 3 else (1,)
    powers = range(first, last + 1, max(1, ceil((last - first) / DECADES_MAX)))
    found = [10.0**power * each for power in powers for each in every]
    return [tick for tick in found if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
