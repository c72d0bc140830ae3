"""Quantile tables of real traces: what their lengths and gaps look like, without the traces."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from blink.model.errors import UnknownName

FloatArray = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LengthTable:
    """Quantiles of one trace, between which values are interpolated linearly.

    probabilities: shape (quantiles,), from 0 to 1.
    input_quantiles, output_quantiles: tokens, one for each probability.
    gap_quantiles: gaps between arrivals over their mean; empty if the trace's are not usable.
    requests, input_tokens_mean, output_tokens_mean: of the trace itself.
    rate: its mean arrival rate, requests/s; gap_cv: its gaps' standard deviation over their mean.
    rank_correlation: Spearman's, of input and output lengths.
    """

    name: str
    probabilities: FloatArray
    input_quantiles: FloatArray
    output_quantiles: FloatArray
    gap_quantiles: FloatArray
    requests: int
    input_tokens_mean: float
    output_tokens_mean: float
    rate: float
    gap_cv: float
    rank_correlation: float
    source: str
    licence: str
    extracted: str

    def input_tokens(self, uniform: FloatArray) -> Int64Array:
        """Prompt lengths at probabilities `uniform`, at least 1; int64 of the same shape."""
        return _whole(np.interp(uniform, self.probabilities, self.input_quantiles))

    def output_tokens(self, uniform: FloatArray) -> Int64Array:
        """Output lengths at probabilities `uniform`, at least 1; int64 of the same shape."""
        return _whole(np.interp(uniform, self.probabilities, self.output_quantiles))

    def gaps(self, uniform: FloatArray) -> FloatArray:
        """Gaps of mean 1 at probabilities `uniform`. Raises UnknownName for a table without."""
        if not len(self.gap_quantiles):
            usable = [table.name for table in length_tables().values() if len(table.gap_quantiles)]
            raise UnknownName("table of arrival gaps (workload.table)", self.name, usable)
        mean = np.trapezoid(self.gap_quantiles, self.probabilities)
        return np.interp(uniform, self.probabilities, self.gap_quantiles) / mean


def length_table(name: str) -> LengthTable:
    """The table `name`. Raises UnknownName with the nearest names."""
    tables = length_tables()
    if name not in tables:
        raise UnknownName("length table (lengths.table or workload.table)", name, tables)
    return tables[name]


def shared_probabilities() -> FloatArray:
    """The probabilities that all tables are given at, from 0 to 1."""
    return np.array(_document()["probabilities"], dtype=np.float64)


@cache
def length_tables() -> Mapping[str, LengthTable]:
    """All tables of `model/data/lengths.toml`, by name. Read once and kept."""
    shared = shared_probabilities()
    tables = {name: part for name, part in _document().items() if isinstance(part, dict)}
    return MappingProxyType({name: _table(name, shared, part) for name, part in tables.items()})


@cache
def _document() -> dict[str, Any]:
    path = resources.files("blink.model") / "data" / "lengths.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _table(name: str, probabilities: FloatArray, part: Mapping[str, Any]) -> LengthTable:
    def quantiles(key: str) -> FloatArray:
        values = np.array(part.get(key, []), dtype=np.float64)
        assert len(values) in (0, len(probabilities)), (name, key)
        assert (np.diff(values) >= 0).all(), (name, key)
        return values

    return LengthTable(
        name=name,
        probabilities=probabilities,
        input_quantiles=quantiles("input_tokens"),
        output_quantiles=quantiles("output_tokens"),
        gap_quantiles=quantiles("gaps"),
        requests=part["requests"],
        input_tokens_mean=part["input_tokens_mean"],
        output_tokens_mean=part["output_tokens_mean"],
        rate=part["rate"],
        gap_cv=part["gap_cv"],
        rank_correlation=part["rank_correlation"],
        source=part["source"],
        licence=part["licence"],
        extracted=part["extracted"],
    )


def _whole(values: FloatArray) -> Int64Array:
    return np.maximum(np.rint(values), 1.0).astype(np.int64)
