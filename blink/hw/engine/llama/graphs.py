"""Capturing: one side stream, one memory pool, a graph that nobody has instantiated yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

import torch

from blink.hw.engine.llama.ops import Batch
from blink.model.errors import BackendUnavailable

WARM_UPS: Final = 3
"""runs before a capture: kernels are compiled and loaded, and cuBLAS takes its workspace"""


class GraphPool:
    """Graphs that share their memory: they run one after the other, never two at once.

    All is captured on one stream of our own. cuBLAS keeps a workspace a stream; the warm-up makes
    it allocate that outside the capture, and every graph then holds the same address.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: list[Any] = []
        self._stream: Any = None
        self._pool: Any = None

    def capture(
        self,
        run: Callable[[], None],
        batch: Batch,
        before: Callable[[int], None],
        after: Callable[[int], None],
    ) -> int:
        """A ``cudaGraph_t`` of before, run, after. Raises BackendUnavailable without a GPU."""
        if self._device.type != "cuda":
            raise BackendUnavailable("a CUDA graph needs an NVIDIA GPU; compute() runs without one")
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
            self._pool = torch.cuda.graph_pool_handle()
        self._warm_up(run, batch)
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            before(self._stream.cuda_stream)
            run()
            after(self._stream.cuda_stream)
        self._graphs.append(graph)
        return int(graph.raw_cuda_graph())

    def close(self) -> None:
        """Let go of the graphs and their memory."""
        self._graphs.clear()
        self._pool = self._stream = None

    def _warm_up(self, run: Callable[[], None], batch: Batch) -> None:
        """Run on the very tensors (kernels are compiled for their alignment), but as padding.

        What the caller's arrays hold now may be anything; it is put back afterwards.
        """
        tensors = [getattr(batch, each.name) for each in fields(Batch)]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            held = [tensor.clone() for tensor in tensors]
            for tensor in tensors:
                tensor.zero_()
            for _ in range(WARM_UPS):
                run()
            for tensor, content in zip(tensors, held, strict=True):
                tensor.copy_(content)
        self._stream.synchronize()
