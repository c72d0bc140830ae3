"""How the twin answers: one function a figure of the paper, by the figure's id.

Nothing is fitted per figure. Where a constant of the twin was fitted to a figure,
``data/paper.toml`` says so at that figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from blink.model import control_plane, hardware, llm
from blink.model.interference import QUIET, HostPressure, Interference, Neighbour, host_pressure
from blink.plan.paper.evaluation import (
    BASELINES,
    MODELS,
    MOTIVATION,
    NOISY,
    PINNED,
    SYNTHETIC,
    SYSTEMS,
    Load,
    Run,
)
from blink.plan.paper.results import Results, ends

Value = float | tuple[float, float]
Prediction = Callable[[Results], Value]
MODEL_OF: Final = dict(
    zip(("llama3_8b", "phi4_15b", "qwen3_32b", "qwen3_30b"), MODELS, strict=True)
)
LLAMA, PHI, DENSE, MOE = MODELS
WAYS: Final = (1, 4, 7, 12)
SHAPES: Final = ((64, 128, 16), (64, 512, 64), (32, 1024, 256), (16, 1024, 512))
"""Figure 3's requests, input and output tokens: assumed, the paper's are only in its picture."""


def pbzip2(
    threads: int = 48, ways: int | None = None, pinned: int | None = None, huge: bool = False
) -> Interference:
    """The motivation section's neighbour; it does not state how many threads Table 1 has."""
    return Interference((Neighbour("pbzip2", threads),), pinned, ways, huge)


def vllm(load: Load, noise: Interference = QUIET) -> Run:
    """A run of the motivation section: vLLM 0.13, Llama-3 8B, no hyper-threads."""
    return Run("vllm-0.13", LLAMA, load, noise, batch_max=256, hyper_threads=False)


def figure3(system: str, shape: tuple[int, int, int]) -> Run:
    """One run of Figure 3: all requests at once, batch 16."""
    requests, prompt, answer = shape
    load = Load(requests, None, prompt, answer, constant=True)
    return Run(system, DENSE, load, batch_max=16)


# --- Table 1 to 4, Figure 3 ------------------------------------------------------------------


def _motivation(metric: str, noise: Interference = QUIET) -> Prediction:
    return lambda r: r.of(vllm(MOTIVATION, noise), metric)


def _loss(metric: str) -> Prediction:
    """Percent that pinned vLLM loses beside pbzip2 on the other cores."""
    return lambda r: -100 * _growth(r, metric)


def _growth(r: Results, metric: str) -> float:
    return r.of(vllm(PINNED, pbzip2(42, pinned=6)), metric) / r.of(vllm(PINNED), metric) - 1


def miss_rate(noise: Interference) -> float:
    """LLC miss rate of vLLM beside ``noise``, percent."""
    return 100 * _pressure(noise).llc_miss_rate


def _pressure(noise: Interference) -> HostPressure:
    return host_pressure(hardware.host("paper"), control_plane.profile("vllm-0.13"), noise)


def _host_work_growth(_: Results) -> float:
    """Percent by which any host work takes longer; the twin has one factor for all of it."""
    return 100 * (_pressure(pbzip2(24)).work_inflation - 1)


def makespans(r: Results) -> list[float]:
    """Figure 3's bars: scheduler on the host over scheduler on the GPU, one a shape."""
    spans = [
        [r.of(figure3(system, shape), "makespan_s") for system in ("host_resident", "blink")]
        for shape in SHAPES
    ]
    return [host / gpu for host, gpu in spans]


def _step_overhead(_: Results) -> float:
    plane, host = control_plane.profile("host_resident"), hardware.host("paper")
    sequences = 16 * (plane.step_host_per_sequence_ns + plane.step_update_per_sequence_ns)
    return (plane.step_host_ns + plane.step_update_ns + sequences) / host.speed / 1e6


_MOTIVATION: Final[Mapping[str, Prediction]] = {
    "t1.tput_iso": _motivation("total_tok_s"),
    "t1.tput_int": _motivation("total_tok_s", pbzip2()),
    "t1.tput_drop": lambda r: (
        r.of(vllm(MOTIVATION), "total_tok_s") / r.of(vllm(MOTIVATION, pbzip2()), "total_tok_s")
    ),
    "t1.ttft_p99_iso": _motivation("ttft_ms.p99"),
    "t1.ttft_p99_int": _motivation("ttft_ms.p99", pbzip2()),
    "t1.ttft_p99_inflation": lambda r: (
        r.of(vllm(MOTIVATION, pbzip2()), "ttft_ms.p99") / r.of(vllm(MOTIVATION), "ttft_ms.p99")
    ),
    "t1.p99_itl_iso": _motivation("itl_ms.p99"),
    "t1.p99_tpot_iso": _motivation("tpot_ms.p99"),
    "t1.itl_tpot_gap": lambda r: (
        r.of(vllm(MOTIVATION), "itl_ms.p99") / r.of(vllm(MOTIVATION), "tpot_ms.p99")
    ),
    "t1.llc_miss_iso": lambda r: miss_rate(QUIET),
    "t1.llc_miss_int": lambda r: miss_rate(pbzip2()),
    "t2.tput_iso": lambda r: r.of(vllm(SYNTHETIC), "total_tok_s"),
    "t2.tpot_mean_iso": lambda r: r.of(vllm(SYNTHETIC), "tpot_ms.mean"),
    "t2.llc_miss_iso": lambda r: miss_rate(QUIET),
    "t3.tail_inflation": lambda r: 100 * max(_growth(r, f"{m}_ms.p999") for m in ("itl", "tpot")),
    "t3.decode_tput": _loss("decode_tok_s"),
    "t3.completed": _loss("completed"),
    "t4.llc_miss_7": lambda r: miss_rate(pbzip2(24, 7, 6)),
    "t4.llc_miss_12": lambda r: miss_rate(pbzip2(24, 12, 6)),
    "t4.llc_miss_drop": lambda r: miss_rate(pbzip2(24, 1, 6)) / miss_rate(pbzip2(24, 12, 6)),
    "t4.itl_p99": lambda r: ends(
        [r.of(vllm(SYNTHETIC, pbzip2(24, ways, 6)), "itl_ms.p99") for ways in WAYS]
    ),
    **{f"prof.{each}": _host_work_growth for each in ("attn", "launch", "kv", "meta")},
    "fig3.makespan": lambda r: ends(makespans(r)),
    "derived.t2_makespan": lambda r: r.of(vllm(SYNTHETIC), "makespan_s"),
    "derived.t1_req_rate": _motivation("throughput_req_s"),
    "derived.t4_llc_1way": lambda r: miss_rate(pbzip2(24, 1, 6)),
    "derived.fig3_step_overhead": _step_overhead,
    "derived.launch_share": lambda r: (
        (_launch_us("host") - _launch_us("device"))
        / (r.of(vllm(SYNTHETIC), "tpot_ms.mean") * 1e3)
        * 100
    ),
}


# --- constants that were measured elsewhere --------------------------------------------------


def _launch_us(kind: str) -> float:
    gpu = hardware.gpu("H100 96GB")
    ns = {
        "device": gpu.device_launch_ns,
        "tail": gpu.tail_launch_ns,
        "host": gpu.host_launch_ns,
        "scan": gpu.scan_ns,
    }
    return ns[kind] / 1e3


def _tokenizer_speedup(_: Results) -> float:
    """The DPU's tokenizer over the host's, a token."""
    host_ns = control_plane.profile("vllm-0.13").api_tokenize_ns_per_token
    return (
        host_ns / hardware.host("paper").speed / hardware.dpu("bluefield-3").tokenize_ns_per_token
    )


def _billions(model: str) -> Prediction:
    return lambda r: llm.lookup(model).parameters / 1e9


_CONSTANTS: Final[Mapping[str, Prediction]] = {
    "launch.ff": lambda r: _launch_us("device"),
    "launch.tail": lambda r: _launch_us("tail"),
    "launch.host": lambda r: _launch_us("host"),
    "sched.scan": lambda r: _launch_us("scan"),
    "launch.ff_vs_host": lambda r: _launch_us("host") / _launch_us("device"),
    "launch.ff_vs_tail": lambda r: _launch_us("tail") / _launch_us("device"),
    "launch.save512": lambda r: 512 * (_launch_us("host") - _launch_us("device")) / 1e3,
    "launch.tail_amortized": lambda r: (_launch_us("tail") - _launch_us("device")) / 121,
    "tok.speedup": _tokenizer_speedup,
    "model.llama3_8b": _billions(LLAMA),
    "model.phi4_15b": _billions(PHI),
    "model.qwen3_32b": _billions(DENSE),
    "model.qwen3_30b_a3b": lambda r: (
        llm.lookup(MOE).parameters / 1e9,
        llm.lookup(MOE).parameters_active / 1e9,
    ),
}


# --- Tables 6, 7, B.1 and B.2, Figures 5, 7, 8, C.1 and D.4 ----------------------------------


def _decode(system: str, model: str) -> Prediction:
    return lambda r: r.saturated(system, model, "decode_tok_s")


def gain(r: Results, model: str, baseline: str, metric: str) -> float:
    """Percent by which Blink is above a baseline at its saturation point."""
    ours = r.saturated("blink", model, metric)
    return 100 * (ours / r.saturated(baseline, model, metric) - 1)


def _kept(r: Results, system: str, model: str, metric: str = "throughput_req_s") -> float:
    """Percent of a rate at Blink's saturation point that is left beside neighbours."""
    quiet = r.saturated(system, model, metric)
    return 100 * r.saturated(system, model, metric, NOISY) / quiet


def _plateau_kept(r: Results, system: str, model: str) -> float:
    quiet = r.plateau(system, model, "throughput_req_s")
    return 100 * r.plateau(system, model, "throughput_req_s", NOISY) / quiet


def _plateau_gain(model: str) -> Prediction:
    metric = "throughput_req_s"
    return lambda r: (
        100 * (r.plateau("blink", model, metric) / r.plateau("trtllm", model, metric) - 1)
    )


def _saving(r: Results, model: str, noise: Interference) -> float:
    """Percent of energy a token that Blink saves against the best baseline."""
    best = min(r.energy(each, model, noise) for each in BASELINES)
    return 100 * (1 - r.energy("blink", model, noise) / best)


def _rise(r: Results, system: str, model: str) -> float:
    return 100 * (r.energy(system, model, NOISY) / r.energy(system, model) - 1)


def _every(value: Callable[[Results, str, str], float], systems: Sequence[str]) -> Prediction:
    """Least and largest over models and ``systems``."""
    return lambda r: ends([value(r, each, model) for each in systems for model in MODELS])


def _models_won(r: Results) -> float:
    """Models on which no baseline has a lower p99 TTFT or TPOT."""
    worst = [
        min(*r.over_blink(model, "ttft_ms.p99"), *r.over_blink(model, "tpot_ms.p99"))
        for model in MODELS
    ]
    return float(sum(each > 1 for each in worst))


def _excess_p999(metric: str) -> Prediction:
    """Percent above Blink over baselines and loads of Blink's range, Qwen3-32B."""

    def value(r: Results) -> Value:
        loads = len(r.blink_range(DENSE))
        blink = r.curve("blink", DENSE, metric)[:loads]
        found = [
            100 * (theirs / ours - 1)
            for each in BASELINES
            for theirs, ours in zip(r.curve(each, DENSE, metric), blink, strict=False)
        ]
        return ends(found)

    return value


def _blink_change(r: Results) -> Value:
    changes = [
        100 * abs(r.inflation("blink", model, f"{name}_ms.p99", NOISY) - 1)
        for model in MODELS
        for name in ("ttft", "tpot")
    ]
    return ends([*changes, *(100 - _kept(r, "blink", model) for model in MODELS)])


def _powers_kw(r: Results) -> Value:
    return ends(
        [
            r.saturated(system, model, "power_w", noise) / 1e3
            for system in SYSTEMS
            for model in MODELS
            for noise in (QUIET, NOISY)
        ]
    )


def _mean_inflation(systems: Sequence[str]) -> Prediction:
    return lambda r: ends(
        [
            r.inflation(each, model, f"{name}_ms.mean", NOISY)
            for each in systems
            for model in MODELS
            for name in ("ttft", "tpot")
        ]
    )


def _prefill_gain(r: Results) -> Value:
    gains = [min(gain(r, model, each, "prefill_tok_s") for each in BASELINES) for model in MODELS]
    return ends(gains)


def _load_drop(r: Results) -> Value:
    drops = [
        1 - r.serviceable(each, LLAMA, NOISY) / r.serviceable(each, LLAMA) for each in BASELINES
    ]
    return ends([100 * each for each in drops])


def _moe_gap(r: Results) -> float:
    return r.serviceable("blink", MOE) / max(r.serviceable(each, MOE) for each in BASELINES)


def _orders(r: Results) -> Value:
    """Orders of magnitude by which baselines' tails grow beside neighbours."""
    return ends(
        [
            math.log10(r.inflation(each, model, f"{name}_ms.p99", NOISY))
            for each in BASELINES
            for model in MODELS
            for name in ("ttft", "tpot")
        ]
    )


def _over_models(metric: str) -> Prediction:
    return lambda r: max(max(r.over_blink(model, metric)) for model in MODELS)


def _ratio_of(metric: str, baseline: str, model: str) -> Prediction:
    return lambda r: r.over_range(baseline, model, metric) / r.over_range("blink", model, metric)


def _tables_6_and_7() -> dict[str, Prediction]:
    found: dict[str, Prediction] = {}
    for key, model in MODEL_OF.items():
        found[f"fig7.plateau.{key}"] = _plateau_gain(model)
        found[f"t7.{key}.tput_ret"] = partial(_kept_by_baselines, model=model)
        for name in ("ttft", "tpot"):
            p99 = f"{name}_ms.p99"
            found[f"t6.{key}.{name}"] = partial(_ends_over_blink, model=model, metric=p99)
            found[f"t6.{key}.{name}_trtllm"] = _ratio_of(p99, "trtllm", model)
            found[f"t7.{key}.{name}"] = partial(_inflations, model=model, metric=p99)
            found[f"t7.{key}.trt.{name}"] = partial(_inflation, model=model, metric=p99)
    return found


def _ends_over_blink(r: Results, model: str, metric: str) -> Value:
    return ends(r.over_blink(model, metric))


def _inflation(r: Results, model: str, metric: str) -> Value:
    return r.inflation("trtllm", model, metric, NOISY)


def _inflations(r: Results, model: str, metric: str) -> Value:
    return ends([r.inflation(each, model, metric, NOISY) for each in BASELINES])


def _kept_by_baselines(r: Results, model: str) -> Value:
    return ends([_kept(r, each, model) for each in BASELINES])


_EVALUATION: Final[Mapping[str, Prediction]] = {
    **_tables_6_and_7(),
    "head.ttft_p99_max": _over_models("ttft_ms.p99"),
    "head.tpot_p99_max": _over_models("tpot_ms.p99"),
    "head.decode_tput_max": lambda r: max(
        1 + gain(r, model, each, "decode_tok_s") / 100 for model in MODELS for each in BASELINES
    ),
    "head.energy_max": lambda r: max(_saving(r, model, QUIET) for model in MODELS),
    "head.degradation_orders": _orders,
    "sec1.retention_baselines": _every(_kept, BASELINES),
    "t6.models_won": _models_won,
    "t6.qwen3_30b.trt.tput": lambda r: r.saturated("trtllm", MOE, "throughput_req_s"),
    "t7.qwen3_30b.trt.tput": lambda r: r.saturated("trtllm", MOE, "throughput_req_s", NOISY),
    "t7.blink_change": _blink_change,
    "t7.blink_retention": _every(_kept, ["blink"]),
    "fig5.ttft_p999": _excess_p999("ttft_ms.p999"),
    "fig5.tpot_p999": _excess_p999("tpot_ms.p999"),
    "fig7.plateau_ret": _every(_plateau_kept, BASELINES),
    "fig7.blink_adv_int": lambda r: ends(
        [
            r.plateau("blink", model, "throughput_req_s", NOISY)
            / r.plateau(each, model, "throughput_req_s", NOISY)
            for model in MODELS
            for each in BASELINES
        ]
    ),
    "fig8.blink_iso": lambda r: ends([r.energy("blink", model) for model in MODELS]),
    "fig8.blink_int": lambda r: ends([r.energy("blink", model, NOISY) for model in MODELS]),
    "fig8.base_int": lambda r: ends(
        [r.energy(each, model, NOISY) for model in MODELS for each in BASELINES]
    ),
    "fig8.red_iso": lambda r: ends([_saving(r, model, QUIET) for model in MODELS]),
    "fig8.red_int": lambda r: ends([_saving(r, model, NOISY) for model in MODELS]),
    "fig8.wall": _powers_kw,
    "fig8.base_rise": _every(_rise, BASELINES),
    "fig8.blink_rise": lambda r: max(_rise(r, "blink", model) for model in MODELS),
    "tb1.llama3_8b.p50_ttft": lambda r: ends(r.over_blink(LLAMA, "ttft_ms.p50")),
    "tb1.qwen3_30b.p50_ttft.trt": lambda r: r.over_range("trtllm", MOE, "ttft_ms.p50"),
    "tb1.qwen3_30b.p50_ttft.blink": lambda r: r.over_range("blink", MOE, "ttft_ms.p50"),
    "tb1.qwen3_30b.p50_ttft.ratio": _ratio_of("ttft_ms.p50", "trtllm", MOE),
    "tb1.phi4_15b.mean_ttft.blink": lambda r: r.over_range("blink", PHI, "ttft_ms.mean"),
    "tb1.phi4_15b.mean_ttft.trt": lambda r: r.over_range("trtllm", PHI, "ttft_ms.mean"),
    "tb1.phi4_15b.mean_ttft.sglang": lambda r: r.over_range("sglang", PHI, "ttft_ms.mean"),
    "tb1.phi4_15b.mean_ttft.trt_ratio": _ratio_of("ttft_ms.mean", "trtllm", PHI),
    "tb1.phi4_15b.mean_ttft.sglang_ratio": _ratio_of("ttft_ms.mean", "sglang", PHI),
    "tb2.llama3_8b.decode.blink": _decode("blink", LLAMA),
    "tb2.llama3_8b.decode.gain": lambda r: gain(r, LLAMA, "trtllm", "decode_tok_s"),
    "tb2.qwen3_30b.decode.blink": _decode("blink", MOE),
    "tb2.qwen3_30b.decode.gain": lambda r: gain(r, MOE, "trtllm", "decode_tok_s"),
    "appE.prefill_gain": _prefill_gain,
    "figC1.llama_drop": _load_drop,
    "figC1.llama_blink": lambda r: (
        100 * r.serviceable("blink", LLAMA, NOISY) / r.serviceable("blink", LLAMA)
    ),
    "figC1.moe_gap": _moe_gap,
    "appD4.moe_mean_ttft": lambda r: ends(r.over_blink(MOE, "ttft_ms.mean")),
    "appD4.base_mean_inflation": _mean_inflation(BASELINES),
    "appD4.blink_mean_inflation": _mean_inflation(["blink"]),
    "derived.trt_llama_decode": _decode("trtllm", LLAMA),
    "derived.trt_moe_decode": _decode("trtllm", MOE),
    "derived.worst_moe_decode": lambda r: min(
        r.saturated(each, MOE, "decode_tok_s") for each in BASELINES
    ),
    "derived.blink_moe_tput": lambda r: r.saturated("blink", MOE, "throughput_req_s"),
    "derived.trt_moe_retention": lambda r: _kept(r, "trtllm", MOE) / 100,
    "derived.llama_power": lambda r: r.saturated("blink", LLAMA, "power_w") / 1e3,
    "derived.q32_decode": _decode("blink", DENSE),
    "derived.moe_mj": lambda r: r.energy("blink", MOE),
    "derived.moe_energy_power_ratio": lambda r: (
        r.saturated("blink", MOE, "power_w") / r.saturated("trtllm", MOE, "power_w")
    ),
}

PREDICTIONS: Final[Mapping[str, Prediction]] = {**_MOTIVATION, **_CONSTANTS, **_EVALUATION}
