"""Hardware SKUs: GPU, host, DPU and link, read from ``data/*.toml`` with each number's origin.

``gpu("H200")``, ``host("paper")``, ``dpu("bluefield-3")``, ``link("rdma-200g")`` take a name or an
alias in any case and raise :class:`blink.model.errors.UnknownName` with the nearest known names.
Every SKU keeps its ``provenance``: field name -> :class:`blink.model.provenance.Constant`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypeVar

from blink.model.provenance import Constant, Entry, catalogue, entry


@dataclass(frozen=True, slots=True)
class GpuSku:
    """One GPU. FLOPS are dense 16-bit with fp32 accumulation; times in ns; powers in W.

    ``peer_bandwidth_bytes_s`` is to another GPU of its host, ``host_bandwidth_bytes_s`` to the
    host's memory, each in one direction.
    """

    name: str
    memory_bytes: int
    memory_bandwidth_bytes_s: float
    dense_flops_16bit: float
    sustained_flops_16bit: float
    sms: int
    idle_w: float
    peak_w: float
    device_launch_ns: int
    completion_poll_ns: int
    tail_launch_ns: int
    scan_ns: int
    claim_ns: int
    host_launch_ns: int
    resident_prefill_slowdown: float
    resident_decode_slowdown: float
    all_reduce_latency_ns: int
    peer_bandwidth_bytes_s: float
    peer_efficiency: float
    peer_signal_ns: int
    host_bandwidth_bytes_s: float
    provenance: Mapping[str, Constant] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class HostSku:
    """One server without its GPU. ``speed`` is a core's speed relative to the reference host."""

    name: str
    sockets: int
    physical_cores: int
    threads: int
    llc_bytes: int
    llc_ways: int
    clock_ghz: float
    memory_bandwidth_bytes_s: float
    speed: float
    idle_w: float
    core_w: float
    provenance: Mapping[str, Constant] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DpuSku:
    """One SmartNIC that runs the front end; times in ns on one of its cores."""

    name: str
    cores: int
    http_request_ns: int
    tokenize_ns_per_token: int
    detokenize_sse_ns_per_token: int
    doorbell_ns: int
    poll_parse_ns: int
    slot_search_ns: int
    w: float
    provenance: Mapping[str, Constant] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class LinkSku:
    """The wire to the GPU's memory, and the client's way to the front end.

    ``write_latency_ns`` is one way until visible, ``read_latency_ns`` a small read's round trip,
    ``client_latency_ns`` one way between client and front end.
    """

    name: str
    bandwidth_bytes_s: float
    post_ns: int
    write_latency_ns: int
    read_latency_ns: int
    per_op_ns: int
    max_outstanding: int
    client_latency_ns: int
    provenance: Mapping[str, Constant] = field(compare=False, repr=False)


def gpu(name: str) -> GpuSku:
    """The GPU of that name. Raises ``UnknownName`` with the nearest known ones."""
    return _sku(GpuSku, entry("gpus.toml", "GPU", name), catalogue("gpus.toml")["_common"])


def host(name: str) -> HostSku:
    """The host of that name. Raises ``UnknownName`` with the nearest known ones."""
    return _sku(HostSku, entry("hosts.toml", "host", name))


def dpu(name: str) -> DpuSku:
    """The DPU of that name. Raises ``UnknownName`` with the nearest known ones."""
    return _sku(DpuSku, entry("dpus.toml", "DPU", name))


def link(name: str) -> LinkSku:
    """The link of that name. Raises ``UnknownName`` with the nearest known ones."""
    return _sku(LinkSku, entry("links.toml", "link", name))


def names(kind: str) -> list[str]:
    """Catalogue names of ``kind``: gpu, host, dpu or link."""
    return [name for name in catalogue(f"{kind}s.toml") if not name.startswith("_")]


Sku = TypeVar("Sku", GpuSku, HostSku, DpuSku, LinkSku)


def _sku(made: type[Sku], found: Entry, common: Entry | None = None) -> Sku:
    inherited = common.constants if common else {}
    constants = {**inherited, **found.constants}
    values: dict[str, Any] = {"name": found.name, "provenance": MappingProxyType(constants)}
    for each in fields(made):
        if each.name not in values:
            whole = each.type == "int"
            value = constants[each.name].value
            values[each.name] = int(value) if whole else float(value)
    return made(**values)
