"""Nothing of a token's time is left over, and each part is what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blink import backends
from blink.model.record import ABSENT
from blink.plan import runner
from blink.plan.critical_path import (
    CONTROL,
    DELIVERY,
    DETOKENIZER,
    FRONT_END,
    NETWORK_OUT,
    OTHERS_PROMPTS,
    PREEMPTED,
    QUEUE,
    READER,
    SCAN,
    STEP,
    TO_ENGINE,
    TOKENIZER,
    critical_path,
)
from blink.plan.runner import Result
from tests.builders import build_record

SPECS = Path(__file__).parents[2] / "specs"
ALL = "systems=blink,trtllm,vllm,sglang,host_resident"


def results(spec: str, *settings: str) -> list[Result]:
    scenario = runner.load(SPECS / spec, settings)
    return list(runner.execute(runner.plan_runs(scenario), backends.require("sim")))


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ("demo.toml", (ALL, "workload.requests=60")),
        ("faults/kv_pressure.toml", ("workload.requests=40",)),
        ("faults/cancel_storm.toml", ("workload.requests=40",)),
    ],
)
@pytest.mark.parametrize("with_setup", [True, False])
def test_the_parts_sum_to_what_was_measured(
    spec: str, settings: tuple[str, ...], with_setup: bool
) -> None:
    for result in results(spec, *settings):
        record, table = result.record, result.record.requests
        path = critical_path(record, result.planned.setup if with_setup else None)
        began = table.first_step != ABSENT
        first = np.sum(list(path.first.values()), axis=0)
        assert (first[began] == (table.first_token_ns - table.arrival_ns)[began]).all()
        assert (first[~began] == 0).all()
        assert sum(path.ttft_ms().values()) == pytest.approx(result.summary["ttft_ms"]["mean"])

        times = [record.token_times_ns(request) for request in range(len(table))]
        spans = [int(t[-1] - t[0]) if len(t) else 0 for t in times]
        later = np.sum(list(path.later.values()), axis=0)
        assert later.tolist() == spans
        mean_ms = sum(spans) / sum(len(t) - 1 for t in times if len(t)) / 1e6
        assert sum(path.inter_token_ms().values()) == pytest.approx(mean_ms)

        gaps = [int(np.diff(t).max()) if len(t) > 1 else 0 for t in times]
        assert [sum(path.worst_gap(i).values()) for i in range(len(table))] == gaps


def test_alone_on_a_server_nothing_waits() -> None:
    """The constants' way through Blink is the twin's own: what is left of one request is a poll."""
    [result] = results("smoke/one_request.toml", "systems=blink")
    setup = result.planned.setup
    found = {
        name: int(ns[0]) for name, ns in critical_path(result.record, setup).first.items() if ns[0]
    }
    assert FRONT_END not in found
    assert QUEUE not in found
    assert found[SCAN] == setup.gpu.scan_ns + setup.gpu.claim_ns
    assert found[TOKENIZER] == setup.dpu.http_request_ns + round(
        32 * setup.dpu.tokenize_ns_per_token
    )
    assert found[DETOKENIZER] == round(setup.dpu.detokenize_sse_ns_per_token)
    assert found[NETWORK_OUT] == setup.link.client_latency_ns
    assert 0 < found[TO_ENGINE] < 10_000
    assert found[CONTROL] == setup.gpu.device_launch_ns + setup.gpu.completion_poll_ns
    steps = result.record.steps
    assert found[STEP] == steps.end_ns[0] - steps.start_ns[0]
    assert found[READER] <= setup.front_end.poll_interval_max_ns


def test_a_quiet_wire_waits_for_nothing() -> None:
    """Polling without end: the poll is the only thing between a step and its client."""
    [result] = results(
        "smoke/one_request.toml",
        "systems=blink",
        "front_end.poll_interval_min_ns=1000",
        "front_end.poll_interval_max_ns=1000",
    )
    path = critical_path(result.record, result.planned.setup)
    assert int(path.first[READER][0]) <= 1_000


def test_neighbours_cost_the_host_and_not_blink() -> None:
    demo = results("demo.toml", "systems=blink,vllm", "workload.requests=60")
    quiet, noisy, host_quiet, host_noisy = (
        critical_path(each.record, each.planned.setup).inter_token_ms() for each in demo
    )
    assert noisy == quiet
    assert host_noisy[CONTROL] > 10 * host_quiet[CONTROL]
    assert host_noisy[STEP] == pytest.approx(host_quiet[STEP], rel=0.25)


def test_a_lost_cache_is_called_so() -> None:
    for result in results("faults/kv_pressure.toml", "workload.requests=40"):
        path = critical_path(result.record, result.planned.setup)
        lost = result.record.requests.preemptions > 0
        assert lost.any()
        again = path.later[PREEMPTED] > 0
        assert (again <= lost).all()
        assert again.any()


def test_a_record_without_constants_is_divided_by_its_own_times() -> None:
    record = build_record(system="x", requests=30, control_ns=300_000, delivery_ns=70_000)
    path = critical_path(record, None)
    table, steps = record.requests, record.steps
    assert not path.with_constants
    assert (path.first[FRONT_END] == table.submitted_ns - table.arrival_ns).all()
    assert (path.first[QUEUE] == table.scheduled_ns - table.submitted_ns).all()
    assert (path.first[CONTROL] == 300_000).all()
    assert (path.first[READER] == 70_000).all()
    assert (path.later[DELIVERY] == 0).all()
    own = steps.end_ns - steps.start_ns
    ranges = record.decode_ranges
    for request, first, end in zip(ranges.request, ranges.first, ranges.end, strict=True):
        rows = steps.decodes[first:end]
        began, last = table.first_step[request], rows[-1]
        assert path.later[STEP][request] == own[rows].sum()
        between = own[began + 1 : last + 1].sum() - own[rows].sum()
        assert path.later[OTHERS_PROMPTS][request] == between
        assert path.later[CONTROL][request] == 300_000 * (last - began)


def test_a_run_of_nothing_has_no_time() -> None:
    path = critical_path(build_record(requests=0), None)
    assert sum(path.ttft_ms().values()) == 0
    assert sum(path.inter_token_ms().values()) == 0
