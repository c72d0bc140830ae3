"""The port behind which every engine stands.

A graph that the scheduler launches has three parts. A *gather* kernel of ours reads the batch that
the scheduler left (slots, block tables, descriptors, prompts or last tokens, all in GPU memory) and
fills :class:`Inputs`. The *engine* computes one token a sequence from them. A *scatter* kernel of
ours hands those tokens to the scheduler and sets the completion word. So an engine sees dense,
padded arrays of one shape, and nothing of the ring.

An engine's part must be capturable, and launchable from the device afterwards: kernels, memory
copies on the device and memory sets only; no host synchronisation, no allocation outside the pool
that the capture owns, nothing that a replay would have to plan on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class GraphShape(NamedTuple):
    """What a captured graph has room for: `batch` sequences of up to `tokens` new tokens each.

    A decode graph has ``tokens == 1`` and ``prefill == False``.
    """

    prefill: bool
    batch: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arrays of one graph of shape B x T: numpy, or, on a GPU, ``__cuda_array_interface__``.

    A row of ``lengths`` 0 is padding: its tables name the scratch block, its output is never read.
    What lies beyond a row's length, or beyond the blocks that its context needs, is not defined and
    must not reach any other row, nor become NaN in one.
    """

    tokens: Any
    """int32 [B, T]: the new tokens of each row, of which ``lengths`` are valid"""
    lengths: Any
    """int32 [B]: how many new tokens; 1 in a decode graph, 0 for padding"""
    positions: Any
    """int32 [B]: position of each row's first new token; 0 in a prefill graph"""
    block_tables: Any
    """int32 [B, M]: KV blocks of each row, oldest first, for positions + lengths tokens"""
    temperature: Any
    """float32 [B]: 0 is greedy, exactly"""
    top_k: Any
    """int32 [B]: 0 is off"""
    top_p: Any
    """float32 [B]: 1 is off"""
    seed: Any
    """int64 [B]: key of the row's random numbers, with the position of the token that is drawn"""
    output: Any
    """int32 [B]: the engine writes the token that follows each row's last valid one"""


class Engine(Protocol):
    """See the module.

    An engine is prepared once, then captures each shape; after the last capture it allocates
    nothing any more.
    """

    name: str

    def describe(self) -> dict[str, Any]:
        """What a record says of it: model, dtype, weights, kernels."""

    def bytes_needed(self, blocks_total: int, block_tokens: int) -> int:
        """GPU memory for weights and KV cache (with the scratch block); graphs come on top."""

    def prepare(self, blocks_total: int, block_tokens: int) -> None:
        """Allocate weights and the KV cache of ``blocks_total`` blocks and the scratch block.

        The scratch block is number ``blocks_total``.
        """

    def capture(
        self,
        shape: GraphShape,
        inputs: Inputs,
        before: Callable[[int], None],
        after: Callable[[int], None],
    ) -> Any:
        """Warm up and capture one graph; returns its ``cudaGraph_t``, which the engine keeps alive.

        As a number, or as what ``cuda.bindings`` calls one.

        ``before(stream)`` and ``after(stream)`` enqueue the gather and the scatter kernel on the
        ``cudaStream_t`` that is being captured; they are called in the capture only.
        """

    def close(self) -> None:
        """Let go of everything."""
