"""Hardware profiles: read strictly, put under a run, every constant with its source."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.model import hardware, profile
from blink.model.calibration import calibrate, without_a_slowed_gpu
from blink.model.errors import BadInput, UnknownName
from blink.model.profile import Steps, timing_of
from blink.model.setup import RunSetup
from blink.model.step_table import MeasuredStepTime, step_time
from blink.model.timing import StepTime, causal_pairs, engine
from tests.profiles import MICROBENCHMARKS, document, example, spread, steps
from tests.setups import poisson, run, run_setup


def direct(system: str = "blink", **changes: Any) -> RunSetup:
    """A run as real hardware has it: an H200, and no network."""
    parts: dict[str, Any] = {
        "gpu": hardware.gpu("H200"),
        "host": hardware.host("h200-vm"),
        "dpu": hardware.dpu("direct"),
        "link": hardware.link("direct"),
        "workload": poisson(20, 4.0, inputs=100, outputs=20),
    }
    return run_setup(system, **(parts | changes))


def measured(setup: RunSetup) -> MeasuredStepTime:
    found = step_time(calibrate(setup, example()))
    assert isinstance(found, MeasuredStepTime)
    return found


# --- the file --------------------------------------------------------------------------------


def test_what_is_written_reads_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(example().text())
    assert profile.lookup(str(path)) == example()
    assert json.loads(path.read_text())["clocks_mhz"] == {"sm": 1980}
    assert max(len(line) for line in path.read_text().splitlines()) < 200


Broken = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda d: d.pop("driver"), "mine.json: driver: missing"),
        (lambda d: d.update(drivers="580"), "mine.json: drivers: unknown key"),
        (lambda d: d.update(schema=2), "mine.json: schema: must be 1, is 2"),
        (lambda d: d["microbenchmarks"].pop("tail_ns"), "mine.json: microbenchmarks.tail_ns: miss"),
        (
            lambda d: d["microbenchmarks"]["scan_ns"].update(p99="fast"),
            "mine.json: microbenchmarks.scan_ns.p99: must be a valid number",
        ),
        (
            lambda d: d["steps"][0]["decode"][2].update(ns=-1),
            "mine.json: steps.0.decode.2.ns: must be greater than 0, is -1",
        ),
        (lambda d: d.update(date="yesterday"), "mine.json: date: "),
        (
            lambda d: d.update(runs=[a_run(bands={"itl_ms.p50": 0.1})]),
            "mine.json: runs.0: bands has itl_ms.p50, which metrics lacks",
        ),
        (
            lambda d: d.update(runs=[a_run(requests=requests([3, 2]))]),
            "mine.json: runs.0.requests: arrival_ns goes back in time",
        ),
        (
            lambda d: d.update(runs=[a_run(requests=requests([3, 4]) | {"input_tokens": [1]})]),
            "mine.json: runs.0.requests: arrival_ns, input_tokens and output_tokens differ",
        ),
    ],
)
def test_a_bad_field_is_named_in_one_line(tmp_path: Path, break_it: Broken, said: str) -> None:
    broken = document()
    break_it(broken)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(broken))
    with pytest.raises(BadInput) as refused:
        profile.lookup(str(path))
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def a_run(**changes: Any) -> dict[str, Any]:
    return {"spec": "a.toml", "system": "blink", "metrics": {"tpot_ms.mean": 5.0}} | changes


def requests(arrivals: list[int]) -> dict[str, list[int]]:
    return dict.fromkeys(("arrival_ns", "input_tokens", "output_tokens"), arrivals)


def test_no_file_and_no_json_are_one_line_each(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    for name, said in (("bad.json", "not JSON"), ("none.json", "cannot be read")):
        with pytest.raises(BadInput, match=said):
            profile.lookup(str(tmp_path / name))
    with pytest.raises(UnknownName, match="hardware profile"):
        profile.lookup("no-such-machine")


@given(values=st.lists(st.integers(0, 10**9), max_size=50))
def test_a_timing_lies_among_its_values(values: list[int]) -> None:
    found = timing_of(values)
    if not values:
        assert found is None
        return
    assert found is not None and found["count"] == len(values)
    assert min(values) <= found["p50"] <= found["p99"] <= max(values)


# --- under a run -----------------------------------------------------------------------------


def test_measured_constants_replace_the_catalogues_and_say_so() -> None:
    setup = calibrate(direct(), example())
    assert (setup.gpu.device_launch_ns, setup.gpu.tail_launch_ns) == (2_050, 4_200)
    assert setup.gpu.completion_poll_ns == 9_000 - 2_050, "all that a step adds, less the call"
    assert setup.gpu.claim_ns == MICROBENCHMARKS["claim_to_launch_ns"]
    assert setup.link.write_latency_ns == 5_600
    assert setup.dpu.http_request_ns == 30_000
    for sku, names in ((setup.gpu, ("scan_ns", "host_launch_ns")), (setup.link, ("post_ns",))):
        for name in names:
            constant = sku.provenance[name]
            assert constant.value == getattr(sku, name)
            assert "profile example" in constant.source
    whole = [each.name for each in fields(setup.gpu) if each.type == "int"]
    assert all(isinstance(getattr(setup.gpu, name), int) for name in whole)


def test_a_front_end_slower_than_its_copies_is_believed() -> None:
    control = {"blink": {"pickup_ns": spread(60_000)}, "host_resident": {"pickup_ns": spread(70)}}
    measured_so = example(control=control)
    scan_and_claim = MICROBENCHMARKS["scan_ns"] + MICROBENCHMARKS["claim_to_launch_ns"]
    assert calibrate(direct(), measured_so).link.write_latency_ns == 60_000 - scan_and_claim
    assert calibrate(direct("host_resident"), measured_so).link.write_latency_ns == 5_600


def test_a_network_that_the_scenario_has_stays() -> None:
    setup = direct(link=hardware.link("rdma-200g"), dpu=hardware.dpu("bluefield-3"))
    found = calibrate(setup, example())
    assert (found.link, found.dpu) == (setup.link, setup.dpu)


def test_a_host_that_schedules_takes_the_measured_loop() -> None:
    plane = calibrate(direct("host_resident"), example()).plane
    assert plane.step_host_ns == 15_300 and plane.step_update_ns == 40_800
    assert plane.prefill_step_host_ns == 10_200
    assert 0.3 < plane.jitter_sigma < 0.4
    assert "profile example" in plane.provenance["step_host_ns"].source


def test_without_that_system_the_catalogue_stands() -> None:
    setup = direct("vllm")
    found = calibrate(setup, example())
    assert (found.plane, found.steps) == (setup.plane, None)
    assert found.gpu.resident_prefill_slowdown == setup.gpu.resident_prefill_slowdown


def test_a_profile_of_another_gpu_is_refused() -> None:
    with pytest.raises(BadInput, match=r"measured on h200.*set hardware.gpu=h200"):
        calibrate(direct(gpu=hardware.gpu("H100")), example())


def test_a_spin_is_not_slowed_by_a_resident_scheduler() -> None:
    assert without_a_slowed_gpu(direct()).gpu.resident_prefill_slowdown == 1.0
    computing = direct(provider="torch")
    assert without_a_slowed_gpu(computing) is computing


# --- step times ------------------------------------------------------------------------------


def test_measured_shapes_give_the_measured_times() -> None:
    times = measured(direct())
    assert times.decode_ns(1, 64, 1).tolist() == [5_000_000]
    assert times.decode_ns(7, 8_000, 1, computed=8).tolist() == [6_400_000]
    assert times.prefill_ns(128, causal_pairs(0, 128)) == 7_000_000
    assert times.prefill_ns(1_024, 2 * causal_pairs(0, 512)) == 30_000_000


def test_between_shapes_times_lie_between() -> None:
    times = measured(direct())
    assert 5_000_000 < times.decode_ns(1, 300, 1)[0] < 5_100_000
    assert 5_000_000 < times.decode_ns(4, 1_000, 1)[0] < 6_400_000
    assert 7_000_000 < times.prefill_ns(512, causal_pairs(0, 512)) < 30_000_000


def test_beyond_the_shapes_the_roofline_is_scaled_and_flagged() -> None:
    times = measured(direct())
    plain = StepTime(times.llm, times.gpu, times.engine)
    ratio = 6_400_000 / plain.decode_ns(8, 8_000, 1)[0]
    far = plain.decode_ns(64, 64 * 4_000, 1)[0] * ratio
    assert times.decode_ns(64, 64 * 4_000, 1)[0] == pytest.approx(far, rel=1e-6)
    assert not times.is_measured_decode(64, 64 * 4_000)
    assert not times.is_measured_decode(8, 8 * 4_000)
    assert times.is_measured_decode(8, 8_000) and times.is_measured_decode(4, 1_000)
    assert times.is_measured_prefill(1_100) and not times.is_measured_prefill(4_096)


@given(
    batch=st.integers(1, 64),
    context=st.integers(0, 100_000),
    parts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
)
def test_a_run_cut_anywhere_gives_the_same_steps(
    batch: int, context: int, parts: list[int]
) -> None:
    times = measured(direct())
    whole = times.decode_ns(batch, context, sum(parts))
    cut, done = [], 0
    for count in parts:
        cut.append(times.decode_ns(batch, context + done * batch, count))
        done += count
    assert np.array_equal(np.concatenate(cut), whole)


def test_a_table_without_rows_is_the_roofline() -> None:
    setup = direct()
    nothing = Steps(system="blink", model="llama-3-8b", engine="null")
    efficiency = engine(setup.plane.engine)
    bent = MeasuredStepTime(setup.llm, setup.gpu, efficiency, nothing)
    plain = StepTime(setup.llm, setup.gpu, efficiency)
    assert np.array_equal(bent.decode_ns(3, 900, 5), plain.decode_ns(3, 900, 5))
    assert bent.prefill_ns(64, 2_000) == plain.prefill_ns(64, 2_000)
    assert not bent.is_measured_prefill(64) and not bent.is_measured_decode(1, 64)


def test_shapes_measured_twice_are_averaged_by_their_counts() -> None:
    rows = steps("blink") | {
        "prefill": [
            {"batch": 1, "tokens": 128, "ns": 6_000_000, "count": 3},
            {"batch": 1, "tokens": 128, "ns": 10_000_000, "count": 1},
        ]
    }
    times = step_time(calibrate(direct(), example(steps=[rows])))
    assert times.prefill_ns(128, causal_pairs(0, 128)) == 7_000_000


@pytest.mark.parametrize("system", ["blink", "host_resident"])
def test_a_run_counts_the_steps_that_nothing_vouches_for(system: str) -> None:
    inside = run(calibrate(direct(system), example()))
    assert inside.assumptions["profile"] == "example"
    assert inside.counters["steps_extrapolated"] == 0
    longer = poisson(5, 4.0, inputs=3_000, outputs=20)
    outside = run(calibrate(direct(system, workload=longer), example()))
    assert outside.counters["steps_extrapolated"] == len(outside.steps)


def test_skipping_ahead_is_exact_with_measured_steps_too() -> None:
    setup = calibrate(direct(), example())
    fast, slow = run(setup), run(replace(setup, fast_forward=False))
    assert np.array_equal(fast.steps.end_ns, slow.steps.end_ns)
    assert fast.counters["steps_extrapolated"] == slow.counters["steps_extrapolated"]
