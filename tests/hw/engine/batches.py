"""Inputs of an engine as numpy arrays, and an engine on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from blink.hw.engine.llama import open_engine
from blink.hw.engine.port import GraphShape, Inputs

NEEDED = "the torch engine is optional: pip install 'blink-twin[hw-torch-test]'"
BLOCKS, BLOCK_TOKENS, TABLE = 24, 4, 8
VOCAB = 199
"""of every tiny shape"""


def inputs(rows: int, new: int, **given: Any) -> Inputs:
    """Rows of full length at position 0, greedy, but for what is given."""
    arrays: dict[str, Any] = {
        "tokens": np.zeros((rows, new), np.int32),
        "lengths": np.full(rows, new, np.int32),
        "positions": np.zeros(rows, np.int32),
        "block_tables": np.zeros((rows, TABLE), np.int32),
        "temperature": np.zeros(rows, np.float32),
        "top_k": np.zeros(rows, np.int32),
        "top_p": np.ones(rows, np.float32),
        "seed": np.zeros(rows, np.int64),
        "output": np.full(rows, -7, np.int32),
    }
    for name, value in given.items():
        arrays[name] = np.asarray(value, arrays[name].dtype)
    return Inputs(**arrays)


def prompt(
    texts: list[list[int]], tables: Any, new: int, **given: Any
) -> tuple[GraphShape, Inputs]:
    """A prefill of these texts, padded to ``new`` tokens; an empty text is a padding row."""
    tokens = np.zeros((len(texts), new), np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    lengths = [len(text) for text in texts]
    given = {"tokens": tokens, "lengths": lengths, "block_tables": tables} | given
    return GraphShape(True, len(texts), new), inputs(len(texts), new, **given)


def step(
    tokens: list[int], positions: list[int], tables: Any, **given: Any
) -> tuple[GraphShape, Inputs]:
    """A decode step; a position of 0 is a padding row."""
    given = {
        "tokens": np.array(tokens)[:, None],
        "lengths": [int(position > 0) for position in positions],
        "positions": positions,
        "block_tables": tables,
    } | given
    return GraphShape(False, len(tokens), 1), inputs(len(tokens), 1, **given)


def tables(rows: int, seed: int = 0) -> Any:
    """Blocks in a shuffled order, no two the same."""
    order = np.random.default_rng(seed).permutation(BLOCKS)
    return order[: rows * TABLE].reshape(rows, TABLE).astype(np.int32)


def opened(model: str, weights: str | None = None, **options: Any) -> Any:
    """An engine on the CPU in float32, prepared."""
    engine = open_engine(
        model, weights=weights, **({"dtype": "float32", "device": "cpu"} | options)
    )
    engine.prepare(BLOCKS, BLOCK_TOKENS)
    return engine
