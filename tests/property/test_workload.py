"""What holds for every workload: sorted, positive, seeded, and shared between runs that differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from blink.model.errors import BadInput, UnknownName
from blink.model.random import stream_of
from blink.model.scenario.traffic import Workload as WorkloadSpec
from blink.model.workload import Workload, build_workload, length_table, length_tables

SPECS: TypeAdapter[Any] = TypeAdapter(WorkloadSpec)

CONSTANT = {"kind": "constant", "input_tokens": 10, "output_tokens": 20}
LENGTHS = st.sampled_from(
    [
        CONSTANT,
        {"kind": "lognormal", "input_tokens_mean": 1019.0, "output_tokens_mean": 463.0},
        *({"kind": "table", "table": name} for name in length_tables()),
    ]
)
ARRIVALS = st.sampled_from(
    [
        {"kind": "poisson"},
        {"kind": "constant"},
        {"kind": "bursts", "cv": 0.5},
        {"kind": "bursts", "cv": 3.0},
        {"kind": "bursts", "on_s": 2.0, "off_s": 3.0},
        {"kind": "bursts", "table": "azure2023_conv"},
    ]
)
RATES = st.floats(min_value=0.01, max_value=1e4)
COUNTS = st.integers(min_value=1, max_value=400)
SEEDS = st.integers(min_value=0, max_value=1 << 62)


def build(seed: int = 1, **keys: Any) -> Workload:
    return build_workload(SPECS.validate_python(keys), stream_of(seed))


def same(left: Workload, right: Workload) -> bool:
    return (
        np.array_equal(left.arrival_ns, right.arrival_ns)
        and np.array_equal(left.input_tokens, right.input_tokens)
        and np.array_equal(left.output_tokens, right.output_tokens)
    )


@given(ARRIVALS, LENGTHS, RATES, COUNTS, SEEDS)
def test_arrivals_are_sorted_lengths_positive_and_the_seed_decides(
    arrivals: dict[str, Any], lengths: dict[str, Any], rate: float, requests: int, seed: int
) -> None:
    keys = {**arrivals, "lengths": lengths, "rate": rate, "requests": requests}
    workload = build(seed, **keys)
    assert len(workload) == requests
    for array in (workload.arrival_ns, workload.input_tokens, workload.output_tokens):
        assert array.shape == (requests,)
        assert array.dtype == np.int64
    assert (np.diff(workload.arrival_ns, prepend=0) >= 0).all()
    assert workload.input_tokens.min() >= 1
    assert workload.output_tokens.min() >= 1
    assert workload.concurrency is None
    assert same(workload, build(seed, **keys))


@given(ARRIVALS, LENGTHS, RATES, COUNTS, COUNTS)
def test_a_longer_run_begins_like_a_shorter_one(
    arrivals: dict[str, Any], lengths: dict[str, Any], rate: float, one: int, more: int
) -> None:
    keys = {**arrivals, "lengths": lengths, "rate": rate}
    short, long = build(requests=one, **keys), build(requests=one + more, **keys)
    assert short.arrival_ns.tolist() == long.arrival_ns[:one].tolist()
    assert short.input_tokens.tolist() == long.input_tokens[:one].tolist()
    assert short.output_tokens.tolist() == long.output_tokens[:one].tolist()


@given(ARRIVALS, RATES, st.floats(min_value=0.1, max_value=10), COUNTS)
def test_a_rate_stretches_time_and_changes_nothing_else(
    arrivals: dict[str, Any], rate: float, factor: float, requests: int
) -> None:
    assume("on_s" not in arrivals)  # its pauses do not stretch
    lengths = {"kind": "table", "table": "sharegpt300"}
    keys = {**arrivals, "lengths": lengths, "requests": requests}
    slow, fast = build(rate=rate, **keys), build(rate=rate * factor, **keys)
    assert slow.input_tokens.tolist() == fast.input_tokens.tolist()
    np.testing.assert_allclose(
        fast.arrival_ns * factor, slow.arrival_ns, rtol=1e-9, atol=1 + factor
    )


@given(ARRIVALS, st.floats(min_value=1, max_value=200), st.floats(min_value=0.1, max_value=30))
def test_a_duration_keeps_exactly_the_arrivals_before_it(
    arrivals: dict[str, Any], rate: float, duration_s: float
) -> None:
    keys = {**arrivals, "lengths": CONSTANT, "rate": rate}
    try:
        ended = build(duration_s=duration_s, **keys)
    except BadInput:
        assert build(requests=1, **keys).arrival_ns[0] >= duration_s * 1e9 - 1
        return
    following = build(requests=len(ended) + 1, **keys).arrival_ns
    assert following[:-1].tolist() == ended.arrival_ns.tolist()
    assert ended.arrival_ns[-1] <= duration_s * 1e9 <= following[-1] + 1


@given(COUNTS, COUNTS, st.floats(min_value=0, max_value=100))
def test_a_closed_loop_has_clients_instead_of_arrivals(
    clients: int, requests: int, think_s: float
) -> None:
    workload = build(
        kind="closed_loop", clients=clients, requests=requests, think_s=think_s, lengths=CONSTANT
    )
    assert workload.concurrency == clients
    assert workload.think_ns == round(think_s * 1e9)
    assert not workload.arrival_ns.any()


@given(st.sampled_from(sorted(length_tables())), st.integers(1, 5000), st.integers(1, 500))
def test_tables_are_clipped(table: str, input_max: int, output_max: int) -> None:
    lengths = {
        "kind": "table",
        "table": table,
        "input_tokens_max": input_max,
        "output_tokens_max": output_max,
    }
    workload = build(kind="constant", rate=1.0, requests=200, lengths=lengths)
    assert workload.input_tokens.max() <= input_max
    assert workload.output_tokens.max() <= output_max


@given(
    gaps_ns=st.lists(st.integers(0, 10**10), min_size=2, max_size=50),
    time_scale=st.floats(min_value=0.01, max_value=100),
)
@example(gaps_ns=[1, 1], time_scale=1.0)
def test_a_trace_survives_writing_reading_and_scaling(
    tmp_path_factory: pytest.TempPathFactory, gaps_ns: list[int], time_scale: float
) -> None:
    arrival_ns = np.cumsum(gaps_ns)
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    rows = [f"{ns},{index + 1},{index + 2}" for index, ns in enumerate(arrival_ns.tolist())]
    path.write_text("\n".join(["arrival_ns,input_tokens,output_tokens", *rows]))
    plain = build(kind="trace", trace=str(path))
    assert plain.arrival_ns.tolist() == arrival_ns.tolist()
    assert plain.input_tokens.tolist() == list(range(1, len(gaps_ns) + 1))
    scaled = build(kind="trace", trace=str(path), time_scale=time_scale)
    np.testing.assert_allclose(scaled.arrival_ns, arrival_ns * time_scale, rtol=1e-9, atol=1)
    if arrival_ns[-1] > arrival_ns[0]:
        paced = build(kind="trace", trace=str(path), rate=5.0).arrival_ns
        span_ns = (len(gaps_ns) - 1) / 5.0 * 1e9
        assert paced[-1] - paced[0] == pytest.approx(span_ns, rel=1e-9, abs=2)


# --- statistics, on samples large enough to be sure ------------------------------------------

LARGE = 200_000


@pytest.mark.parametrize("rate", [0.5, 7.0])
@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [
        ({"kind": "poisson"}, 1.0),
        ({"kind": "constant"}, 0.0),
        ({"kind": "bursts", "cv": 0.5}, 0.5),
        ({"kind": "bursts", "cv": 3.0}, 3.0),
        ({"kind": "bursts", "table": "azure2023_conv"}, 1.109),
    ],
)
def test_rate_and_burstiness(arrivals: dict[str, Any], cv: float, rate: float) -> None:
    arrival_ns = build(rate=rate, requests=LARGE, lengths=CONSTANT, **arrivals).arrival_ns
    gaps_s = np.diff(arrival_ns) / 1e9
    assert 1 / gaps_s.mean() == pytest.approx(rate, rel=0.03)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.05, abs=1e-6)


def test_bursts_are_silent_between() -> None:
    arrival_s = (
        build(
            kind="bursts", rate=10.0, on_s=2.0, off_s=6.0, requests=LARGE, lengths=CONSTANT
        ).arrival_ns
        / 1e9
    )
    assert (arrival_s % 8.0).max() <= 2.0
    assert len(arrival_s) / arrival_s[-1] == pytest.approx(10.0, rel=0.02)


@pytest.mark.parametrize("table", sorted(length_tables()))
def test_tables_keep_the_means_and_the_correlation_of_their_traces(table: str) -> None:
    facts = length_table(table)
    workload = build(
        kind="constant", rate=1.0, requests=LARGE, lengths={"kind": "table", "table": table}
    )
    inputs, outputs = workload.input_tokens, workload.output_tokens
    assert inputs.mean() == pytest.approx(facts.input_tokens_mean, rel=0.015)
    assert outputs.mean() == pytest.approx(facts.output_tokens_mean, rel=0.015)
    ranks = np.argsort(np.argsort(np.stack([inputs, outputs])))
    correlation = np.atleast_2d(np.corrcoef(ranks))[0, 1]
    assert correlation == pytest.approx(facts.rank_correlation, abs=0.02)


def test_lognormal_means_are_those_before_clipping() -> None:
    lengths = {
        "kind": "lognormal",
        "input_tokens_mean": 1019.0,
        "input_tokens_max": 1_000_000,
        "output_tokens_mean": 463.0,
        "output_sigma": 0.8,
        "output_tokens_min": 50,
        "output_tokens_max": 1500,
    }
    workload = build(kind="constant", rate=1.0, requests=LARGE, lengths=lengths)
    assert workload.input_tokens.mean() == pytest.approx(1019, rel=0.02)
    assert np.log(workload.input_tokens).std() == pytest.approx(1.0, rel=0.02)
    assert workload.output_tokens.min() == 50
    assert workload.output_tokens.max() == 1500


# --- what cannot be built --------------------------------------------------------------------


def test_a_table_that_is_not_there() -> None:
    lengths = {"kind": "table", "table": "azure2023_con"}
    with pytest.raises(UnknownName, match='did you mean "azure2023_conv"'):
        build(kind="constant", rate=1.0, requests=1, lengths=lengths)


def test_a_table_whose_trace_has_no_usable_gaps() -> None:
    with pytest.raises(UnknownName, match="table of arrival gaps"):
        build(kind="bursts", table="mooncake_conversation", rate=1.0, requests=1, lengths=CONSTANT)


def test_a_workload_without_an_end_in_sight() -> None:
    with pytest.raises(BadInput, match="shorter duration_s"):
        build(kind="poisson", rate=1e9, duration_s=1e9, lengths=CONSTANT)


def test_a_relative_trace_counts_from_the_base_directory(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n")
    spec = SPECS.validate_python({"kind": "trace", "trace": "t.csv"})
    assert len(build_workload(spec, stream_of(1), tmp_path)) == 1
