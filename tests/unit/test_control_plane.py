"""Control-plane profiles: complete, sourced, overridable by name only."""

from __future__ import annotations

from dataclasses import fields

import pytest

from blink.model import control_plane, timing
from blink.model.control_plane import profile
from blink.model.errors import UnknownName


@pytest.mark.parametrize("name", ["blink", "host_resident", "trtllm", "vllm", "sglang"])
def test_profiles_are_complete_and_sourced(name: str) -> None:
    plane = profile(name)
    timing.engine(plane.engine)
    for each in fields(plane):
        if each.name in plane.provenance:
            assert plane.provenance[each.name].source
            assert getattr(plane, each.name) >= 0


def test_blink_has_no_host_work() -> None:
    plane = profile("blink")
    assert plane.launch_host_ns(64, prefills=True) == plane.update_host_ns(64) == 0
    assert plane.threads == plane.processes == 0


def test_host_resident_is_blink_with_the_loop_on_the_host() -> None:
    assert profile("host_resident").engine == profile("blink").engine
    assert profile("host_resident").front_end == profile("blink").front_end
    assert not profile("host_resident").overlap
    assert profile("host_resident").launch_host_ns(16, False) > 1_000_000


def test_work_grows_with_sequences_and_prefill() -> None:
    plane = profile("vllm")
    assert plane.launch_host_ns(2, False) > plane.launch_host_ns(1, False)
    assert plane.launch_host_ns(1, True) > plane.launch_host_ns(1, False)
    assert plane.update_host_ns(2) > plane.update_host_ns(1)


def test_an_override_is_taken_and_said() -> None:
    plane = profile("vllm").with_overrides({"step_host_ns": 5, "overlap": False})
    assert (plane.step_host_ns, plane.overlap) == (5, False)
    assert plane.provenance["step_host_ns"].source == "the scenario"


def test_an_override_of_nothing_is_refused() -> None:
    with pytest.raises(UnknownName, match="step_host_ns"):
        profile("vllm").with_overrides({"step_hosts_ns": 5})


def test_an_unknown_profile_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="vllm"):
        profile("vlm")
    assert "sglang" in control_plane.names()
