"""The table fits, lines up what belongs together, and says why."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from blink.model.metrics import Objectives, summarise
from blink.model.record import STEP_DECODE, RunRecord
from blink.plan.table import comparison_table, group_runs, print_comparison, unfinished_lines
from blink.plan.why import explain, running_after, step_shares
from tests.builders import MS, build_pair, build_record, decode_ranges


def summaries(records: list[RunRecord], **objectives: float) -> list[dict[str, Any]]:
    return [summarise(record, Objectives(**objectives)) for record in records]


def rendered(records: list[RunRecord], width: int = 80, **objectives: float) -> list[str]:
    """What a user sees who sends the output to a file."""
    text = io.StringIO()
    print_comparison(Console(file=text, width=width), summaries(records, **objectives), records)
    return text.getvalue().splitlines()


@pytest.fixture
def pairs() -> list[RunRecord]:
    return build_pair("blink") + build_pair("host_resident", control_ns=500_000, slowdown=4)


@pytest.mark.parametrize("width", [80, 100])
def test_nothing_is_cut_off_and_nothing_wraps(pairs: list[RunRecord], width: int) -> None:
    lines = rendered(pairs, width, ttft_ms=500)
    assert all(len(line) <= width for line in lines)
    assert not any("…" in line or "\x1b" in line for line in lines)
    assert [line.split()[0] for line in lines[4:] if line[:15].strip()][:6] == [
        *("blink", "interfered", "ratio"),
        *("host_resident", "interfered", "ratio"),
    ]


def test_the_ratio_is_interfered_over_isolated(pairs: list[RunRecord]) -> None:
    quiet, noisy = summaries(pairs)[2:]
    row = [line for line in rendered(pairs) if line.startswith("  ratio")][1].split()
    assert row[3] == f"{noisy['tpot_ms']['mean'] / quiet['tpot_ms']['mean']:.2f}"
    assert float(row[3]) > 1.1


def test_none_is_a_dash_and_no_ratio() -> None:
    records = build_pair("blink")
    for record in records:
        record.energy_j = None
    row, _, ratio = [
        line.split() for line in rendered(records) if "40/40" in line or "ratio" in line
    ]
    assert row[6] == "-"  # no objectives, no goodput
    assert row[8] == ratio[8] == "-"


def test_unfinished_requests_are_told_by_outcome() -> None:
    record = build_record(system="vllm", requests=10, unfinished=2)
    assert unfinished_lines(summaries([record])) == ["vllm (isolated): 8 stop, 2 rejected"]
    assert any("8/10" in line for line in rendered([record]))
    assert unfinished_lines(summaries([build_record()])) == []


def test_isolated_comes_first_and_a_sweep_goes_by_label() -> None:
    pair = summaries(build_pair("blink"))[::-1]
    assert [run["condition"] for run in group_runs(pair)["blink"]] == ["isolated", "interfered"]
    sweep = [{**pair[1], "label": f"blink rate={rate} isolated"} for rate in (1, 2)]
    assert list(group_runs(sweep)) == ["blink rate=1", "blink rate=2"]


def test_no_runs_is_an_empty_table() -> None:
    assert comparison_table([]).row_count == 0
    assert explain([]) == ""


def test_shares_are_what_the_control_plane_added() -> None:
    shares = step_shares(build_record(control_ns=2 * MS))
    assert shares is not None
    assert shares.control_ns == pytest.approx(2 * MS, rel=0.01)
    assert shares.decode_gpu_ns == pytest.approx(8.2 * MS, rel=0.02)
    assert 0.1 < shares.idle_share <= shares.control_share < 0.25
    assert shares.delivery_ns == 60_000


def test_a_gap_without_a_running_sequence_is_not_idle() -> None:
    record = build_record(requests=30, rate_per_s=1, output_tokens_mean=5)
    shares = step_shares(record)
    assert shares is not None
    assert shares.running_ns < record.steps.end_ns[-1] / 5
    assert shares.idle_share < 0.01


def test_running_counts_sequences_between_two_of_their_tokens() -> None:
    record = build_record(requests=20)
    running = running_after(record)
    steps, first = record.steps, record.requests.first_step
    last = [max(e for r, e in zip(*_ranges(record), strict=True) if r == q) for q in range(20)]
    for row in range(len(steps)):
        inside = sum(first[q] <= row < steps.decodes[last[q] - 1] for q in range(20) if last[q] > 0)
        assert running[row] == inside


def _ranges(record: RunRecord) -> tuple[list[int], list[int]]:
    ends = record.decode_ranges.end.tolist() + [0] * 20
    return record.decode_ranges.request.tolist() + list(range(20)), ends


def test_the_paragraph_names_every_system_and_its_share(pairs: list[RunRecord]) -> None:
    pairs[3].requests.preemptions[2] = 2
    words = explain(pairs)
    assert "\n" not in words
    assert "blink 0.020 + 8." in words
    assert "host_resident 0.50 + 8." in words
    assert "interfered 2.00 + 8." in words
    assert "host_resident (interfered) ran out of KV cache and preempted 2 times." in words


def test_a_run_of_single_tokens_has_nothing_to_explain() -> None:
    record = build_record(requests=4)
    record.decode_ranges = decode_ranges([])
    assert not (record.steps.kind[running_after(record) > 0] == STEP_DECODE).any()
    assert step_shares(record) is None
    assert explain([record]) == ""
