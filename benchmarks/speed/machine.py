"""What the machine can do at best, measured in the run whose numbers are held against it."""

from __future__ import annotations

import time

import torch


def gemm_rate(threads: int, size: int = 1024, seconds: float = 0.6) -> float:
    """Largest FLOP per CPU-second of an fp32 matrix product, ``2 n^3`` each."""
    torch.set_num_threads(threads)
    left, right = torch.randn(size, size), torch.randn(size, size)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.process_time()
        left @ right
        best = max(best, 2 * size**3 / (time.process_time() - start))
    return best
