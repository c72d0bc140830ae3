"""Rotary positions: the angle of each pair of a head's elements at each position.

Element i of a head's first half and element i of its second half are a pair, turned by position
times frequency i (the layout of published Hugging Face checkpoints).
"""

from __future__ import annotations

import math

import torch

from blink.hw.engine.llama.config import Llama3Scaling, ModelConfig


def rope_table(config: ModelConfig, positions: int, device: torch.device) -> torch.Tensor:
    """float32 [positions, 2, head_dim / 2]: cosines, then sines."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies(config))
    return torch.stack((angles.cos(), angles.sin()), dim=1).to(device)


def frequencies(config: ModelConfig) -> torch.Tensor:
    """float32 [head_dim / 2]: radians a position, the fastest first."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    plain = 1.0 / config.rope_theta**steps
    return plain if config.rope_scaling is None else _llama3(plain, config.rope_scaling)


def _llama3(plain: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Llama 3.1's rule: how often a wave turns within the original context decides."""
    turns = scaling.original_tokens * plain / (2 * math.pi)
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = ramp.clamp(0, 1)  # 0: stretched by the factor, 1: as it was
    return (1 - kept) * plain / scaling.factor + kept * plain
