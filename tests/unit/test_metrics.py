"""Metrics are what a naive computation over every single token says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.model.metrics import (
    COMPLETED,
    NS_PER_MS,
    NS_PER_S,
    QUANTILES,
    Objectives,
    inter_token_gaps,
    makespan_s,
    meets_objectives,
    per_request_ns,
    summarise,
    weighted_quantiles,
)
from blink.model.record import (
    ABSENT,
    STEP_DECODE,
    STEP_MIXED,
    STEP_PREFILL,
    RequestTable,
    RunRecord,
    StepTable,
)
from blink.ring_protocol.states import Outcome
from tests.builders import MS, build_record, decode_ranges

OUTCOMES = (int(Outcome.STOP), int(Outcome.LENGTH), int(Outcome.CANCELLED))


@st.composite
def records(draw: st.DrawFn) -> RunRecord:
    """Any record that an honest run could return, preempted ranges and merged chunks included.

    Hypothesis picks the sizes and a seed; the seed fills them, which is denser than drawing each
    number: most records then have several streams that meet, leave and come back.
    """
    count, requests = draw(st.integers(8, 24)), draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kinds = rng.choice([STEP_PREFILL, STEP_DECODE, STEP_MIXED], count, p=[0.3, 0.5, 0.2])
    kinds[0] = STEP_PREFILL
    end_ns = np.cumsum(rng.integers(1, 3 * MS, count))
    # A flush never overtakes another; a late one brings several steps' tokens at one time.
    lags = rng.integers(0, draw(st.sampled_from([1, 3 * MS, 10 * MS])), count)
    steps = StepTable(
        launched_ns=end_ns - 1,
        start_ns=end_ns - 1,
        end_ns=end_ns,
        delivered_ns=np.maximum.accumulate(end_ns + lags),
        kind=kinds.astype(np.int8),
        decode_batch=(kinds != STEP_PREFILL).astype(np.int64),
        prefill_tokens=(kinds != STEP_DECODE).astype(np.int64),
        context_tokens=np.zeros(count, dtype=np.int64),
    )
    streams = [_stream(rng, steps) for _ in range(requests)]
    rows = [(i, first, end) for i, (_, ranges) in enumerate(streams) for first, end in ranges]
    return _record(rng, steps, [row for row, _ in streams], rows)


def _stream(rng: np.random.Generator, steps: StepTable) -> tuple[int, list[tuple[int, int]]]:
    """The row of a first token, or ABSENT, and the ranges of decode ordinals that follow it."""
    rows = np.flatnonzero(steps.prefill_tokens > 0)
    if rng.random() < 0.1:
        return ABSENT, []
    row = int(rng.choice(rows))
    ordinals = np.arange(np.searchsorted(steps.decodes, row, side="right"), len(steps.decodes) + 1)
    edges = set(
        rng.choice(ordinals, min(len(ordinals), int(rng.integers(6))), replace=False).tolist()
    )
    if rng.random() < 0.7:
        edges.add(int(ordinals[0]))  # as a rule a stream decodes at once
    ordered = sorted(edges)
    return row, list(zip(ordered[::2], ordered[1::2], strict=False))


def _record(
    rng: np.random.Generator,
    steps: StepTable,
    first_step: list[int],
    rows: list[tuple[int, int, int]],
) -> RunRecord:
    count = len(first_step)
    first = np.array(first_step, dtype=np.int64)
    delivered = np.append(steps.delivered_ns, 0)
    tokens, last_ns = (first != ABSENT).astype(np.int64), delivered[first]
    for request, begin, end in rows:
        tokens[request] += end - begin
        last_ns[request] = max(last_ns[request], steps.delivered_ns[steps.decodes[end - 1]])
    outcome = np.where(tokens > 0, rng.choice(OUTCOMES, count), int(Outcome.REJECTED))
    wait = rng.integers(0, 6 * MS, count)
    return RunRecord(
        label="any",
        system="any",
        condition="isolated",
        backend="sim",
        seed=0,
        commit="",
        requests=RequestTable(
            arrival_ns=delivered[first] - wait,
            input_tokens=np.full(count, 7, dtype=np.int64),
            output_tokens_wanted=tokens,
            output_tokens=tokens,
            submitted_ns=wait,
            scheduled_ns=wait,
            first_token_ns=np.where(first == ABSENT, ABSENT, delivered[first]),
            finish_ns=last_ns,
            outcome=outcome.astype(np.int8),
            slot=np.arange(count, dtype=np.int64),
            preemptions=np.zeros(count, dtype=np.int64),
            first_step=first,
        ),
        steps=steps,
        decode_ranges=decode_ranges(sorted(rows, key=lambda row: row[2])),
        counters={},
        energy_j=None,
        host_cpu_on_token_path_ns=None,
        scenario={},
    )


def chunk_gaps(record: RunRecord) -> list[list[int]]:
    """For each request the gaps between its chunks, token by token."""
    return [
        np.diff(np.unique(record.token_times_ns(request))).tolist()
        for request in range(len(record.requests))
    ]


@given(records())
def test_gaps_are_those_between_chunks(record: RunRecord) -> None:
    naive = sorted(gap for gaps in chunk_gaps(record) for gap in gaps)
    gaps, counts = inter_token_gaps(record)
    assert sorted(np.repeat(gaps, counts).tolist()) == naive


@given(records())
def test_every_token_has_a_time_and_the_first_and_last_are_the_tables(record: RunRecord) -> None:
    table = record.requests
    for request in range(len(table)):
        times = record.token_times_ns(request)
        assert len(times) == table.output_tokens[request]
        if len(times):
            assert times.min() == table.first_token_ns[request]
            assert times.max() == table.finish_ns[request]


@given(records(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_objectives_judge_each_request(record: RunRecord, ttft: int, tpot: int, itl: int) -> None:
    table = record.requests
    naive = []
    for request, gaps in enumerate(chunk_gaps(record)):
        times = record.token_times_ns(request)
        naive.append(
            table.outcome[request] in COMPLETED
            and times[0] - table.arrival_ns[request] <= ttft * MS
            and (len(times) < 2 or times[-1] - times[0] <= tpot * MS * (len(times) - 1))
            and max(gaps, default=0) <= itl * MS
        )
    objectives = Objectives(ttft_ms=ttft, tpot_ms=tpot, itl_ms=itl)
    assert meets_objectives(record, objectives).tolist() == naive


@given(records())
def test_the_worst_gap_decides_to_the_nanosecond(record: RunRecord) -> None:
    worst = np.array([max(gaps, default=0) for gaps in chunk_gaps(record)])
    done = np.isin(record.requests.outcome, COMPLETED)
    for limit_ns in np.unique(worst):
        for just, within in ((0.5, worst <= limit_ns), (-0.5, worst < limit_ns)):
            met = meets_objectives(record, Objectives(itl_ms=(limit_ns + just) / NS_PER_MS))
            assert met.tolist() == (done & within).tolist()


@given(records())
def test_the_summary_is_the_naive_one(record: RunRecord) -> None:
    table = record.requests
    done = [r for r in range(len(table)) if table.outcome[r] in COMPLETED]
    times = {r: record.token_times_ns(r) for r in done}
    summary = summarise(record, Objectives(e2e_ms=4))
    e2e = [times[r][-1] - table.arrival_ns[r] for r in done]
    assert_figures(summary["ttft_ms"], [times[r][0] - table.arrival_ns[r] for r in done])
    assert_figures(summary["e2e_ms"], e2e)
    long = [times[r] for r in done if len(times[r]) > 1]
    assert_figures(summary["tpot_ms"], [(t[-1] - t[0]) / (len(t) - 1) for t in long])
    assert_figures(summary["itl_ms"], [gap for gaps in chunk_gaps(record) for gap in gaps])
    assert summary["completed"] == len(done)
    assert sum(summary["outcomes"].values()) == summary["requests"] == len(table)
    seconds = max((t[-1] for t in times.values()), default=0) / NS_PER_S
    assert makespan_s(record) == seconds
    if seconds:
        good = sum(value <= 4 * MS for value in e2e)
        assert summary["goodput_req_s"] == pytest.approx(good / seconds)
        tokens = sum(len(t) for t in times.values())
        assert summary["output_tok_s"] == pytest.approx(tokens / seconds)
        assert summary["total_tok_s"] == pytest.approx((tokens + 7 * len(done)) / seconds)


def assert_figures(figures: dict[str, float | None], values: list[float]) -> None:
    if not values:
        assert set(figures.values()) == {None}
        return
    assert figures["mean"] == pytest.approx(np.mean(values) / NS_PER_MS)
    for name, quantile in QUANTILES.items():
        assert figures[name] == pytest.approx(np.quantile(values, quantile) / NS_PER_MS)


@given(
    st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 50)), min_size=1).filter(
        lambda rows: any(weight for _, weight in rows)
    ),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
)
def test_weighted_quantiles_need_no_repeating(
    rows: list[tuple[int, int]], quantiles: list[float]
) -> None:
    values, weights = np.array(rows, dtype=np.int64).T
    expected = np.quantile(np.repeat(values, weights), quantiles)
    assert weighted_quantiles(values, weights, quantiles) == pytest.approx(expected, rel=1e-12)


def test_a_figure_that_does_not_apply_is_none() -> None:
    record = build_record(requests=3, unfinished=3)
    record.energy_j = record.host_cpu_on_token_path_ns = None
    summary = summarise(record, Objectives())
    assert summary["outcomes"] == {"rejected": 3}
    for name in ("goodput_req_s", "output_tok_s", "energy_mj_per_tok", "host_cpu_on_token_path_s"):
        assert summary[name] is None
    assert set(summary["itl_ms"].values()) == set(summary["ttft_ms"].values()) == {None}


def test_one_token_has_no_tpot() -> None:
    record = build_record(requests=5)
    record.requests.output_tokens[0] = 1
    assert np.isnan(per_request_ns(record)["tpot"][0])
    assert not np.isnan(per_request_ns(record)["tpot"][1:]).any()
