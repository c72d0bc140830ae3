"""The world: what each client will do, drawn once, and known to nobody inside the system."""

from __future__ import annotations

from blink.model.random import RandomStreams
from blink.model.request import Request, Truth
from blink.model.setup import RunSetup


def requests_of(setup: RunSetup, streams: RandomStreams) -> list[tuple[Request, Truth]]:
    """What the system sees of each request, and the truth with its faults, in order of arrival."""
    workload, faults = setup.workload, setup.faults
    count = len(workload.arrival_ns)
    after_tokens: list[int | None] = [None] * count
    after_ns: list[int | None] = [None] * count
    if faults.cancel_fraction:
        rng = streams("faults.cancel")
        tokens = rng.integers(1, faults.cancel_after_tokens_max, count, endpoint=True)
        hit = rng.random(count) < faults.cancel_fraction
        after_tokens = [int(n) if h else None for n, h in zip(tokens, hit, strict=True)]
    if faults.timeout_fraction:
        hit = streams("faults.timeout").random(count) < faults.timeout_fraction
        after_ns = [faults.timeout_after_ns if h else None for h in hit]
    limit = setup.ring.output_tokens_max
    hashes = workload.prefix_hashes if setup.shares_prefixes else None
    return [
        (Request(index, arrival, prompt, limit, prefix), Truth(output, tokens, patience))
        for index, (arrival, prompt, output, tokens, patience, prefix) in enumerate(
            zip(
                workload.arrival_ns.tolist(),
                workload.input_tokens.tolist(),
                workload.output_tokens.tolist(),
                after_tokens,
                after_ns,
                hashes if hashes is not None else [()] * count,
                strict=True,
            )
        )
    ]
