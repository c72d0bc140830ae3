"""Makes a table of `model/data/lengths.toml` from a trace and prints it.

    python -m blink.model.workload.extract NAME TRACE

The header comment, `source`, `licence` and `extracted` are written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from blink.model.workload.tables import shared_probabilities
from blink.model.workload.traces import Trace, read_trace

ZERO_GAPS_MAX = 0.5
"""A trace with more arrivals than this share at equal times has a clock too coarse for gaps."""


def table_toml(name: str, trace: Trace) -> str:
    """One table as TOML: quantiles of lengths and gaps, rate, burstiness, correlation."""
    probabilities = shared_probabilities()
    inputs = np.quantile(trace.input_tokens, probabilities)
    outputs = np.quantile(trace.output_tokens, probabilities)
    correlation = np.corrcoef(_ranks(trace.input_tokens), _ranks(trace.output_tokens))[0, 1]
    lines = [
        f"[{name}]",
        f"requests = {len(trace)}",
        f"input_tokens_mean = {trace.input_tokens.mean():.1f}",
        f"output_tokens_mean = {trace.output_tokens.mean():.1f}",
        f"rank_correlation = {correlation:.3f}",
    ]
    gaps_line = []
    if trace.arrival_ns is not None:
        gaps_s = np.diff(trace.arrival_ns) / 1e9
        lines.append(f"rate = {1 / gaps_s.mean():.3f}")
        lines.append(f"gap_cv = {gaps_s.std() / gaps_s.mean():.3f}")
        if (gaps_s == 0).mean() <= ZERO_GAPS_MAX:
            quantiles = np.quantile(gaps_s / gaps_s.mean(), probabilities)
            gaps_line = [f"gaps = {_array(quantiles, 4)}"]
    lines.append(f"input_tokens = {_array(inputs, 1)}")
    lines.append(f"output_tokens = {_array(outputs, 1)}")
    return "\n".join([*lines, *gaps_line]) + "\n"


def _ranks(values: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Ranks from 1, equal values sharing their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: npt.NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks


def _array(values: Iterable[float], decimals: int) -> str:
    texts = [f"{value:.{decimals}f}".rstrip("0").rstrip(".") for value in values]
    rows = [", ".join(texts[start : start + 12]) for start in range(0, len(texts), 12)]
    return "[\n  " + ",\n  ".join(rows) + ",\n]"


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    if len(arguments) != 2:
        sys.stderr.write(__doc__ or "")
        return 2
    name, path = arguments
    sys.stdout.write(table_toml(name, read_trace(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
