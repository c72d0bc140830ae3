"""Prints ``csrc/generated/protocol.h``: the protocol's numbers and its table, for C++.

    python -m blink.hw.kernel.protocol_h

``make gen`` writes the file and ``make check`` requires that it is what this prints. Nothing in it
is written by hand, so nothing in C++ can disagree with ``ring_protocol``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from enum import IntEnum
from struct import Struct, calcsize

from blink.hw.kernel.status import Status
from blink.model.policy import Action
from blink.model.scheduler import DECODE_GRAPH, PREFILL_GRAPH, Phase
from blink.ring_protocol import constants, descriptor, layout, slot
from blink.ring_protocol.descriptor import Descriptor
from blink.ring_protocol.states import (
    OUTCOMES_OF,
    OWNER_OF,
    TOKEN_EVENTS,
    TRANSITIONS,
    WRITER_OF,
    Event,
    Outcome,
    State,
    Writer,
)

_HEAD = """\
// Made by blink/hw/kernel/protocol_h.py from blink/ring_protocol. Do not edit: `make gen`.
#pragma once

#ifdef __CUDACC__
#define BLINK_FN __host__ __device__
#else
#define BLINK_FN
#endif

// NVRTC has no offsetof; g++ and nvcc have looked.
#ifdef __CUDACC_RTC__
#define BLINK_LIES_AT(type, field, offset) true
#else
#define BLINK_LIES_AT(type, field, offset) (__builtin_offsetof(type, field) == (offset))
#endif

namespace blink {

using u8 = unsigned char;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

static_assert(sizeof(u8) == 1 && sizeof(u32) == 4 && sizeof(i64) == 8 && sizeof(u64) == 8);
"""

_CONSTANTS = (
    (constants, "SLOTS_MAX"),
    (constants, "HEADER_BYTES"),
    (constants, "METADATA_BYTES"),
    (constants, "SLOT_METADATA_BYTES"),
    (constants, "DESCRIPTOR_BYTES"),
    (constants, "TOKEN_BYTES"),
    (constants, "WORD_BYTES"),
    (constants, "REGION_ALIGNMENT_BYTES"),
    (constants, "STATE_BITS"),
    (constants, "OUTCOME_BITS"),
    (constants, "GENERATION_BITS"),
    (constants, "TOKENS_BITS"),
    (constants, "GENERATIONS"),
    (constants, "TOKENS_MAX"),
    (constants, "SCHEDULER_THREADS"),
    (constants, "LAUNCH_WINDOW_MAX"),
    (constants, "GRAPH_EXECS"),
    (constants, "MAGIC"),
    (constants, "LAYOUT_VERSION"),
    (constants, "NO_TOKEN"),
    (layout, "HEARTBEAT_OFFSET"),
    (layout, "SCHEDULER_GENERATION_OFFSET"),
    (slot, "STATE_MASK"),
    (slot, "OUTCOME_SHIFT"),
    (slot, "OUTCOME_MASK"),
    (slot, "GENERATION_SHIFT"),
    (slot, "GENERATION_MASK"),
    (slot, "TOKENS_SHIFT"),
    (slot, "SAME_LIFE_MASK"),
    (descriptor, "IGNORE_EOS"),
    (descriptor, "CANCEL_GENERATION_SHIFT"),
)


def main() -> None:
    """Print the header."""
    sys.stdout.write(header())


def header() -> str:
    """The text of ``protocol.h``."""
    parts = [
        _HEAD,
        "// --- numbers ---------------------------------------------------------------------\n",
        "".join(_constants()),
        "// --- where things lie ------------------------------------------------------------\n",
        "".join(_offsets("IDENTITY", layout.IDENTITY, layout.IDENTITY_FIELDS)),
        "".join(_offsets("DESCRIPTOR", descriptor.FIELDS, Descriptor._fields)),
        "// --- the life of a slot ----------------------------------------------------------\n",
        *(_enum(kind.__name__, kind) for kind in (State, Event, Writer, Outcome)),
        _table(),
        _status(),
        "// --- the scheduler ---------------------------------------------------------------\n",
        _enum("Phase", Phase),
        _names("Action", (action.name for action in Action)),
        _names("Graph", _by_number({"PREFILL_GRAPH": PREFILL_GRAPH, "DECODE_GRAPH": DECODE_GRAPH})),
        "}  // namespace blink\n",
    ]
    return "\n".join(parts)


def _constants() -> Iterator[str]:
    for module, name in _CONSTANTS:
        value = getattr(module, name)
        kind, suffix = ("u32", "u") if value < 1 << 32 else ("u64", "ull")
        yield f"constexpr {kind} {name} = {value:#x}{suffix};\n"


def _offsets(what: str, fields: Struct, names: Iterable[str]) -> Iterator[str]:
    """Each field's offset in bytes, read off a format such as ``<8xQII``."""
    codes = [
        (code, int(count or 1)) for count, code in re.findall(r"(\d*)([a-zA-Z])", fields.format)
    ]
    single = [code for code, count in codes for _ in range(count)]
    offsets = [
        calcsize("<" + "".join(single[:at])) for at, code in enumerate(single) if code != "x"
    ]
    for name, offset in zip(names, offsets, strict=True):
        yield f"constexpr u32 {what}_{name.upper()}_OFFSET = {offset};\n"


def _enum(name: str, kind: type[IntEnum]) -> str:
    return _names(name, _by_number({each.name: int(each) for each in kind}))


def _status() -> str:
    lines = "".join(f"  {each.name} = {each.value},\n" for each in Status)
    head = "// Why something was not done; status.py says what each means.\n"
    names = [f'    case Status::{each.name}: return "{each.name}";' for each in Status]
    switch = "\n".join(["  switch (status) {", *names, "  }", '  return "?";'])
    return (
        f"{head}enum class Status : u32 {{\n{lines}}};\n"
        f"BLINK_FN constexpr const char* name_of(Status status) {{\n{switch}\n}}\n"
    )


def _by_number(numbers: dict[str, int]) -> list[str]:
    assert sorted(numbers.values()) == list(range(len(numbers))), "numbered from 0, without gaps"
    return sorted(numbers, key=numbers.__getitem__)


def _names(name: str, values: Iterable[str]) -> str:
    names = list(values)
    lines = "".join(f"  {each} = {number},\n" for number, each in enumerate(names))
    count = f"constexpr u32 {name.upper()}S = {len(names)};\n"
    return f"namespace {name.lower()} {{\nenum : u32 {{\n{lines}}};\n}}\n{count}"


def _table() -> str:
    """The transitions as functions: a switch is code, which host and device both have."""
    moves = [
        f"    case state::{before.name} * EVENTS + event::{event.name}: return state::{after.name};"
        for (before, event), after in TRANSITIONS.items()
    ]
    writers = [
        f"    case event::{event.name}: return writer::{writer.name};"
        for event, writer in WRITER_OF.items()
    ]
    outcomes = [
        f"    case event::{event.name}: return {_bits(OUTCOMES_OF[event])};  // "
        + ", ".join(outcome.name for outcome in sorted(OUTCOMES_OF[event]))
        for event in OUTCOMES_OF
    ]
    none = _bits([Outcome.NONE])
    return (
        "// Where an event leads from a state, or NO_STATE.\n"
        "constexpr u32 NO_STATE = STATES;\n"
        + _switch("target_of(u32 before, u32 event)", "before * EVENTS + event", moves, "NO_STATE")
        + "// The only writer that may make an event.\n"
        + _switch("writer_of(u32 event)", "event", writers, "WRITERS")
        + "// The outcomes that an event may write, as a set of bits.\n"
        + _switch("outcomes_of(u32 event)", "event", outcomes, none)
        + "// The events that add to the token count, as a set of bits.\n"
        + f"constexpr u32 TOKEN_EVENTS = {_bits(TOKEN_EVENTS)};\n"
        + "// The states that only the scheduler may leave, as a set of bits.\n"
        + f"constexpr u32 SCHEDULER_STATES = {_bits(_owned_by(Writer.SCHEDULER))};\n"
    )


def _switch(signature: str, on: str, cases: list[str], otherwise: str) -> str:
    body = "\n".join([f"  switch ({on}) {{", *cases, f"    default: return {otherwise};", "  }"])
    return f"BLINK_FN constexpr u32 {signature} {{\n{body}\n}}\n"


def _owned_by(writer: Writer) -> list[State]:
    return [state for state, owner in OWNER_OF.items() if owner is writer]


def _bits(members: Iterable[int]) -> str:
    return f"{sum(1 << member for member in members):#x}u"


if __name__ == "__main__":
    main()
