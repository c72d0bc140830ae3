"""Which system is better: every comparison that the paper states, and the twin's answer.

A comparison is one baseline against Blink in one figure (sometimes two baselines); its answer is
how many times better the one is that the paper puts first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from blink.model.interference import QUIET, Interference
from blink.plan.paper.evaluation import BASELINES, MODELS, NOISY, SYNTHETIC, Run, offered
from blink.plan.paper.predictions import MODEL_OF, SHAPES, WAYS, figure3, makespans, pbzip2, vllm
from blink.plan.paper.results import Results

SAME: Final = "ordered the same"
TIED: Final = "tied"
OTHERWISE: Final = "ordered otherwise"
TIE: Final = 0.01
"""Two figures within 1 % of each other are tied."""

Advantage = Callable[[Results], float]
LLAMA, PHI, DENSE, MOE = MODELS
CONDITION_OF: Final = {"alone": QUIET, "noisy": NOISY}
PERCENTILES: Final = {"tb1": "p50", "figD1": "p999", "figD2": "p95", "figD4": "mean"}


@dataclass(frozen=True, slots=True)
class Ordering:
    """``what`` the paper states, and how to see whether it is so in the twin."""

    what: str
    advantage: Advantage


def ordered(advantage: float) -> str:
    """The verdict on an advantage: above 1 is the paper's order."""
    if abs(advantage - 1) <= TIE:
        return TIED
    return SAME if advantage > 1 else OTHERWISE


def orderings() -> dict[str, Ordering]:
    """All of them, by id."""
    return {
        f"order.{key}": found
        for part in (_throughputs(), _latencies(), _energies(), _loads(), _others())
        for key, found in part
    }


Named = Iterator[tuple[str, Ordering]]
SHOWN: Final = {"alone": "alone", "noisy": "beside neighbours"}


def _throughputs() -> Named:
    """Figures 1, 7 and E.1."""
    for when, noise in CONDITION_OF.items():
        for other in BASELINES:
            what = f"4 req/s, Qwen3-30B-A3B, {SHOWN[when]}: Blink serves more than {other}"
            yield f"fig1.{when}.{other}", Ordering(what, partial(_fig1, other=other, noise=noise))
            for key, model in MODEL_OF.items():
                end = f"{when}.{key}.{other}"
                what = f"plateau, {model}, {SHOWN[when]}: Blink above {other}"
                more = partial(_plateau, other=other, model=model, noise=noise)
                yield f"fig7.{end}", Ordering(what, more)
                if when == "alone":
                    for name, metric in (("decode", "decode_tok_s"), ("prefill", "prefill_tok_s")):
                        what = f"{name} tokens a second at saturation, {model}: Blink above {other}"
                        rate = partial(_tokens, other=other, model=model, metric=metric)
                        yield f"figE1.{name}.{key}.{other}", Ordering(what, rate)


def _fig1(r: Results, other: str, noise: Interference) -> float:
    runs = [Run(each, MOE, offered(4.0), noise) for each in ("blink", other)]
    ours, theirs = (r.of(run, "throughput_req_s") for run in runs)
    return ours / theirs


def _plateau(r: Results, other: str, model: str, noise: Interference) -> float:
    ours, theirs = (r.plateau(each, model, "throughput_req_s", noise) for each in ("blink", other))
    return ours / theirs


def _tokens(r: Results, other: str, model: str, metric: str) -> float:
    return r.saturated("blink", model, metric) / r.saturated(other, model, metric)


def _latencies() -> Named:
    """Tables 6 and 7, Table B.1, Figures 5, 6 and D.1 to D.4."""
    for other in BASELINES:
        for key, model in MODEL_OF.items():
            for name in ("ttft", "tpot"):
                end = f"{name}.{key}.{other}"
                for part, which in PERCENTILES.items():
                    if part == "tb1" and name == "tpot":
                        continue  # stated of TTFT only
                    shown = which.replace("p999", "p99.9")
                    what = f"{shown} {name.upper()}, {model}, alone: Blink below {other}"
                    lower = partial(_lower, other=other, model=model, metric=f"{name}_ms.{which}")
                    yield f"{part}.{end}", Ordering(what, lower)
                what = f"p99 {name.upper()}, {model}, beside neighbours: Blink below {other}"
                p99 = f"{name}_ms.p99"
                lower = partial(_lower, other=other, model=model, metric=p99, noise=NOISY)
                yield f"t7.{end}", Ordering(what, lower)
                if model != DENSE:  # there the paper says that p99s are close
                    what = f"p99 {name.upper()}, {model}, alone: Blink below {other}"
                    lower = partial(_lower, other=other, model=model, metric=p99)
                    yield f"t6.{end}", Ordering(what, lower)


def _lower(r: Results, other: str, model: str, metric: str, noise: Interference = QUIET) -> float:
    ours = r.over_range("blink", model, metric, noise)
    return r.over_range(other, model, metric, noise) / ours


def _energies() -> Named:
    """Figure 8."""
    for when, noise in CONDITION_OF.items():
        for key, model in MODEL_OF.items():
            for other in BASELINES:
                what = f"energy a token, {model}, {SHOWN[when]}: Blink below {other}"
                less = partial(_energy, other=other, model=model, noise=noise)
                yield f"fig8.{when}.{key}.{other}", Ordering(what, less)


def _energy(r: Results, other: str, model: str, noise: Interference) -> float:
    return r.energy(other, model, noise) / r.energy("blink", model, noise)


def _loads() -> Named:
    """Figure C.1: no system has a higher serviceable load than Blink."""
    for when, noise in CONDITION_OF.items():
        for key, model in MODEL_OF.items():
            for other in BASELINES:
                what = f"serviceable load, {model}, {SHOWN[when]}: Blink above {other}"
                more = partial(_load, other=other, model=model, noise=noise)
                yield f"figC1.{when}.{key}.{other}", Ordering(what, more)


def _load(r: Results, other: str, model: str, noise: Interference) -> float:
    return r.serviceable("blink", model, noise) / r.serviceable(other, model, noise)


def _others() -> Named:
    """Figure 3, the mitigations of section 3.2, and which model gains most."""
    for shape in SHAPES:
        requests, prompt, answer = shape
        what = f"{requests} x {prompt}->{answer}: a scheduler on the GPU is sooner done"
        yield f"fig3.{requests}x{prompt}_{answer}", Ordering(what, partial(_sooner, shape=shape))
    yield (
        "fig3.short",
        Ordering(
            "short answers suffer most from a scheduler on the host",
            lambda r: makespans(r)[0] / max(makespans(r)[1:]),
        ),
    )
    yield (
        "t2.huge_pages",
        Ordering(
            "pages of 2 MB do not bring the quiet p99 ITL back",
            lambda r: _itl(r, pbzip2(24, huge=True)) / _itl(r, QUIET),
        ),
    )
    yield (
        "t4.cache",
        Ordering(
            "with 12 cache ways the p99 ITL is still above the quiet one",
            lambda r: _itl(r, pbzip2(24, WAYS[-1], 6)) / _itl(r, QUIET),
        ),
    )
    yield (
        "fig7.moe_gains_most",
        Ordering(
            "the plateau's gain over TensorRT-LLM is largest on Qwen3-30B-A3B",
            lambda r: _most(r, _plateau_over_trtllm, MOE),
        ),
    )
    yield (
        "t6.dense_gains_least",
        Ordering(
            "the p99 TTFT's gain over TensorRT-LLM is smallest on Qwen3-32B",
            lambda r: (
                min(_ttft_over_trtllm(r, m) for m in MODELS if m != DENSE)
                / _ttft_over_trtllm(r, DENSE)
            ),
        ),
    )
    yield (
        "fig8.moe_saves_most",
        Ordering(
            "energy saved against the best baseline is most on Qwen3-30B-A3B, alone",
            lambda r: _most(r, _energy_over_best, MOE),
        ),
    )
    yield (
        "tb1.phi4_15b.trt_below_sglang",
        Ordering(
            "mean TTFT, phi-4, alone: trtllm below sglang",
            lambda r: (
                r.over_range("sglang", PHI, "ttft_ms.mean")
                / r.over_range("trtllm", PHI, "ttft_ms.mean")
            ),
        ),
    )


def _sooner(r: Results, shape: tuple[int, int, int]) -> float:
    host, gpu = (r.of(figure3(each, shape), "makespan_s") for each in ("host_resident", "blink"))
    return host / gpu


def _itl(r: Results, noise: Interference) -> float:
    return r.of(vllm(SYNTHETIC, noise), "itl_ms.p99")


def _most(r: Results, value: Callable[[Results, str], float], model: str) -> float:
    """How far ``model`` is above the best of the others."""
    return value(r, model) / max(value(r, each) for each in MODELS if each != model)


def _plateau_over_trtllm(r: Results, model: str) -> float:
    return _plateau(r, "trtllm", model, QUIET)


def _ttft_over_trtllm(r: Results, model: str) -> float:
    return _lower(r, "trtllm", model, "ttft_ms.p99")


def _energy_over_best(r: Results, model: str) -> float:
    return min(_energy(r, each, model, QUIET) for each in BASELINES)
