"""Without a GPU the kernels are interpreted: the same source, on small tensors, on any machine."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any


def _interpret() -> None:
    """Read when a kernel is defined, so before any test module is imported."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter

    patched = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        """Triton 3.6 takes int() of an array of one element, which numpy 2.4 refuses."""
        patched(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda scalar: int(scalar.handle.data.item()))

    interpreter._patch_lang_tensor = patch


if find_spec("torch") is not None and find_spec("triton") is not None:
    import torch

    if not torch.cuda.is_available():
        _interpret()
