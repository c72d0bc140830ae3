"""Every committed hardware profile: the twin still predicts its runs within the stated bands."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from blink.model import profile
from blink.model.profile import Profile, RecordedRun
from blink.plan.hardware_page import BEGIN, END, NOTHING, page_text
from blink.plan.profiling import AIMS
from blink.plan.validate import recorded_rows

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "data" / "profiles" / "example.json"


def committed() -> list[Path]:
    """Those that come with the package, and one that was never measured."""
    folder = Path(str(resources.files("blink.model") / "data" / "profiles"))
    return [EXAMPLE, *sorted(folder.glob("*.json"))]


def recorded() -> list[tuple[Profile, RecordedRun]]:
    read = [profile.read(path) for path in committed()]
    return [(each, run) for each in read for run in each.runs]


def name_of(value: object) -> str | None:
    if isinstance(value, Profile):
        return value.name
    if isinstance(value, RecordedRun):
        return f"{Path(value.spec).stem}-{value.system}-{value.condition}"
    return None


@pytest.mark.parametrize(("measured", "run"), recorded(), ids=name_of)
def test_predictions_hold_their_bands(measured: Profile, run: RecordedRun) -> None:
    rows = recorded_rows(measured, run, ROOT)
    assert rows, "a run without bands proves nothing"
    assert {name: row for name, row in rows.items() if not row["holds"]} == {}


@pytest.mark.parametrize("path", committed(), ids=lambda path: str(path.stem))
def test_a_profile_is_found_by_its_files_name(path: Path) -> None:
    measured = profile.read(path)
    assert measured.name == path.stem
    assert measured.runs
    if path != EXAMPLE:
        assert profile.lookup(path.stem) == measured


def test_the_page_has_every_run_and_keeps_its_prose() -> None:
    page = f"Before.\n\n{BEGIN}\noutdated\n{END}\n\nAfter.\n"
    measured = profile.read(EXAMPLE)
    text = page_text(page, [measured], ROOT)
    assert text.startswith("Before.") and text.endswith("After.\n") and "outdated" not in text
    assert text.count("`specs/hardware/") == len(measured.runs)
    assert "| one pass over 4096 slots | 2.70 | 3.24 | 3.44 | 3.50 |" in text
    assert page_text(text, [measured], ROOT) == text
    assert NOTHING in page_text(text, [], ROOT)


@pytest.mark.canary
def test_a_prediction_that_is_off_is_found() -> None:
    measured = profile.read(EXAMPLE)
    run = measured.runs[0]
    slower = {name: 1.2 * value for name, value in run.metrics.items()}
    rows = recorded_rows(measured, run.model_copy(update={"metrics": slower}), ROOT)
    missed = {name for name, row in rows.items() if not row["holds"]}
    assert missed == {name for name, band in run.bands.items() if band < 1 - 1 / 1.2}
    assert missed >= {name for name, aim in AIMS.items() if aim <= 0.1}
