"""What every test may rely on: Hypothesis profiles, and the `backend` fixture.

pytest --hypothesis-profile speedy     a few examples each, while you type
pytest                                 the same examples for everyone: a red run is a real one
pytest --hypothesis-profile nightly    many fresh examples; a failure prints how to repeat it

BLINK_REQUIRE=hw pytest                a backend that this machine must have: a failure, not a
                                       skip, when it is missing (names separated by commas)
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from blink.hw.cuda.runtime import libraries
from blink.hw.host.library import library
from blink.model.errors import BackendUnavailable

# No deadline: a slow machine is not a bug, and pytest-timeout stops what hangs.
_COMMON: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("speedy", max_examples=15, derandomize=True, **_COMMON)
settings.register_profile("default", max_examples=100, derandomize=True, **_COMMON)
settings.register_profile("nightly", max_examples=2_000, print_blob=True, **_COMMON)
# Hypothesis picks a profile of its own when it sees CI; here a laptop and CI run the same examples.
# --hypothesis-profile is applied after this line and wins.
settings.load_profile("default")


def _required() -> list[str]:
    names = os.environ.get("BLINK_REQUIRE", "").split(",")
    return [name.strip() for name in names if name.strip()]


def _backend_names() -> list[str]:
    """The backends here, and those that should be: the second kind fails in the fixture."""
    return sorted({*_available(), *_required()})


def _available() -> list[str]:
    if importlib.util.find_spec("blink.backends") is None:
        return ["sim"]
    return list(importlib.import_module("blink.backends").available())


@pytest.fixture(params=_backend_names())
def backend(request: pytest.FixtureRequest) -> str:
    """The name of a backend; a test that takes it runs once on each one this machine has."""
    name = str(request.param)
    if name not in _available():
        pytest.fail(f"BLINK_REQUIRE names {name!r}; available here: {', '.join(_available())}")
    return name


@pytest.fixture(scope="session")
def host_build() -> None:
    """Skips what needs the C++ core where there is no compiler for it, and fails it under CI."""
    try:
        library()
    except BackendUnavailable as missing:
        if os.environ.get("CI"):
            pytest.fail(f"{missing}, and CI is set")
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def formal_tools() -> None:
    """Skips what needs the formal model's checker where it is missing, and fails it under CI."""
    missing = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    if missing and os.environ.get("CI"):
        pytest.fail(f"needs {missing}, and CI is set: apt-get install spin")
    if missing:
        pytest.skip(f"needs {missing}: apt-get install spin")


@pytest.fixture(scope="session")
def gpu() -> None:
    """Skips what needs a GPU where there is none, and fails it if BLINK_REQUIRE names hw."""
    try:
        libraries()
    except BackendUnavailable as missing:
        if "hw" in _required():
            pytest.fail(f"{missing}, and BLINK_REQUIRE names hw")
        pytest.skip(str(missing))
