"""Who waits for a first token, and why: long prompts, or a bad moment?

Reads what `blink run SPEC --out DIR` wrote, with polars::

    pip install polars
    blink run specs/demo.toml --out out/demo
    python examples/slow_first_tokens.py out/demo

For each run the requests are put into five groups of like prompt length. If the slowest requests
were slow because of their own prompts, the last group is slow and its median is near its p99. If
they came at a bad moment, every group has them: p99 is far above the median whatever the length.
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import polars as pl
except ImportError:
    sys.exit("this example needs polars: pip install polars")

GROUPS = 5


def first_tokens(run: Path) -> pl.DataFrame:
    """One row a group of prompts: tokens, requests, TTFT, and how much of it was the queue, ms."""
    requests = pl.scan_parquet(run / "requests.parquet").filter(
        pl.col("outcome").cast(pl.String).is_in(["stop", "length"])
    )
    group = (pl.col("input_tokens").rank("ordinal") - 1) * GROUPS // pl.len()
    ttft_ms = (pl.col("first_token_ns") - pl.col("arrival_ns")) / 1e6
    queue_ms = (pl.col("scheduled_ns") - pl.col("arrival_ns")) / 1e6
    slow = ttft_ms >= ttft_ms.quantile(0.95)
    return (
        requests.with_columns(
            group=group, ttft_ms=ttft_ms, queue_ms=queue_ms, slow=slow.over(pl.lit(1))
        )
        .group_by("group")
        .agg(
            prompt_min=pl.col("input_tokens").min(),
            prompt_max=pl.col("input_tokens").max(),
            requests=pl.len(),
            ttft_p50_ms=pl.col("ttft_ms").median(),
            ttft_p99_ms=pl.col("ttft_ms").quantile(0.99, "linear"),
            before_engine_ms=pl.col("queue_ms").mean(),
            slowest_5_percent=pl.col("slow").sum(),
        )
        .sort("group")
        .drop("group")
        .collect()
    )


def main() -> None:
    """Print the table of every run below the directory that is named."""
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/slow_first_tokens.py DIR  (what blink run --out wrote)")
    runs = sorted(path.parent for path in Path(sys.argv[1]).rglob("requests.parquet"))
    if not runs:
        sys.exit(f"{sys.argv[1]}: no requests.parquet below it; blink run SPEC --out DIR writes it")
    pl.Config.set_tbl_hide_dataframe_shape(True).set_tbl_cols(-1).set_float_precision(1)
    pl.Config.set_tbl_hide_column_data_types(True).set_tbl_width_chars(110)
    for run in runs:
        print(run.name)
        print(first_tokens(run))


if __name__ == "__main__":
    main()
