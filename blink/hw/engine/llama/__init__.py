"""A decoder of the Llama family in torch and Triton: the only door to either.

    engine = open_engine("llama3-8b")                          # random weights, fp16, on the GPU
    engine = open_engine("path/of/model", weights="path/of/model", dtype="bfloat16")

``config.py`` and ``shapes.py`` say which models; ``weights.py`` how they lie in memory;
``model.py`` is the decoder; ``ops.py`` what it needs, once as plain torch (``reference.py``) and
once as kernels (``kernels/``); ``sampling.py`` the rule by which a token is drawn; ``graphs.py``
the capture. Importing this package needs no torch, opening an engine does.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from blink.model.errors import BackendUnavailable

if TYPE_CHECKING:
    from blink.hw.engine.llama.engine import LlamaEngine

INSTALL: Final = "pip install 'blink-twin[hw-torch]'"


def open_engine(
    model: str,
    *,
    weights: str | None = None,
    seed: int = 0,
    dtype: str = "float16",
    device: str = "cuda",
    kernels: str | None = None,
) -> LlamaEngine:
    """An engine for a named shape or a folder with a ``config.json``; see engine.Options.

    Raises BackendUnavailable without torch or without the device, BadModel or UnknownName for a
    model that it cannot compute.
    """
    if find_spec("torch") is None:
        raise BackendUnavailable(f"the llama engine needs torch: {INSTALL}")
    from blink.hw.engine.llama.engine import LlamaEngine, Options

    return LlamaEngine(Options(model, weights, seed, dtype, device, kernels))
