"""The oracle boundary, as types: what the system may know, and what only the world knows.

The policy, the ring and the front end are given a :class:`Request`. Only the world (the client who
will stop reading, the model that will emit its end token) holds the :class:`Truth`. A scheduler
that wants the real output length cannot spell it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """One request as a server sees it on arrival.

    ``request_id`` is its index in the workload, ``arrival_ns`` its arrival at the server's edge,
    ``input_tokens`` the prompt's length, ``output_tokens_max`` the client's limit (``max_tokens``),
    ``prefix_hashes`` what a prefix cache is asked for (:mod:`blink.model.policy.prefix`).
    """

    request_id: int
    arrival_ns: int
    input_tokens: int
    output_tokens_max: int
    prefix_hashes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Truth:
    """What only the world knows: how many tokens the model will emit, and when the client leaves.

    ``cancel_after_tokens`` and ``cancel_after_ns`` are faults drawn by the scenario: the client
    goes away after that many tokens, or that long after it asked; ``None`` means never.
    """

    output_tokens: int
    cancel_after_tokens: int | None = None
    cancel_after_ns: int | None = None
