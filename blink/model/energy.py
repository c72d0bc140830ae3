"""Wall power and energy per token of a server, its DPU included.

Power is rest plus what is busy: a GPU that works draws between its idle and its limit in proportion
to the share of time it works; a busy core adds ``core_w``; a DPU draws its figure all the time it
is in use. Energy divides by output tokens, as the paper does.
"""

from __future__ import annotations

from blink.model.hardware import DpuSku, GpuSku, HostSku

GPU_BUSY_SHARE = 0.85  # assumed: a decoding H100/H200 draws 0.8-0.9 of its limit while it works


def wall_power_w(
    gpu: GpuSku,
    host: HostSku,
    dpu: DpuSku | None,
    *,
    gpu_busy: float,
    cores_busy: float,
    gpus: int = 1,
) -> float:
    """Mean wall power in W.

    ``gpu_busy`` is a share of time (0..1) of each of ``gpus`` GPUs that work in step,
    ``cores_busy`` a number of busy physical cores (the neighbours' and the server's), capped at
    what the host has.
    """
    if not 0 <= gpu_busy <= 1:
        raise ValueError(f"gpu_busy = {gpu_busy}: must lie in 0..1")
    gpu_w = gpu.idle_w + (gpu.peak_w * GPU_BUSY_SHARE - gpu.idle_w) * gpu_busy
    host_w = host.idle_w + host.core_w * min(cores_busy, host.physical_cores)
    return host_w + gpus * gpu_w + (dpu.w if dpu else 0.0)


def energy_mj_per_token(power_w: float, seconds: float, output_tokens: int) -> float | None:
    """Energy per output token in mJ; ``None`` when there was no token."""
    return power_w * seconds / output_tokens * 1e3 if output_tokens else None
