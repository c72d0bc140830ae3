"""Without a GPU the kernels are interpreted: the same source, on small tensors, on any machine."""

from __future__ import annotations

import os
from importlib.util import find_spec

if find_spec("torch") is not None:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
