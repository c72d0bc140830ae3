"""The graph cache: every shape that the scheduler may launch, captured before it starts.

A grid of (sequences, tokens): decode graphs by batch, prefill graphs by prompts and prompt length.
Its last column holds any context that a slot may have, the fallback. Each shape has two
executables, used in turn: one that was just launched may not have retired yet.
"""

from __future__ import annotations

import ctypes as c
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from blink.hw.cuda.runtime import (
    Stream,
    call,
    free_memory_bytes,
    instantiate,
    kernel,
    libraries,
)
from blink.hw.cuda.structs import GraphInputs, View
from blink.hw.engine.port import Engine, GraphShape, Inputs
from blink.model.errors import ModelDoesNotFit
from blink.model.policy import GraphCache, Limits
from blink.model.scheduler import DECODE_GRAPH
from blink.ring_protocol.constants import GRAPH_EXECS

GATHER_THREADS: Final = 128
PREFILL_BATCHES: Final = (1, 2, 4, 8, 16)
Progress = Callable[[str, int, int], None]
"""``progress(what, done, of)``: called as start-up goes on."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Which shapes are captured. Each list is ascending, and its last entry is the largest."""

    decode_batches: tuple[int, ...]
    prefill_batches: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    """buckets of prompt length; the last holds any context"""

    @classmethod
    def of(cls, graphs: GraphCache, limits: Limits, context_tokens_max: int) -> Grid:
        """The grid that serves every decision of the policy."""
        decode = {graphs.decode_batch(batch) for batch in range(1, limits.batch_max + 1)}
        prefill = {min(batch, limits.prefill_batch_max) for batch in PREFILL_BATCHES}
        tokens = {each for each in graphs.prompt_tokens if each < graphs.prompt_tokens_max}
        tokens |= {graphs.prompt_tokens_max, context_tokens_max}
        return cls(
            tuple(sorted(decode)),
            tuple(sorted({*prefill, limits.prefill_batch_max})),
            tuple(sorted(tokens)),
        )

    def shapes(self, limits: Limits) -> list[GraphShape]:
        """Every shape that can be asked for."""
        found = [GraphShape(False, batch, 1) for batch in self.decode_batches]
        fewest = 1
        for batch in self.prefill_batches:
            shortest = 1
            for tokens in self.prompt_tokens:
                # The policy puts several prompts into one graph only within its limit of tokens.
                if fewest == 1 or fewest * shortest <= limits.prefill_tokens_max:
                    found.append(GraphShape(True, batch, tokens))
                shortest = tokens + 1
            fewest = batch + 1
        return found

    def shape_of(self, graph: int, count: int, tokens: int) -> GraphShape:
        """The shape that serves so many sequences of so many new tokens."""
        if graph == DECODE_GRAPH:
            return GraphShape(False, _bucket(self.decode_batches, count), 1)
        batch = _bucket(self.prefill_batches, count)
        return GraphShape(True, batch, _bucket(self.prompt_tokens, tokens))


def _bucket(buckets: tuple[int, ...], size: int) -> int:
    return buckets[bisect_left(buckets, size)]


class InputArrays:
    """One set of arrays for all graphs, for one runs at a time: the largest, cut to each shape."""

    def __init__(self, shapes: list[GraphShape], blocks_max: int) -> None:
        cupy = libraries()[0]
        batch = max(shape.batch for shape in shapes)
        tokens = max(shape.batch * shape.tokens for shape in shapes)
        int32, float32 = cupy.int32, cupy.float32
        self.blocks_max = blocks_max
        self._tokens = cupy.zeros(tokens, int32)
        self._tables = cupy.zeros(batch * blocks_max, int32)
        names = ("lengths", "positions", "top_k", "output")
        self._rows = {name: cupy.zeros(batch, int32) for name in names}
        self._rows |= {name: cupy.zeros(batch, float32) for name in ("temperature", "top_p")}
        self._rows["seed"] = cupy.zeros(batch, cupy.int64)

    def cut(self, shape: GraphShape) -> tuple[Inputs, GraphInputs]:
        """For the engine, and for our kernels."""
        batch, tokens = shape.batch, shape.tokens
        rows = {name: array[:batch] for name, array in self._rows.items()}
        inputs = Inputs(
            tokens=self._tokens[: batch * tokens].reshape(batch, tokens),
            block_tables=self._tables[: batch * self.blocks_max].reshape(batch, self.blocks_max),
            **rows,
        )
        pointers = {name: array.data.ptr for name, array in rows.items()}
        ours = GraphInputs(
            tokens=self._tokens.data.ptr,
            block_tables=self._tables.data.ptr,
            batch=batch,
            tokens_max=tokens,
            blocks_max=self.blocks_max,
            **pointers,
        )
        return inputs, ours


class CapturedGraphs:
    """All shapes, captured for one scheduler's :class:`View`, and their executables' handles."""

    def __init__(
        self,
        engine: Engine,
        view: View,
        shapes: list[GraphShape],
        stream: Stream,
        progress: Progress,
    ) -> None:
        self.execs: dict[GraphShape, list[int]] = {}
        self.raw: dict[GraphShape, Any] = {}
        before = free_memory_bytes()
        arrays = InputArrays(shapes, view.table_blocks_max)
        self._kept = (engine, arrays)
        for done, shape in enumerate(sorted(shapes, key=lambda each: -each.batch * each.tokens)):
            progress("capturing graphs", done, len(shapes))
            self.raw[shape] = self._capture(engine, view, shape, arrays)
            try:
                self.execs[shape] = [
                    instantiate(self.raw[shape], stream) for _ in range(GRAPH_EXECS)
                ]
            except Exception as error:
                raise _does_not_fit(shape, done, len(shapes), error) from error
        stream.wait()
        progress("capturing graphs", len(shapes), len(shapes))
        self.bytes_taken = max(0, before - free_memory_bytes())

    @staticmethod
    def _capture(engine: Engine, view: View, shape: GraphShape, arrays: InputArrays) -> Any:
        inputs, ours = arrays.cut(shape)

        def launch(name: str, grid: int, threads: int, stream: int) -> None:
            arguments = (view, ours)
            addresses = (c.c_void_p * 2)(*(c.addressof(each) for each in arguments))
            size = (grid, 1, 1, threads, 1, 1, 0)
            handle = kernel(name).handle
            call("cuLaunchKernel", handle, *size, stream, c.addressof(addresses), 0)

        return engine.capture(
            shape,
            inputs,
            lambda stream: launch("blink_gather", shape.batch, GATHER_THREADS, stream),
            lambda stream: launch("blink_scatter", 1, GATHER_THREADS, stream),
        )

    def close(self) -> None:
        """Let go of the executables. None may run any more."""
        for executables in self.execs.values():
            for each in executables:
                call("cudaGraphExecDestroy", each)
        self.execs.clear()


def _does_not_fit(shape: GraphShape, done: int, of: int, error: Exception) -> Exception:
    if "emory" not in str(error):
        return error
    return ModelDoesNotFit(
        f"GPU memory is full after {done} of {of} graphs, at {shape}: take fewer KV blocks, "
        f"a shorter list of batches or prompt lengths, or a smaller model ({error})"
    )
