"""Times as trace files write them."""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from typing import Final, Literal

TimeUnit = Literal["s", "ms", "ns", "date", "date or s"]
SECONDS: Final = {"s": 1.0, "ms": 1e3, "ns": 1e9}
"""How many of a unit make a second."""

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
NS_PER_S: Final = 1_000_000_000
_CLOCK = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)


def date_ns(written: str) -> int:
    """Whole ns since 1970 of "2023-11-16 18:15:46.6805900", with "T" or a zone if it likes.

    Exact to the ns: Azure's traces have seven decimals, more than a datetime keeps. Raises
    ValueError for anything else.
    """
    day, clock = written[:10], _CLOCK.fullmatch(written, 11)
    if clock is None or written[10] not in " T":
        raise ValueError(f'"{written}" is not a time such as "2023-11-16 18:15:46.680590"')
    hours, minutes, seconds, decimals, zone = clock.groups()
    if int(hours) > 23 or int(minutes) > 59 or int(seconds) > 60:
        raise ValueError(f'"{written}" has no such time of day')
    of_day_s = int(hours) * 3600 + int(minutes) * 60 + int(seconds) - _zone_s(zone)
    return (_day_s(day) + of_day_s) * NS_PER_S + int((decimals or "").ljust(9, "0"))


@lru_cache(maxsize=64)
def _day_s(day: str) -> int:
    try:
        return (date.fromisoformat(day).toordinal() - _EPOCH_DAY) * 86_400
    except ValueError:
        raise ValueError(f'"{day}" is not a date') from None


@lru_cache(maxsize=64)
def _zone_s(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    return (hours * 3600 + minutes * 60) * (1 if zone[0] == "+" else -1)
