"""Control planes: who decides between two steps, and what that costs the host.

``profile("vllm")`` gives a :class:`ControlPlane`, every number in ns on the reference host. The
engine loop a profile describes, in order, on one thread::

    admit arrivals                      request_admit_ns each
    schedule, prepare, launch step k    step_host_ns + step_host_per_sequence_ns x sequences
                                        (+ prefill_step_host_ns if the step prefills)
    wait for step k-1 (overlap) or k    step_serial_ns on the GPU's side of every step: never hidden
    take its tokens in                  step_update_ns + step_update_per_sequence_ns x sequences
    hand them to the API process        output_hop_ns until it sees them

With ``overlap`` one step is launched ahead, so the loop's work hides behind the step on the GPU as
long as it is shorter. The API process is one thread: ``api_request_ns`` (+ tokenizing) a request;
``api_step_ns`` a batch of outputs, ``api_token_ns`` a token, ``api_chunk_ns`` a chunk. With
``api_merge`` it takes every batch that waits at once, and a request's tokens leave as one chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

from blink.model.errors import BadInput, UnknownName
from blink.model.provenance import Constant, catalogue, entry

Scheduling = Literal["inline_prefill", "chunked_prefill"]
FrontEnd = Literal["dpu", "api_server"]
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "scheduling": get_args(Scheduling),
    "front_end": get_args(FrontEnd),
}
_LABELS = ("name", "scheduling", "overlap", "api_merge", "engine", "front_end", "provenance")


_WITHOUT_HOST = (
    "scheduling",
    "engine",
    "front_end",
    "batch_max",
    "prefill_tokens_max",
    "processes",
)
NS_MAX, COUNT_MAX = 1_000_000_000, 1 << 24
"""A second of host work a step, a request or a token is beyond any server."""


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """One system's control plane; ``engine`` names its entry in ``data/engines.toml``."""

    name: str
    scheduling: Scheduling
    overlap: bool
    api_merge: bool
    engine: str
    front_end: FrontEnd
    step_serial_ns: int
    step_host_ns: int
    step_host_per_sequence_ns: int
    step_update_ns: int
    step_update_per_sequence_ns: int
    prefill_step_host_ns: int
    request_admit_ns: int
    output_hop_ns: int
    api_request_ns: int
    api_tokenize_ns_per_token: int
    api_step_ns: int
    api_token_ns: int
    api_chunk_ns: int
    client_request_ns: int
    client_chunk_ns: int
    jitter_sigma: float
    processes: int
    threads: int
    memory_bound_share: float
    batch_max: int
    prefill_tokens_max: int
    provenance: Mapping[str, Constant] = field(compare=False, repr=False)

    def launch_host_ns(self, sequences: int, prefills: bool) -> int:
        """Host work up to the launch of a step of ``sequences`` sequences."""
        work = self.step_host_ns + self.step_host_per_sequence_ns * sequences
        return work + (self.prefill_step_host_ns if prefills else 0)

    def update_host_ns(self, sequences: int) -> int:
        """Host work between a step's end and its tokens' leaving the engine process."""
        return self.step_update_ns + self.step_update_per_sequence_ns * sequences

    def with_overrides(self, overrides: Mapping[str, Any]) -> ControlPlane:
        """The profile with some fields replaced.

        Raises ``UnknownName`` for a field it lacks, ``BadInput`` for a value that no profile has.
        """
        known = [each.name for each in fields(self) if each.name not in ("name", "provenance")]
        for key in overrides:
            if key not in known:
                raise UnknownName(f"field of control plane {self.name}", key, known)
        for key, value in overrides.items():
            _check(self.name, key, value, getattr(self, key))
            if self.processes == 0 and key not in _WITHOUT_HOST:
                raise BadInput(
                    f"control_plane.{self.name}.{key}: changes nothing: no host process serves here"
                )
        said = {
            key: Constant(value, self.provenance[key].unit, "the scenario")
            for key, value in overrides.items()
            if key in self.provenance
        }
        origin = MappingProxyType({**self.provenance, **said})
        return replace(self, **overrides, provenance=origin)


def _check(plane: str, key: str, value: Any, present: Any) -> None:
    """Raise BadInput unless ``value`` is of the kind of the ``present`` one, and not negative."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(present, bool):
        fits, wanted = isinstance(value, bool), "true or false"
    elif key in _CHOICES:
        fits, wanted = value in _CHOICES[key], " or ".join(_CHOICES[key])
    elif isinstance(present, str):
        fits, wanted = isinstance(value, str), "a name"
    elif isinstance(present, int):
        least = 1 if key in ("batch_max", "prefill_tokens_max", "threads") else 0
        most = NS_MAX if key.endswith("_ns") else COUNT_MAX
        fits = number and least <= value <= most and value == int(value)
        wanted = f"a whole number from {least} to {most:,}"
    else:
        fits, wanted = number and 0 <= value <= 1, "a number from 0 to 1"
    if not fits:
        raise BadInput(f"control_plane.{plane}.{key}: must be {wanted}, is {value!r}")


def profile(name: str) -> ControlPlane:
    """A control plane by name or alias. Raises ``UnknownName`` with the nearest known names."""
    found = entry("control_planes.toml", "control plane", name)
    values: dict[str, Any] = {key: found.labels[key] for key in _LABELS[1:-1]}
    for each in fields(ControlPlane):
        if each.name not in _LABELS:
            whole = each.type == "int"
            values[each.name] = found.integer(each.name) if whole else found.number(each.name)
    return ControlPlane(name=found.name, provenance=found.constants, **values)


def names() -> list[str]:
    """Catalogue names of the control planes."""
    return [name for name in catalogue("control_planes.toml") if not name.startswith("_")]
