"""Which colour is whose: a system keeps its colour from chart to chart and from page to page."""

from __future__ import annotations

from typing import Final

KNOWN: Final = {"blink": 1, "trtllm": 2, "vllm": 3, "sglang": 4, "host_resident": 5}
"""Numbers of the style sheet's colours; ``vllm-0.13`` takes a spare one beside ``vllm``."""

COLOURS: Final = 8


class Palette:
    """Hands out the style sheet's colours by name: the known systems' own, to others the rest."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def of(self, name: str) -> int:
        """The colour of ``name``, 1 to COLOURS; after all are given the spare ones come again."""
        if name not in self._given:
            spare = [each for each in range(1, COLOURS + 1) if each not in KNOWN.values()]
            others = len([each for each in self._given if each not in KNOWN])
            self._given[name] = KNOWN.get(name, spare[others % len(spare)])
        return self._given[name]
