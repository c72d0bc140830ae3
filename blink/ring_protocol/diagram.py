"""Draws the protocol from its table, as docs/state_machine.md.

    python -m blink.ring_protocol.diagram > docs/state_machine.md

Nothing on that page is written by hand, so it cannot be wrong about the table; a test keeps it
current.
"""

from __future__ import annotations

import sys

from blink.ring_protocol.states import (
    CONTESTED_EVENTS,
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

_PAGE = """\
# The state machine of a slot

Generated from `blink/ring_protocol/states.py` by `python -m blink.ring_protocol.diagram`. Do not
edit: change the table, then run `make gen`.

## Diagram

Each state belongs to one class of writer, and only its owner may move the slot out of it.

```mermaid
{mermaid}```

## Matrix

The state that an event leads to. An empty cell is an event that raises and changes nothing.

{matrix}
## Events

{events}
## Owners

{owners}"""


def page() -> str:
    """The whole of docs/state_machine.md."""
    return _PAGE.format(
        mermaid=mermaid(),
        matrix=matrix_markdown(),
        events=events_markdown(),
        owners=owners_markdown(),
    )


def mermaid() -> str:
    """The transitions as a Mermaid state diagram, coloured by owner."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.EMPTY.name}"]
    for (state, event), target in TRANSITIONS.items():
        lines.append(f"    {state.name} --> {target.name}: {event.name}")
    lines.append("    classDef front_end fill:#dbeafe,stroke:#1d4ed8,color:#111827")
    lines.append("    classDef scheduler fill:#dcfce7,stroke:#15803d,color:#111827")
    for writer in Writer:
        owned = ", ".join(state.name for state in State if OWNER_OF[state] is writer)
        lines.append(f"    class {owned} {writer.name.lower()}")
    return "\n".join(lines) + "\n"


def matrix_markdown() -> str:
    """States by events; a cell is the state that follows."""
    rows = [
        [state.name, *(_cell(TRANSITIONS.get((state, event))) for event in Event)]
        for state in State
    ]
    return _table(["state", *(event.name for event in Event)], rows)


def events_markdown() -> str:
    """Who makes each event, how, and what it may write."""
    return _table(
        ["event", "writer", "made by", "writes"],
        [[event.name, WRITER_OF[event].name, _how(event), _writes(event)] for event in Event],
    )


def owners_markdown() -> str:
    """The one class of writer that may leave each state."""
    return _table(["state", "owner"], [[state.name, OWNER_OF[state].name] for state in State])


def _cell(target: State | None) -> str:
    return target.name if target is not None else ""


def _how(event: Event) -> str:
    return "compare-and-swap" if event in CONTESTED_EVENTS else "release store"


def _writes(event: Event) -> str:
    if event is Event.SUBMIT:
        return "the next generation, no tokens"
    if event in TOKEN_EVENTS:
        return "one or more tokens"
    return ", ".join(o.name for o in Outcome if o in OUTCOMES_OF.get(event, ()))


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(page())
