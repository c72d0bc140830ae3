"""The engine: port.Engine over a decoder, eagerly on any device, captured on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import torch

from blink.hw.engine.llama.config import BadModel, ModelConfig, load_config
from blink.hw.engine.llama.graphs import GraphPool
from blink.hw.engine.llama.model import Decoder
from blink.hw.engine.llama.ops import Batch, Ops
from blink.hw.engine.llama.reference import ReferenceOps
from blink.hw.engine.llama.rope import rope_table
from blink.hw.engine.llama.weights import FileSource, RandomSource, load_weights
from blink.hw.engine.port import GraphShape, Inputs
from blink.model.errors import BackendUnavailable

DTYPES: Final = ("float16", "bfloat16", "float32")
KERNELS: Final = ("triton", "torch")


@dataclass(frozen=True, slots=True)
class Options:
    """How a model is to be run."""

    model: str
    """a name in shapes.SHAPES, a folder with a ``config.json``, or such a file"""
    weights: str | None = None
    """a folder of ``*.safetensors``; None: random ones, from the seed"""
    seed: int = 0
    dtype: str = "float16"
    device: str = "cuda"
    kernels: str | None = None
    """"triton" or "torch"; None: what suits the device"""


class LlamaEngine:
    """See port.Engine. Not for several threads."""

    name = "llama"

    def __init__(self, options: Options) -> None:
        """Raises BadModel or UnknownName; BackendUnavailable where there is no such device."""
        self._options = options
        self._config = load_config(options.model)
        self._device = _device(options.device)
        if options.dtype not in DTYPES:
            raise BadModel(options.model, "dtype", f"{options.dtype} is not {_either(DTYPES)}")
        self._dtype: torch.dtype = getattr(torch, options.dtype)
        self._ops = _ops(options, self._device)
        self._decoder: Decoder | None = None
        self._graphs = GraphPool(self._device)

    @property
    def config(self) -> ModelConfig:
        """What model it is."""
        return self._config

    def describe(self) -> dict[str, Any]:
        """See Engine."""
        weights = self._options.weights or f"random, seed {self._options.seed}"
        return {
            "engine": self.name,
            "model": self._options.model,
            "family": self._config.family,
            "parameters": self._config.parameters,
            "weights": weights,
            "dtype": self._options.dtype,
            "kernels": self._ops.name,
            "device": self._device.type,
            "torch": torch.__version__,
        }

    def bytes_needed(self, blocks_total: int, block_tokens: int) -> int:
        """See Engine."""
        config = self._config
        cached = 2 * config.layers * config.kv_width * (blocks_total + 1) * block_tokens
        angles = self._positions(blocks_total, block_tokens) * config.head_dim
        return int((config.parameters + cached) * self._dtype.itemsize + angles * 4)

    def prepare(self, blocks_total: int, block_tokens: int) -> None:
        """See Engine. The cache starts as zeros; nothing relies on it."""
        config, where = self._config, {"dtype": self._dtype, "device": self._device}
        shape = (blocks_total + 1, config.kv_heads, block_tokens, config.head_dim)
        with torch.inference_mode():
            weights = self._weights()
            cache = torch.zeros(config.layers, 2, *shape, **where)
            rope = rope_table(config, self._positions(blocks_total, block_tokens), self._device)
            self._decoder = Decoder(config, weights, self._ops, cache, rope)

    def capture(
        self,
        shape: GraphShape,
        inputs: Inputs,
        before: Callable[[int], None],
        after: Callable[[int], None],
    ) -> int:
        """See Engine. Raises BackendUnavailable on a CPU, which has no graphs."""
        batch = self._batch(shape, inputs)
        return self._graphs.capture(lambda: self._step(batch), batch, before, after)

    def compute(self, shape: GraphShape, inputs: Inputs) -> None:
        """What the graph of this shape would compute, at once: for tests, and without a GPU."""
        self._step(self._batch(shape, inputs))

    def logits(self, shape: GraphShape, inputs: Inputs) -> torch.Tensor:
        """[B, vocab] instead of a token: for tests. Writes the cache as `compute` does."""
        with torch.inference_mode():
            return self._prepared().logits(self._batch(shape, inputs))

    def close(self) -> None:
        """See Engine."""
        self._graphs.close()
        self._decoder = None

    def _step(self, batch: Batch) -> None:
        with torch.inference_mode():
            self._prepared().step(batch)

    def _prepared(self) -> Decoder:
        assert self._decoder is not None, "prepare() comes first"
        return self._decoder

    def _weights(self) -> Any:
        if self._options.weights is None:
            source = RandomSource(self._options.seed, self._device)
            return load_weights(self._config, source, self._dtype, self._device)
        files = FileSource(Path(self._options.weights))
        try:
            return load_weights(self._config, files, self._dtype, self._device)
        finally:
            files.close()

    def _positions(self, blocks_total: int, block_tokens: int) -> int:
        """Angles are kept for every position that the model has and the cache can hold."""
        return min(self._config.context_max, blocks_total * block_tokens)

    def _batch(self, shape: GraphShape, inputs: Inputs) -> Batch:
        """The arrays as tensors that share their memory."""
        arrays = {each.name: self._tensor(getattr(inputs, each.name)) for each in fields(Inputs)}
        batch = Batch(**arrays)
        assert batch.tokens.shape == (shape.batch, shape.tokens), f"tokens are not {shape}"
        return batch

    def _tensor(self, array: Any) -> torch.Tensor:
        if isinstance(array, torch.Tensor):
            assert array.device.type == self._device.type, "an array on another device"
            return array
        tensor = torch.as_tensor(array, device=self._device)
        if self._device.type == "cuda":
            held = array.__cuda_array_interface__["data"][0]  # what is on no GPU has none
            assert held == tensor.data_ptr(), "an array was copied: it is not contiguous"
        return tensor


def _device(name: str) -> torch.device:
    if name not in ("cpu", "cuda"):
        raise BadModel("engine", "device", f"{name} is not {_either(('cpu', 'cuda'))}")
    if name == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable(
            "the llama engine found no NVIDIA GPU that torch can use (nvidia-smi shows what there"
            ' is); device "cpu" computes the same without graphs'
        )
    return torch.device(name, 0) if name == "cuda" else torch.device(name)


def _ops(options: Options, device: torch.device) -> Ops:
    kernels = options.kernels or ("triton" if device.type == "cuda" else "torch")
    if kernels not in KERNELS:
        raise BadModel(options.model, "kernels", f"{kernels} is not {_either(KERNELS)}")
    if kernels == "torch":
        return ReferenceOps()
    from blink.hw.engine.llama.kernels.ops import TritonOps  # Triton is there with a GPU only

    return TritonOps(device)


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
