"""The rule by which a token is drawn: what it depends on, and with which probabilities."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hw.engine import batches

torch = pytest.importorskip("torch", reason=batches.NEEDED)

from blink.hw.engine.llama.sampling import draw, philox, uniform  # noqa: E402  (needs torch)

DRAWS = 20_000
CHI_SQUARE_LIMIT = {2: 18.4, 3: 21.1, 7: 29.9}  # degrees of freedom -> exceeded once in 10,000


def drawn(logits: Any, **given: Any) -> Any:
    """One token a row; every parameter is off but those given."""
    rows = len(logits)
    settings = {
        "temperature": torch.ones(rows),
        "top_k": torch.zeros(rows, dtype=torch.int32),
        "top_p": torch.ones(rows),
        "seed": torch.full((rows,), 77),
        "position": torch.arange(rows),
    }
    for name, value in given.items():
        settings[name] = torch.as_tensor(value).to(settings[name].dtype).expand(rows)
    return draw(logits, **settings)


def chi_square(tokens: Any, probabilities: Any) -> float:
    expected = probabilities * len(tokens)
    counts = torch.bincount(tokens, minlength=len(probabilities))
    assert not counts[probabilities == 0].any()
    seen = probabilities > 0
    return float(((counts - expected)[seen] ** 2 / expected[seen]).sum())


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_its_published_answers(
    counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]
) -> None:
    found = philox(
        tuple(torch.tensor(word) for word in counter), (torch.tensor(key[0]), torch.tensor(key[1]))
    )
    assert tuple(int(word) for word in found) == words


def test_numbers_are_above_zero_below_one_and_even() -> None:
    numbers = uniform(torch.tensor(-5), torch.tensor(3), torch.arange(100_000))
    assert 0 < numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    assert abs(float(numbers.mean()) - 0.5) < 0.005
    assert len(numbers.unique()) == len(numbers)


def test_tokens_come_with_the_probabilities_of_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 1.5, -3.0])
    found = drawn(logits.expand(DRAWS, -1), temperature=0.8)
    assert chi_square(found, (logits / 0.8).softmax(0)) < CHI_SQUARE_LIMIT[7]


def test_seeds_are_as_independent_as_positions() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 1.5, -3.0])
    found = drawn(logits.expand(DRAWS, -1), seed=torch.arange(DRAWS) - 7, position=5)
    assert chi_square(found, logits.softmax(0)) < CHI_SQUARE_LIMIT[7]


def test_top_k_keeps_the_likeliest_and_their_proportions() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5])
    kept = torch.tensor([-torch.inf, 1.0, -torch.inf, 2.0, 0.5])
    found = drawn(logits.expand(DRAWS, -1), top_k=3)
    assert chi_square(found, kept.softmax(0)) < CHI_SQUARE_LIMIT[2]


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([0.1, 0.4, 0.3, 0.2]).log()
    found = drawn(logits.expand(DRAWS, -1), top_p=0.75)
    assert chi_square(found, torch.tensor([0.0, 4 / 9, 3 / 9, 2 / 9])) < CHI_SQUARE_LIMIT[2]


def test_top_p_is_a_share_of_what_top_k_keeps() -> None:
    logits = torch.tensor([0.1, 0.4, 0.3, 0.2]).log().expand(400, -1)
    # Of the first two, 0.4 is four sevenths: more than half, less than two thirds.
    assert set(drawn(logits, top_k=2, top_p=0.5).tolist()) == {1}
    assert set(drawn(logits, top_k=2, top_p=0.66).tolist()) == {1, 2}


def test_equal_tokens_are_cut_off_by_their_id() -> None:
    logits = torch.zeros(400, 8)
    assert set(drawn(logits, top_k=3).tolist()) == {0, 1, 2}
    assert set(drawn(logits, top_p=0.5).tolist()) == {0, 1, 2, 3}
    assert set(drawn(logits, top_p=0.51).tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("given", [{"temperature": 0}, {"top_k": 1}, {"top_p": 0}])
def test_greedy_in_three_ways_is_the_greatest_with_the_lowest_id(given: dict[str, Any]) -> None:
    logits = torch.tensor([[1.0, 3.0, -2.0, 3.0], [-1.0, -1.0, -1.0, -1.0]])
    assert drawn(logits, **given).tolist() == [1, 0]


def test_a_temperature_near_zero_is_greedy_without_overflow() -> None:
    logits = torch.tensor([[1.0, 3.0, -2.0, 2.999]])
    assert drawn(logits, temperature=1e-30).tolist() == [1]


def test_nothing_but_seed_and_position_has_a_say() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    given = {
        "temperature": torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0, 1.0]),
        "top_k": torch.tensor([0, 5, 0, 0, 20, 0]),
        "top_p": torch.tensor([1.0, 1.0, 1.0, 0.9, 0.8, 0.3]),
        "seed": torch.tensor([1, 2, 3, 4, 5, -6]),
        "position": torch.tensor([10, 11, 500, 3, 4, 90_000]),
    }
    together = drawn(logits, **given)
    for order in ([0], [5, 2], [3, 1, 4, 0, 2, 5]):
        some = {name: values[order] for name, values in given.items()}
        assert drawn(logits[order], **some).tolist() == together[order].tolist()


def test_what_a_padding_row_holds_harms_nobody() -> None:
    logits = torch.zeros(3, 8)
    given = {"temperature": [1.0, torch.nan, 1.0], "top_k": [0, -9, 3], "top_p": [1, torch.nan, 1]}
    clean = drawn(logits[[0, 2]], top_k=torch.tensor([0, 3]), position=torch.tensor([0, 2]))
    assert drawn(logits, **given)[[0, 2]].tolist() == clean.tolist()
