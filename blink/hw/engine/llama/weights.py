"""The weights, laid out for speed: one matrix for q, k and v, one for gate and up.

Matrices are [out, in], as published. Each is allocated once and filled part by part, from a seed
or from ``*.safetensors``, so that loading needs no room for a second copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from blink.hw.engine.llama.config import BadModel, ModelConfig
from blink.model.errors import is_file

INDEX_FILE: Final = "model.safetensors.index.json"
RANDOM_DEVIATION: Final = 0.02
"""standard deviation of random matrices: ``initializer_range`` of the published configurations"""


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer; what a family lacks is None. H: hidden, E: experts, W: MLP width."""

    attention_norm: torch.Tensor
    """[H]"""
    qkv: torch.Tensor
    """[(heads + 2 kv_heads) * head_dim, H]: queries, keys, values"""
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    """[head_dim]"""
    k_norm: torch.Tensor | None
    output: torch.Tensor
    """[H, heads * head_dim]"""
    output_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    """[H]"""
    router: torch.Tensor | None
    """[E, H]; None in a dense model"""
    gate_up: torch.Tensor
    """[2 W, H], or [E, 2 W, H]: gate, then up"""
    down: torch.Tensor
    """[H, W], or [E, H, W]"""


@dataclass(frozen=True, slots=True)
class Weights:
    """All of a model."""

    embedding: torch.Tensor
    """[vocab, H]"""
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    """[H]"""
    head: torch.Tensor
    """[vocab, H]; the embedding itself where they are tied"""


class Source(Protocol):
    """Where weights come from."""

    def fill(self, target: torch.Tensor, name: str) -> None:
        """Write the tensor published under this name into ``target``, a view of its shape."""


class RandomSource:
    """Normal numbers from a seed; norms are one. A seed gives the same on one kind of device."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)

    def fill(self, target: torch.Tensor, name: str) -> None:
        """See Source."""
        if name.endswith("norm.weight"):
            target.fill_(1)
        else:
            target.normal_(0, RANDOM_DEVIATION, generator=self._generator)


class FileSource:
    """The ``*.safetensors`` of a folder, with an index or without. Close it after the last fill."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._names: dict[str, Any] = {}
        for path in _files(folder):
            file = self._stack.enter_context(_opened(path))
            self._names.update(dict.fromkeys(file.keys(), file))

    def fill(self, target: torch.Tensor, name: str) -> None:
        """See Source. Raises BadModel for a tensor that is missing or has another shape."""
        if name not in self._names:
            raise BadModel(self._folder, name, "no such tensor in the *.safetensors")
        tensor = self._names[name].get_tensor(name)
        if tensor.shape != target.shape:
            found, needed = list(tensor.shape), list(target.shape)
            raise BadModel(self._folder, name, f"has shape {found}, the config says {needed}")
        target.copy_(tensor)

    def close(self) -> None:
        """Let go of the files."""
        self._names.clear()
        self._stack.close()


def load_weights(
    config: ModelConfig, source: Source, dtype: torch.dtype, device: torch.device
) -> Weights:
    """Allocate and fill every weight. Raises BadModel, and torch's own error for lack of memory."""
    make = _Maker(source, dtype, device)
    embedding = make.one("model.embed_tokens.weight", config.vocab, config.hidden)
    return Weights(
        embedding=embedding,
        layers=tuple(_layer(config, make, index) for index in range(config.layers)),
        norm=make.one("model.norm.weight", config.hidden),
        head=embedding if config.tied else make.one("lm_head.weight", config.vocab, config.hidden),
    )


class _Maker:
    """Tensors of one dtype on one device, filled from one source."""

    def __init__(self, source: Source, dtype: torch.dtype, device: torch.device) -> None:
        self._source = source
        self._where: dict[str, Any] = {"dtype": dtype, "device": device}

    def one(self, name: str, *shape: int) -> torch.Tensor:
        return self.rows([(name, shape[0])], *shape[1:])

    def rows(self, parts: list[tuple[str, int]], *rest: int) -> torch.Tensor:
        """Several tensors on top of one another: each a name and its number of rows."""
        whole = torch.empty(sum(rows for _, rows in parts), *rest, **self._where)
        self._fill(whole, parts)
        return whole

    def stack(self, stacked: list[list[tuple[str, int]]], *rest: int) -> torch.Tensor:
        """What ``rows`` makes, once for each expert."""
        height = sum(rows for _, rows in stacked[0])
        whole = torch.empty(len(stacked), height, *rest, **self._where)
        for target, parts in zip(whole, stacked, strict=True):
            self._fill(target, parts)
        return whole

    def _fill(self, whole: torch.Tensor, parts: list[tuple[str, int]]) -> None:
        start = 0
        for name, rows in parts:
            self._source.fill(whole[start : start + rows], name)
            start += rows


def _layer(config: ModelConfig, make: _Maker, index: int) -> Layer:
    at = f"model.layers.{index}."
    attention = at + "self_attn."
    qkv = (("q_proj", config.q_width), ("k_proj", config.kv_width), ("v_proj", config.kv_width))
    gate_up, down, router = _mlp(config, make, at + "mlp.")
    return Layer(
        attention_norm=make.one(at + "input_layernorm.weight", config.hidden),
        qkv=make.rows([(f"{attention}{name}.weight", rows) for name, rows in qkv], config.hidden),
        qkv_bias=make.rows([(f"{attention}{name}.bias", rows) for name, rows in qkv])
        if config.qkv_bias
        else None,
        q_norm=make.one(attention + "q_norm.weight", config.head_dim) if config.qk_norm else None,
        k_norm=make.one(attention + "k_norm.weight", config.head_dim) if config.qk_norm else None,
        output=make.one(attention + "o_proj.weight", config.hidden, config.q_width),
        output_bias=make.one(attention + "o_proj.bias", config.hidden)
        if config.output_bias
        else None,
        mlp_norm=make.one(at + "post_attention_layernorm.weight", config.hidden),
        router=router,
        gate_up=gate_up,
        down=down,
    )


def _mlp(
    config: ModelConfig, make: _Maker, at: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Gate and up, down, router."""
    hidden, experts = config.hidden, config.experts
    if experts is None:
        width = config.mlp_width
        gate_up = [(at + "gate_proj.weight", width), (at + "up_proj.weight", width)]
        return make.rows(gate_up, hidden), make.one(at + "down_proj.weight", hidden, width), None
    width = experts.width
    names = [f"{at}experts.{number}." for number in range(experts.count)]
    up = [[(each + "gate_proj.weight", width), (each + "up_proj.weight", width)] for each in names]
    down = [[(each + "down_proj.weight", hidden)] for each in names]
    router = make.one(at + "gate.weight", experts.count, hidden)
    return make.stack(up, hidden), make.stack(down, width), router


def _files(folder: Path) -> Iterator[Path]:
    """The files that hold tensors: those that the index names, or all of them."""
    index = folder / INDEX_FILE
    if not is_file(index):
        found = sorted(folder.glob("*.safetensors"))
        if not found:
            raise BadModel(folder, "", "has no *.safetensors")
        yield from found
        return
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise BadModel(index, "weight_map", f"cannot be read: {error!r}") from error
    yield from (folder / name for name in sorted(set(names)))


def _opened(path: Path) -> Any:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:  # the random weights need it not
        raise BadModel(path, "", "needs safetensors: pip install 'blink-twin[hw-torch]'") from error
    try:
        return safe_open(str(path), framework="pt", device="cpu")
    except (OSError, SafetensorError) as error:
        raise BadModel(path, "", f"cannot be read: {error}") from error
