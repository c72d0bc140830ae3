"""The switchboard: backend names to backends, imported only when asked for.

The only module that names one. A backend is a class with ``name``, ``clock`` ("virtual" or "wall"),
``capabilities`` and ``run(setup, commit=, progress=) -> RunRecord``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final, Literal, Protocol, cast

from blink.model.errors import BackendUnavailable, BadInput, UnknownName
from blink.model.record import RunRecord
from blink.model.setup import RunSetup


class Backend(Protocol):
    """What every backend can do and says of itself."""

    name: str
    clock: Literal["virtual", "wall"]
    capabilities: frozenset[str]

    def run(self, setup: RunSetup, *, commit: str, progress: Callable[[int], None]) -> RunRecord:
        """Run ``setup`` until every request has ended."""


_BACKENDS: Final = {"sim": ("blink.sim.backend", "SimBackend", "pip install blink-twin")}
"""name -> (module, class, the command that installs what it needs)"""


def names() -> list[str]:
    """All backends that exist, here or elsewhere."""
    return list(_BACKENDS)


def available() -> list[str]:
    """The backends whose libraries are installed here."""
    return [name for name in _BACKENDS if _load(name) is not None]


def require(name: str) -> Backend:
    """Return the backend ``name``.

    Raises UnknownName for no such backend, BackendUnavailable for one that cannot run here.
    """
    if name not in _BACKENDS:
        raise UnknownName("backend", name, names())
    backend = _load(name)
    if backend is None:
        raise BackendUnavailable(
            f"backend {name!r} is not installed here; install it with: {_BACKENDS[name][2]}"
        )
    return backend


def check_capabilities(backend: Backend, wanted: list[str]) -> None:
    """Raise BadInput if a scenario asks for what ``backend`` cannot do."""
    lacking = [each for each in wanted if each not in backend.capabilities]
    if lacking:
        raise BadInput(
            f"backend {backend.name!r} lacks {', '.join(lacking)}, which the scenario requires; "
            f"it has {', '.join(sorted(backend.capabilities))}"
        )


def _load(name: str) -> Backend | None:
    module, attribute, _ = _BACKENDS[name]
    try:
        found = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("blink"):
            raise  # ours: a bug, not an absent environment
        return None
    return cast(Backend, found())
