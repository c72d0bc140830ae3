"""Requests that could never be served, refused before anything runs."""

from __future__ import annotations

import numpy as np

from blink.model.errors import RequestDoesNotFit
from blink.model.setup import RunSetup

_A = {"prompt": "a prompt", "output": "an output", "context": "a context"}


def check_servable(setup: RunSetup) -> None:
    """Refuse, before anything runs, a request that no slot or no KV cache could ever hold."""
    workload, ring = setup.workload, setup.ring
    context = workload.input_tokens + workload.output_tokens
    cache_tokens = setup.kv_blocks_total * setup.kv_block_tokens
    if setup.speculation is not None:
        cache_tokens -= setup.speculation.draft_tokens  # written before they are known to be wrong
    limits = (
        ("prompt", workload.input_tokens, ring.prompt_tokens_max, "ring.prompt_tokens_max"),
        ("output", workload.output_tokens, ring.output_tokens_max, "ring.output_tokens_max"),
        ("context", context, setup.context_tokens_max, "engine.context_tokens_max"),
        ("context", context, cache_tokens, f"the KV cache of {setup.gpu.name}"),
    )
    for what, tokens, limit, where in limits:
        too_long = tokens > limit
        if too_long.any():
            first = int(np.argmax(too_long))
            raise RequestDoesNotFit(
                f"request {first} of the workload has {_A[what]} of {tokens[first]} tokens, "
                f"{where} is {limit} ({int(too_long.sum())} such requests): "
                f"raise the limit or {_shorten(setup, what)}"
            )


def _shorten(setup: RunSetup, what: str) -> str:
    """How to be rid of requests that are too long, in the words of the scenario."""
    keys = {
        "prompt": "input_tokens_max",
        "output": "output_tokens_max",
        "context": "input_tokens_max and output_tokens_max",
    }[what]
    if setup.scenario.get("workload", {}).get("kind") == "trace":
        return f"leave them out with workload.{keys.replace(' and ', ' and workload.')}"
    return f"shorten workload.lengths ({keys})"
