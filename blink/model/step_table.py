"""Step times that were measured, in the place of the roofline's.

A table holds, at each measured shape, how much longer than the roofline says a step took. Between
shapes that *ratio* is interpolated: bilinearly in the batch of the captured graph and the context a
row of it for decode steps, piecewise linearly in tokens for prefills. Beyond the measured shapes it
stays what it was at the nearest. So a measured shape gives the measured time, what lies between
follows the roofline's curve, and what lies outside is the roofline scaled: a prediction that is
flagged (:meth:`MeasuredStepTime.is_measured_decode`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from blink.model.hardware import GpuSku
from blink.model.llm import LlmSku
from blink.model.profile import DecodeRow, PrefillRow, Steps
from blink.model.record import STEP_MIXED, StepTable
from blink.model.setup import RunSetup, engine_efficiency
from blink.model.speculation import SpeculativeStepTime
from blink.model.timing import EngineEfficiency, StepTime, causal_pairs

Floats = NDArray[np.float64]
REACH: Final = 1.25
"""A shape counts as measured up to this factor beyond an outermost one: rows are means of many."""


def step_time(setup: RunSetup) -> StepTime:
    """The step times of a run: the roofline's, or bent through the profile's where it has some."""
    efficiency = engine_efficiency(setup)
    if setup.speculation is not None:
        draft = None
        if setup.speculation.draft is not None:
            draft = StepTime(setup.speculation.draft, setup.gpu, efficiency, setup.parallel)
        return SpeculativeStepTime(
            setup.speculation.draft_tokens,
            draft,
            setup.llm,
            setup.gpu,
            efficiency,
            setup.parallel,
        )
    if setup.steps is None:
        return StepTime(setup.llm, setup.gpu, efficiency, setup.parallel)
    return MeasuredStepTime(setup.llm, setup.gpu, efficiency, setup.steps)


@dataclass(frozen=True, slots=True)
class _Curve:
    """Ratios over increasing places; constant beyond the ends."""

    places: Floats
    ratios: Floats

    @classmethod
    def through(cls, points: Iterable[tuple[float, float, int]]) -> _Curve:
        """Through (place, ratio, count); points of one place become their mean."""
        sums: dict[float, tuple[float, int]] = {}
        for place, ratio, count in points:
            total, weight = sums.get(place, (0.0, 0))
            sums[place] = (total + ratio * count, weight + count)
        places = sorted(sums)
        ratios = [sums[place][0] / sums[place][1] for place in places]
        return cls(np.array(places, dtype=np.float64), np.array(ratios, dtype=np.float64))

    def at(self, places: Floats) -> Floats:
        found: Floats = np.interp(places, self.places, self.ratios)
        return found

    def reaches(self, place: float) -> bool:
        low, high = float(self.places[0]), float(self.places[-1])
        return low / REACH <= place <= high * REACH


class MeasuredStepTime(StepTime):
    """A roofline that is bent through measured steps."""

    __slots__ = ("_batches", "_decode", "_prefill")

    def __init__(
        self, llm: LlmSku, gpu: GpuSku, efficiency: EngineEfficiency, measured: Steps
    ) -> None:
        super().__init__(llm, gpu, efficiency)
        grouped: dict[int, list[DecodeRow]] = {}
        for row in measured.decode:
            grouped.setdefault(row.batch, []).append(row)
        self._batches = sorted(grouped)
        self._decode = [
            _Curve.through(self._decode_point(row) for row in grouped[batch])
            for batch in self._batches
        ]
        points = [self._prefill_point(row) for row in measured.prefill]
        self._prefill = _Curve.through(points) if points else None

    def decode_ns(
        self, batch: int, context_sum: int, steps: int, computed: int | None = None
    ) -> NDArray[np.int64]:
        """See StepTime; ``computed`` picks the rows of the table."""
        computed = batch if computed is None else computed
        plain = super().decode_ns(batch, context_sum, steps, computed)
        if not self._decode:
            return plain
        contexts = np.arange(context_sum, context_sum + batch * steps, batch, dtype=np.float64)
        ratios = self._decode_ratios(computed, contexts / computed)
        return np.rint(plain * ratios).astype(np.int64)

    def prefill_ns(self, tokens: int, pairs: int) -> int:
        """See StepTime; ``tokens`` picks the rows of the table."""
        plain = super().prefill_ns(tokens, pairs)
        if self._prefill is None:
            return plain
        return round(plain * float(self._prefill.at(np.array([tokens], dtype=np.float64))[0]))

    def is_measured_decode(self, computed: int, context_sum: int) -> bool:
        """Whether such decode steps lie among the measured ones."""
        if not self._decode or not self._batches[0] <= computed <= self._batches[-1]:
            return False
        low, high, _ = self._neighbours(computed)
        place = context_sum / computed
        return self._decode[low].reaches(place) or self._decode[high].reaches(place)

    def is_measured_prefill(self, tokens: int) -> bool:
        """Whether such prefills lie among the measured ones."""
        return self._prefill is not None and self._prefill.reaches(tokens)

    def extrapolated(self, steps: StepTable, graph_of: Callable[[int], int]) -> int:
        """How many of ``steps`` lie outside of what was measured; ``graph_of`` a batch's graph."""
        shapes = np.stack(
            [steps.decode_batch, steps.context_tokens, steps.prefill_tokens, steps.kind]
        )
        different, counts = np.unique(shapes, axis=1, return_counts=True)
        return sum(
            int(count)
            for (batch, context, tokens, kind), count in zip(different.T, counts, strict=True)
            if kind == STEP_MIXED
            or (batch and not self.is_measured_decode(graph_of(int(batch)), int(context)))
            or (not batch and not self.is_measured_prefill(int(tokens)))
        )

    def _decode_ratios(self, computed: int, places: Floats) -> Floats:
        low, high, share = self._neighbours(computed)
        below = self._decode[low].at(places)
        if share == 0.0:
            return below
        return below + share * (self._decode[high].at(places) - below)

    def _neighbours(self, computed: int) -> tuple[int, int, float]:
        """The measured batches around ``computed``, by place, and how far it is to the second."""
        at = bisect_left(self._batches, computed)
        if at == len(self._batches):
            return at - 1, at - 1, 0.0
        if at == 0 or self._batches[at] == computed:
            return at, at, 0.0
        low, high = self._batches[at - 1], self._batches[at]
        return at - 1, at, (computed - low) / (high - low)

    def _decode_point(self, row: DecodeRow) -> tuple[float, float, int]:
        plain = float(super().decode_ns(row.batch, row.context_tokens, 1)[0])
        return row.context_tokens / row.batch, row.ns / plain, row.count

    def _prefill_point(self, row: PrefillRow) -> tuple[float, float, int]:
        longest = -(-row.tokens // row.batch)
        plain = super().prefill_ns(row.tokens, row.batch * causal_pairs(0, longest))
        return float(row.tokens), row.ns / plain, row.count
