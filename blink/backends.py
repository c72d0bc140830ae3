"""The switchboard: backend names to backends, imported only when asked for.

The only module that names one. A backend is a class with ``name``, ``clock`` ("virtual" or "wall"),
``capabilities`` and ``run(setup, commit=, progress=) -> RunRecord``. Its constructor raises
BackendUnavailable, with what to do, where it cannot run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, Final, Literal, Protocol, cast

from blink.model.errors import BackendUnavailable, BadInput, UnknownName
from blink.model.fleet import FleetRecord
from blink.model.profile import Timing
from blink.model.record import RunRecord
from blink.model.setup import FleetSetup, RunSetup


class Backend(Protocol):
    """What every backend can do and says of itself."""

    name: str
    clock: Literal["virtual", "wall"]
    capabilities: frozenset[str]

    def run(self, setup: RunSetup, *, commit: str, progress: Callable[[int], None]) -> RunRecord:
        """Run ``setup`` until every request has ended."""


class TwinBackend(Backend, Protocol):
    """A backend in virtual time, which may be as many servers as one likes."""

    def run_fleet(
        self, setup: FleetSetup, *, commit: str, progress: Callable[[int], None]
    ) -> FleetRecord:
        """Run replicas behind a router until every request has ended."""


class MetalBackend(Backend, Protocol):
    """A backend that is a real machine, and can say what it is made of."""

    def run(
        self,
        setup: RunSetup,
        *,
        commit: str,
        progress: Callable[[int], None],
        beside: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> RunRecord:
        """As every backend; ``beside()`` is entered for as long as requests are served.

        So that what is to disturb the serving does not disturb, and outlast, a long start.
        """

    def metal(self) -> dict[str, Any]:
        """``date`` (YYYY-MM-DD), ``gpu``, ``driver``, ``cuda``: texts; clocks as ``NAME_mhz``."""

    def microbenchmarks(self, progress: Callable[[str], None]) -> dict[str, Timing]:
        """What single things cost, at least those of ``blink.model.profile.MICROBENCHMARKS``.

        ``progress(what)`` is called as each begins.
        """


_BACKENDS: Final = {
    "sim": ("blink.sim.backend", "SimBackend", "pip install blink-twin"),
    "hw": (
        "blink.hw.backend",
        "HwBackend",
        "pip install 'blink-twin[hw-cuda]'   (where there is an NVIDIA GPU, with driver 580 or "
        "newer)",
    ),
}
"""name -> (module, class, the command that installs what it needs)"""


def names() -> list[str]:
    """All backends that exist, here or elsewhere."""
    return list(_BACKENDS)


def available() -> list[str]:
    """The backends that can run here."""
    return [name for name in _BACKENDS if _can_run(name)]


def require(name: str) -> Backend:
    """Return the backend ``name``.

    Raises UnknownName for no such backend, BackendUnavailable for one that cannot run here.
    """
    if name not in _BACKENDS:
        raise UnknownName("backend", name, names())
    module, attribute, install = _BACKENDS[name]
    try:
        found = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        ours = error.name is not None and error.name.startswith("blink")
        if ours and error.name != module:
            raise  # a bug, not an absent environment
        raise BackendUnavailable(
            f"backend {name!r} is not installed here (there is no {error.name}); install it with: "
            f"{install}"
        ) from None
    return cast(Backend, found())


def require_twin() -> TwinBackend:
    """Return the backend that simulates."""
    return cast(TwinBackend, require("sim"))


def require_metal() -> MetalBackend:
    """Return the backend that is a real machine. Raises BackendUnavailable where there is none."""
    return cast(MetalBackend, require("hw"))


def tell_setup(backend: object, progress: Callable[[str, int, int], None]) -> None:
    """Let a backend say how far its start is: ``progress(what, done, of)``."""
    if hasattr(backend, "setting_up"):
        backend.setting_up = progress


def check_capabilities(backend: Backend, wanted: list[str]) -> None:
    """Raise BadInput if a scenario asks for what ``backend`` cannot do."""
    lacking = [each for each in wanted if each not in backend.capabilities]
    if lacking:
        raise BadInput(
            f"backend {backend.name!r} lacks {', '.join(lacking)}, which the scenario requires; "
            f"it has {', '.join(sorted(backend.capabilities))}"
        )


def _can_run(name: str) -> bool:
    try:
        require(name)
    except BackendUnavailable:
        return False
    return True
