"""The switchboard: what is there, and what is said of what is not."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from blink import backends
from blink.model.errors import BackendUnavailable, UnknownName


def put_in_place(monkeypatch: pytest.MonkeyPatch, made: object) -> None:
    """Let ``made()`` be the hardware backend."""
    module = ModuleType("blink.hw.backend")
    module.HwBackend = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "blink.hw.backend", module)


def test_the_twin_runs_everywhere() -> None:
    assert "sim" in backends.available()
    assert backends.require("sim").clock == "virtual"


def test_an_unknown_name_is_not_a_missing_library() -> None:
    with pytest.raises(UnknownName, match="hw"):
        backends.require("hv")


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise ModuleNotFoundError(name="cupy")

    monkeypatch.setattr(backends, "import_module", lambda module: absent())
    with pytest.raises(BackendUnavailable, match=r"no cupy.*pip install 'blink-twin\[hw-cuda\]'"):
        backends.require("hw")
    assert backends.available() == []


def test_a_backend_says_itself_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gpu() -> None:
        raise BackendUnavailable("backend 'hw' needs an NVIDIA GPU")

    put_in_place(monkeypatch, no_gpu)
    with pytest.raises(BackendUnavailable, match="needs an NVIDIA GPU"):
        backends.require("hw")
    assert "hw" not in backends.available()


def test_a_broken_import_of_our_own_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ModuleNotFoundError(name="blink.hw.nothing")

    monkeypatch.setattr(backends, "import_module", lambda module: broken())
    with pytest.raises(ModuleNotFoundError):
        backends.require("hw")


def test_what_is_in_place_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    made = object()
    put_in_place(monkeypatch, lambda: made)
    assert backends.require("hw") is made
