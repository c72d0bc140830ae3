"""The search: whatever the threshold, it is found, in few probes, and the search can say how."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blink.plan.capacity.search import Probe, Search

LOADS = st.floats(0.01, 1000)


def drive(search: Search, threshold: float) -> Search:
    """All loads up to ``threshold`` hold."""
    while (load := search.load) is not None:
        failure = None if load <= threshold else {"text": "breaks"}
        search.probes.append(Probe(load, failure, {}))
        assert len(search.probes) < 60
    return search


@given(start=LOADS, threshold=LOADS, tolerance=st.floats(0.002, 0.2))
def test_it_finds_the_largest_load_that_holds(
    start: float, threshold: float, tolerance: float
) -> None:
    search = drive(Search(start, start / 1000, start * 64, tolerance), threshold)
    holds, fails = search.holds, search.fails
    if holds is None:
        assert fails is not None and fails.load == start / 1000 > threshold
    elif fails is None:
        assert holds.load == start * 64 <= threshold
    else:
        assert holds.load <= threshold < fails.load <= holds.load * (1 + tolerance)


@given(start=LOADS, share=st.floats(0.2, 5))
def test_a_good_guess_takes_few_probes(start: float, share: float) -> None:
    search = drive(Search(start, start / 1000, start * 64, 0.03), start * share)
    assert len(search.probes) <= 14


def test_a_load_that_holds_above_one_that_failed_is_luck_and_not_taken() -> None:
    search = Search(10, 0.1, 100, 0.05)
    search.probes += [Probe(10, {"text": "breaks"}, {}), Probe(12, None, {}), Probe(8, None, {})]
    assert search.holds is not None and search.holds.load == 8


def test_it_says_what_it_tried() -> None:
    search = drive(Search(10, 0.1, 100, 0.3), 11)
    assert search.told().startswith("10 req/s holds; ")
    assert "req/s breaks" in search.told()
