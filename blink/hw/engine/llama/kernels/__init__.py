"""The functions of ops.Ops as Triton kernels; ``ops.py`` launches them.

Compile-time constants are in capitals. A name that ends in ``_PAD`` is a size rounded up to what
Triton can index, a power of two; what lies beyond the true size is masked.
"""

from __future__ import annotations
