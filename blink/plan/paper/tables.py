"""The paper's tables, whole, as the twin fills them: most of their bodies are not public."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from blink.model.interference import QUIET, Interference
from blink.plan.paper.evaluation import MODELS, MOTIVATION, NOISY, PINNED, SYNTHETIC, SYSTEMS
from blink.plan.paper.predictions import miss_rate, pbzip2, vllm
from blink.plan.paper.results import Results

Row = list[str]
WAYS: Final = tuple(range(1, 13))
LATENCIES: Final = tuple(f"{n}_ms.{p}" for n in ("ttft", "tpot") for p in ("mean", "p50", "p95"))


def tables(results: Results) -> dict[str, dict[str, Any]]:
    """Each table by its number: ``{"columns": [...], "rows": [[text, ...], ...]}``."""
    return {name: table(results) for name, table in TABLES.items()}


def _table(columns: Sequence[str], rows: Sequence[Row]) -> dict[str, Any]:
    return {"columns": list(columns), "rows": [list(row) for row in rows]}


def _motivation(r: Results) -> dict[str, Any]:
    noises = (QUIET, pbzip2())
    rows = [["throughput, tok/s", *_pair(r, MOTIVATION, "total_tok_s", *noises)]]
    for name in ("ttft", "tpot", "itl"):
        for part in ("mean", "p50", "p99"):
            cells = _pair(r, MOTIVATION, f"{name}_ms.{part}", *noises)
            rows.append([f"{part} {name.upper()}, ms", *cells])
    rows.append(["LLC miss rate, %", *(number(miss_rate(each)) for each in noises)])
    return _table(["vLLM 0.13, Llama-3 8B, 7 req/s", "alone", "beside pbzip2"], rows)


def _pair(r: Results, load: Any, metric: str, *noises: Interference) -> list[str]:
    return [number(r.of(vllm(load, noise), metric)) for noise in noises]


def _pages(r: Results) -> dict[str, Any]:
    noises = {"alone": QUIET, "beside": pbzip2(24), "with pages of 2 MB": pbzip2(24, huge=True)}
    rows = [
        [label, *_pair(r, SYNTHETIC, metric, *noises.values())]
        for label, metric in (
            ("throughput, tok/s", "total_tok_s"),
            ("mean TPOT, ms", "tpot_ms.mean"),
            ("p99 ITL, ms", "itl_ms.p99"),
            ("p99 TTFT, ms", "ttft_ms.p99"),
        )
    ]
    rows.append(["LLC miss rate, %", *(number(miss_rate(each)) for each in noises.values())])
    return _table(["128 requests of 1024 + 512 tokens", *noises], rows)


def _pinning(r: Results) -> dict[str, Any]:
    noise = pbzip2(42, pinned=6)
    rows = []
    for label, metric in (
        ("requests completed in 60 s", "completed"),
        ("decode, tok/s", "decode_tok_s"),
        ("p99 TTFT, ms", "ttft_ms.p99"),
        ("p99.9 TPOT, ms", "tpot_ms.p999"),
        ("p99.9 ITL, ms", "itl_ms.p999"),
    ):
        quiet, noisy = (r.of(vllm(PINNED, each), metric) for each in (QUIET, noise))
        rows.append([label, number(quiet), number(noisy), f"{noisy / quiet - 1:+.1%}"])
    return _table(["12 req/s, six cores of its own", "alone", "beside pbzip2", "change"], rows)


def _ways(r: Results) -> dict[str, Any]:
    noises = [pbzip2(24, ways, 6) for ways in WAYS]
    runs = [vllm(SYNTHETIC, noise) for noise in noises]
    r.runs(runs)  # all at once, if they are missing
    rows = [
        [str(ways), number(miss_rate(noise)), number(r.of(run, "itl_ms.p99"))]
        for ways, noise, run in zip(WAYS, noises, runs, strict=True)
    ]
    return _table(["cache ways", "LLC miss rate, %", "p99 ITL, ms"], rows)


def _presaturation(noise: Interference) -> Callable[[Results], dict[str, Any]]:
    """Table 6, and with ``noise`` Table 7 with its ratios to Table 6."""

    def table(r: Results) -> dict[str, Any]:
        rows = []
        for model in MODELS:
            for system in SYSTEMS:
                cells = []
                for name in ("ttft", "tpot"):
                    metric = f"{name}_ms.p99"
                    text = number(r.over_range(system, model, metric, noise))
                    if noise.neighbours:
                        text += f" ({r.inflation(system, model, metric, noise):.2f}x)"
                    cells.append(text)
                rate = r.saturated(system, model, "throughput_req_s", noise)
                text = f"{rate:.2f}"
                if noise.neighbours:
                    text += f" ({rate / r.saturated(system, model, 'throughput_req_s'):.0%})"
                loads = f"1 to {r.blink_range(model)[-1]:g}, {r.saturation(model):g}"
                rows.append([model, loads, system, *cells, text])
        columns = ["model", "range, saturation, req/s", "system", "p99 TTFT, ms", "p99 TPOT, ms"]
        return _table([*columns, "req/s at saturation"], rows)

    return table


def _latencies(r: Results) -> dict[str, Any]:
    metrics = (*LATENCIES[:3], "ttft_ms.p999", *LATENCIES[3:], "tpot_ms.p999")
    rows = [
        [model, system, *(number(r.over_range(system, model, metric)) for metric in metrics)]
        for model in MODELS
        for system in SYSTEMS
    ]
    names = [f"{m.partition('.')[2].replace('p999', 'p99.9')} {m[:4].upper()}" for m in metrics]
    return _table(["model, ms", "system", *names], rows)


def _tokens(r: Results) -> dict[str, Any]:
    rows = [
        [
            model,
            system,
            *(
                number(r.saturated(system, model, metric))
                for metric in ("prefill_tok_s", "decode_tok_s")
            ),
        ]
        for model in MODELS
        for system in SYSTEMS
    ]
    return _table(["model", "system", "prefill, tok/s", "decode, tok/s"], rows)


def number(value: float) -> str:
    """Three digits, and never an exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


TABLES: Final[Mapping[str, Callable[[Results], dict[str, Any]]]] = {
    "Table 1": _motivation,
    "Table 2": _pages,
    "Table 3": _pinning,
    "Table 4": _ways,
    "Table 6": _presaturation(QUIET),
    "Table 7": _presaturation(NOISY),
    "Table B.1": _latencies,
    "Table B.2": _tokens,
}
