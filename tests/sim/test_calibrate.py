"""Calibration: known constants are found again, others are refused, measured runs are held out."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink.model.errors import BackendUnavailable, BadInput
from blink.model.fitted import FittedProfile
from blink.plan import fitting
from blink.plan.bench_files import Asked
from blink.plan.calibrate_command import print_cross_validation, print_profile
from blink.plan.calibrating import AIMS, Origin, calibrate, cross_validate
from blink.plan.fitting import Twin, fit
from blink.plan.identify import ERROR_MAX, choose
from blink.plan.observations import Observation, observe
from tests.observed import page, write_record

H200 = Path(str(files("blink.model") / "data" / "measured" / "vllm_h200.json"))
ORIGIN = Origin("fitted", "2026-12-07", "test", "blink calibrate")
GPU = {
    "engine.memory_efficiency": 0.78,
    "engine.compute_efficiency": 0.7,
    "engine.attention_memory_efficiency": 0.6,
}


def observed(*places: Path) -> list[Observation]:
    return observe(places, Asked())


def recovered(profile: FittedProfile, truth: dict[str, float]) -> dict[str, bool]:
    """Of each true constant whether its interval holds it."""
    found = profile.constants
    return {name: found[name].low <= value <= found[name].high for name, value in truth.items()}


@cache
def quiet() -> list[Observation]:
    """The three measured runs on a quiet host."""
    return [each for each in observe([H200], Asked()) if each.condition == "isolated"]


@cache
def twin() -> Twin:
    """One that remembers: the tests of the measured runs ask for the same ones."""
    return Twin()


@cache
def fitted_quiet() -> tuple[FittedProfile, list[dict[str, Any]]]:
    return calibrate(quiet(), ORIGIN, twin())


# --- known constants -------------------------------------------------------------------------


def test_a_gpus_constants_are_found_again(tmp_path: Path) -> None:
    """Two records of a server with other constants, and other random numbers."""
    places = [
        write_record(tmp_path / "low", page(rate=6), GPU),
        write_record(tmp_path / "high", page(rate=25, requests=250), GPU),
    ]
    profile, _ = calibrate(observed(*places), ORIGIN, Twin())
    assert set(GPU) <= set(profile.constants)
    assert recovered(profile, GPU) == dict.fromkeys(GPU, True)
    for name, true in GPU.items():
        assert profile.constants[name].value == pytest.approx(true, rel=0.1)
        assert abs(profile.constants[name].before / true - 1) > 0.1, "or nothing was to be found"


def test_what_neighbours_add_is_found_again(tmp_path: Path) -> None:
    truth, name = 1.6, "interference.queue_factor"
    places = [
        write_record(tmp_path / "quiet", page(rate=14), {name: truth}),
        write_record(tmp_path / "noisy", page(rate=14, noisy=True, requests=200), {name: truth}),
    ]
    runs = observed(*places)
    assert fit(runs[:1], Twin()).left_out[name] == "no observed run had neighbours"
    profile, _ = calibrate(runs, ORIGIN, Twin(), wanted=[name])
    assert recovered(profile, {name: truth}) == {name: True}
    assert profile.constants[name].low > profile.constants[name].before
    with pytest.raises(BadInput, match="these runs cannot tell them apart"):
        fit(runs, Twin(), [name, "plane.step_host_ns"])


def test_a_run_that_is_predicted_already_keeps_its_constants(tmp_path: Path) -> None:
    place = write_record(tmp_path / "as-is", page(rate=10), {}, seed=1)
    profile, rows = calibrate(observed(place), ORIGIN, Twin())
    assert rows == [] and profile.held_out_by is None
    for each in profile.constants.values():
        assert each.value == pytest.approx(each.before, rel=0.01)
    assert {figure.error for run in profile.runs for figure in run.figures.values()} == {0.0}


# --- what cannot be told ---------------------------------------------------------------------


def test_a_constant_that_the_runs_do_not_tell_is_refused() -> None:
    with pytest.raises(BadInput, match=r"step_host_ns: cannot be identified: no observed"):
        fit(quiet()[:1], twin(), ["plane.step_host_ns"])
    with pytest.raises(BadInput, match="queue_factor: cannot be identified: no observed run had"):
        fit(quiet()[:1], twin(), ["interference.queue_factor"])
    with pytest.raises(BadInput, match=r"--fit engine\.speed: no constant that can be fitted"):
        fit(quiet()[:1], twin(), ["engine.speed"])


def test_one_light_run_does_not_tell_all_of_the_gpu_apart() -> None:
    found = fit(quiet()[:1], twin())
    assert set(found.constants) == {"engine.memory_efficiency", "engine.compute_efficiency"}
    assert "cannot tell them apart" in found.left_out["engine.attention_memory_efficiency"]
    assert found.errors.max() <= fitting.LOST * ERROR_MAX


def test_columns_that_are_alike_are_taken_once() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(2, 30)) * 20
    sensitivity = np.stack([first, second, 0.9 * first + 1e-3 * second, 1e-3 * first], axis=1)
    names, reasons = choose(sensitivity, ["a", "b", "like a", "nothing"])
    assert len(names) == 2 and "b" in names
    assert len({"a", "like a"} & set(names)) == 1
    [left] = {"a", "like a"} - set(names)
    assert "cannot tell them apart" in reasons[left]
    assert "no observed figure tells it" in reasons["nothing"]


def test_no_more_constants_than_half_the_figures() -> None:
    names, reasons = choose(100 * np.eye(4), list("abcd"))
    assert len(names) == 2
    assert set(reasons.values()) == {"4 figures determine no more constants"}


def test_without_scipy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable, match="pip install 'scipy"):
        fit(quiet()[:1], twin())


# --- measured runs ---------------------------------------------------------------------------


def test_held_out_quiet_runs_are_within_their_aims_but_for_one_extrapolation() -> None:
    """The misses are those in docs/fidelity.md: 20 req/s from 7 and 12, and it says so."""
    profile, rows = fitted_quiet()
    missed = {row["predicted"]: row["misses"] for row in rows if row["misses"]}
    assert list(missed) == [quiet()[2].label]
    assert missed[quiet()[2].label] == ["tpot_ms.mean", "itl_ms.mean"]
    assert rows[2]["extrapolated"] and not rows[1]["extrapolated"]
    for run, row in zip(profile.runs, rows, strict=True):
        assert {name: run.figures[name].held_out for name in AIMS} == row["errors"]


def test_any_quiet_run_predicts_the_others_within_their_aims() -> None:
    rows = cross_validate(quiet(), twin())
    assert len(rows) == 6
    assert [row["misses"] for row in rows] == [[]] * 6


def test_the_fit_is_the_same_twice() -> None:
    assert calibrate(quiet()[:1], ORIGIN, Twin()) == calibrate(quiet()[:1], ORIGIN, twin())


def test_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    profile, rows = fitted_quiet()
    print_profile(profile)
    print_cross_validation(rows)
    printed = capsys.readouterr().out
    assert "not fitted: step_host_ns: no observed figure tells it" in " ".join(printed.split())
    assert "+7." in printed and "! beyond its aim" in printed
    assert "10 of 12 predictions within their aims" in printed
    assert max(len(line) for line in printed.splitlines()) <= 80


def test_one_run_cannot_be_cross_validated() -> None:
    with pytest.raises(BadInput, match="needs two runs at least"):
        cross_validate(quiet()[:1], twin())
