"""The engine that only takes its time: for the protocol, and for what control costs."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable
from typing import Any

from blink.hw.cuda.runtime import Stream, capture, kernel
from blink.hw.cuda.structs import GraphInputs
from blink.hw.engine.port import GraphShape, Inputs

StepNs = Callable[[GraphShape], tuple[int, float, float]]


def token_of(seed: int, index: int) -> int:
    """The token that follows ``index`` tokens of a context, for a request of this seed.

    The same arithmetic as ``blink_null_engine`` in graph.cu; never 0.
    """
    mask = (1 << 64) - 1
    mixed = (seed * 4096 + index) & mask
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & mask
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & mask
    return mixed >> 33 | 1


class NullEngine:
    """Spins for as long as a step takes.

    step_ns: for a shape, ``(ns, ns a token of context, ns a pair of tokens of the longest prompt,
    for each prompt)``; by default nothing.
    """

    name = "null"

    def __init__(self, step_ns: StepNs = lambda shape: (0, 0.0, 0.0)) -> None:
        self._step_ns = step_ns
        self._stream: Stream | None = None

    def describe(self) -> dict[str, Any]:
        """See Engine."""
        return {"engine": self.name}

    def bytes_needed(self, blocks_total: int, block_tokens: int) -> int:
        """See Engine."""
        return 0

    def prepare(self, blocks_total: int, block_tokens: int) -> None:
        """See Engine."""
        self._stream = Stream()

    def capture(
        self,
        shape: GraphShape,
        inputs: Inputs,
        before: Callable[[int], None],
        after: Callable[[int], None],
    ) -> Any:
        """See Engine."""
        assert self._stream is not None, "prepare() comes first"
        stream = self._stream
        fixed_ns, context_ns, pair_ns = self._step_ns(shape)
        arrays = _pointers(shape, inputs)

        def work() -> None:
            before(int(stream.handle))
            stream.launch(
                kernel("blink_null_engine"),
                1,
                128,
                arrays,
                c.c_uint64(round(fixed_ns)),
                c.c_uint64(round(context_ns * 1_000)),
                c.c_uint64(round(pair_ns * 1_000_000)),
            )
            after(int(stream.handle))

        return capture(stream, work)

    def close(self) -> None:
        """See Engine."""


def _pointers(shape: GraphShape, inputs: Inputs) -> GraphInputs:
    pointers = {name: getattr(inputs, name).data.ptr for name in Inputs.__slots__}
    blocks_max = inputs.block_tables.shape[1]
    return GraphInputs(
        batch=shape.batch, tokens_max=shape.tokens, blocks_max=blocks_max, **pointers
    )
