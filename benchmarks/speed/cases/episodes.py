"""A whole iteration of 64 to 1024 episodes, 256 of them at a time: what twice the episodes cost."""

from __future__ import annotations

from typing import Any

from benchmarks.speed.cases import grpo_step
from benchmarks.speed.worker import Step

PEER = "nothing"
VARIANTS: dict[str, dict[str, Any]] = {f"{count} episodes": {"count": count} for count in (64, 128, 256, 512, 1024)}


def ours(count: int) -> Step:
    return grpo_step.ours("1M", count // grpo_step.REPLIES)


def check(count: int) -> None:
    ours(count)()
