"""Puts a hardware profile under a run: measured constants in the place of the catalogue's.

Only what the profile measured is replaced, and every replaced constant names it as its source. The
DPU's and the link's own costs give way only where the scenario has no network: ``hardware.dpu`` and
``hardware.link`` "direct", a front end that is one process beside the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, TypeVar

from blink.model import hardware
from blink.model.control_plane import NS_MAX, ControlPlane
from blink.model.errors import BadInput
from blink.model.hardware import DpuSku, GpuSku, LinkSku
from blink.model.profile import Control, Profile, Spread
from blink.model.provenance import Constant
from blink.model.setup import RunSetup
from blink.ring_protocol.layout import Geometry

METADATA_BYTES: Final = Geometry(4096, 1, 1).metadata_bytes
DIRECT: Final = "direct"
P99_SIGMAS: Final = 2.326
"""The 99th percentile of a normal distribution, in standard deviations."""
Sku = TypeVar("Sku", GpuSku, DpuSku, LinkSku, ControlPlane)
Replaced = dict[str, tuple[float | int, str]]
"""field -> (value, what it is)."""


def calibrate(setup: RunSetup, profile: Profile) -> RunSetup:
    """``setup`` with the profile's constants, and its step times where it has this model's.

    Raises BadInput if the profile was measured on another GPU than the run's.
    """
    board = hardware.gpu(profile.gpu)
    if board.name != setup.gpu.name:
        raise BadInput(
            f"hardware.profile: {profile.name} was measured on {board.name}, hardware.gpu is "
            f"{setup.gpu.name}: set hardware.gpu={board.name}"
        )
    control = profile.control.get(setup.system, Control())
    steps = profile.steps_of(setup.system, setup.llm.name, setup.provider)
    gpu = _gpu(profile, control, setup.system, measured_steps=steps is not None)
    link = _link(profile, control, setup)
    return replace(
        setup,
        gpu=_replaced(setup.gpu, gpu, profile),
        link=_replaced(setup.link, link, profile) if setup.link.name == DIRECT else setup.link,
        dpu=_dpu(profile, control, setup) if setup.dpu.name == DIRECT else setup.dpu,
        plane=_plane(profile, control, setup.plane, setup.host.speed),
        profile=profile.name,
        steps=steps,
    )


def without_a_slowed_gpu(setup: RunSetup) -> RunSetup:
    """``setup`` as the null engine runs it: a spin takes as long beside a resident scheduler."""
    if setup.provider != "null":
        return setup
    what = "the null engine spins on one SM: a resident scheduler takes nothing from it"
    said = {
        name: Constant(1.0, "ratio", what)
        for name in ("resident_prefill_slowdown", "resident_decode_slowdown")
    }
    gpu = replace(
        setup.gpu,
        resident_prefill_slowdown=1.0,
        resident_decode_slowdown=1.0,
        provenance=MappingProxyType({**setup.gpu.provenance, **said}),
    )
    return replace(setup, gpu=gpu)


def _gpu(profile: Profile, control: Control, system: str, *, measured_steps: bool) -> Replaced:
    p50 = {name: each.p50 for name, each in profile.microbenchmarks.items()}
    found: Replaced = {
        "device_launch_ns": (p50["launch_call_ns"], "launch call from the device, p50"),
        "completion_poll_ns": (
            max(0.0, p50["launch_to_seen_ns"] - p50["launch_call_ns"]),
            "launch to completion seen, less the call, p50",
        ),
        "tail_launch_ns": (p50["tail_ns"], "tail relaunch, p50"),
        "scan_ns": (p50["scan_ns"], "scan of 4096 slots, p50"),
        "claim_ns": (
            max(p50["claim_ns"], p50["claim_to_launch_ns"]),
            f"a prompt claimed (alone {p50['claim_ns']:.0f} ns) to launched, p50",
        ),
        "host_launch_ns": (p50["host_launch_ns"], "host graph launch and sync, p50"),
    }
    if system == "blink" and control.to_start_ns and control.to_next_ns:
        around = control.to_start_ns.p50 + control.to_next_ns.p50
        found["completion_poll_ns"] = (
            max(0.0, around - p50["launch_call_ns"]),
            f"all that a decode step adds to the GPU's work, {around:.0f} ns, less the launch "
            "call, p50",
        )
    if measured_steps:
        what = "contained in the measured step times"
        found["resident_prefill_slowdown"] = (1.0, what)
        found["resident_decode_slowdown"] = (1.0, what)
    return found


def _link(profile: Profile, control: Control, setup: RunSetup) -> Replaced:
    on_wire_ns = METADATA_BYTES / setup.link.bandwidth_bytes_s * 1e9
    read_ns = profile.microbenchmarks["read_metadata_ns"].p50
    return {
        "post_ns": (0, "contained in write_latency_ns"),
        "write_latency_ns": _write(profile, control, setup),
        "read_latency_ns": (
            max(0.0, read_ns - on_wire_ns),
            "64 KiB posted to completed, less their time at the link's bandwidth, p50",
        ),
    }


def _write(profile: Profile, control: Control, setup: RunSetup) -> tuple[float, str]:
    """Submitted to seen: a front end takes longer to put a request together than its copy does."""
    p50 = {name: each.p50 for name, each in profile.microbenchmarks.items()}
    copied_ns, what = p50["write_visible_ns"], "64 B and their flag posted to seen, p50"
    if control.pickup_ns is None:
        return copied_ns, what
    on_gpu = setup.plane.processes == 0
    looked_ns = p50["scan_ns"] + p50["claim_to_launch_ns"] if on_gpu else 0.0
    picked_ns = control.pickup_ns.p50 - looked_ns
    if picked_ns <= copied_ns:
        return copied_ns, what
    return picked_ns, "submitted to taken up by an idle scheduler, less its scan and claim, p50"


def _dpu(profile: Profile, control: Control, setup: RunSetup) -> DpuSku:
    """The front end beside the GPU, by what it took to submit and to deliver."""
    found: Replaced = {"doorbell_ns": (0, "contained in the link's write and read latencies")}
    if control.submit_ns:
        found["http_request_ns"] = (control.submit_ns.p50, "arrival to submitted, p50")
    if control.deliver_ns:
        before_ns, what = _before_parsing(profile, control, setup)
        found["poll_parse_ns"] = (
            max(0.0, control.deliver_ns.p50 - before_ns),
            f"end of a step to its tokens delivered, less {what}, p50",
        )
    return _replaced(setup.dpu, found, profile)


def _before_parsing(profile: Profile, control: Control, setup: RunSetup) -> tuple[float, str]:
    """What lies between a step's end and its tokens' parsing, by the twin's own account of it."""
    p50 = {name: each.p50 for name, each in profile.microbenchmarks.items()}
    if setup.plane.processes == 0:
        wait_ns = setup.front_end.poll_interval_min_ns / 2
        return wait_ns + p50["read_metadata_ns"], "half a poll interval and the read"
    loop_ns = control.to_next_ns.p50 if control.to_next_ns else 0.0
    hop_ns, _ = _write(profile, control, setup)
    return loop_ns + hop_ns, "the host's loop and the hop"


def _plane(profile: Profile, control: Control, plane: ControlPlane, speed: float) -> ControlPlane:
    """The host's loop, where it is a host that schedules; ``speed`` is its core's."""
    if plane.processes == 0 or not (control.to_start_ns and control.to_next_ns):
        return plane
    start, following = control.to_start_ns, control.to_next_ns
    found: Replaced = {
        "step_host_ns": (start.mean * speed, "launch to the GPU's work, mean"),
        "step_update_ns": (following.mean * speed, "end of a step to the next launch, mean"),
        "step_host_per_sequence_ns": (0, "contained in step_host_ns"),
        "step_update_per_sequence_ns": (0, "contained in step_update_ns"),
        "request_admit_ns": (0, "contained in prefill_step_host_ns"),
        "prefill_step_host_ns": (0, "not measured"),
        "jitter_sigma": (_sigma(following), "ln(p99 / p50) of end to next launch, over 2.326"),
    }
    if control.prefill_to_start_ns:
        more = max(0.0, control.prefill_to_start_ns.mean - start.mean)
        found["prefill_step_host_ns"] = (more * speed, "the same for a prefill, less a decode's")
    limits = {name: 1.0 if name == "jitter_sigma" else NS_MAX for name in found}
    capped = {name: (min(value, limits[name]), what) for name, (value, what) in found.items()}
    return _replaced(plane, capped, profile)


def _sigma(spread: Spread) -> float:
    if spread.p50 <= 0 or spread.p99 <= spread.p50:
        return 0.0
    return math.log(spread.p99 / spread.p50) / P99_SIGMAS


def _replaced(sku: Sku, found: Replaced, profile: Profile) -> Sku:
    """The SKU with those fields, whole ns where they were whole, and their new origins."""
    values: dict[str, Any] = {}
    said: Mapping[str, Constant] = sku.provenance
    for name, (value, what) in found.items():
        before = getattr(sku, name)
        values[name] = round(value) if isinstance(before, int) else float(value)
        said = {
            **said,
            name: Constant(values[name], said[name].unit, f"{profile.origin}: {what}"),
        }
    return replace(sku, provenance=MappingProxyType(dict(said)), **values)
