"""Two iterations of a whole run, its start included, on one process and on two."""

from __future__ import annotations

from typing import Any

from benchmarks.speed.cases import startup
from benchmarks.speed.worker import Step

PEER = "the same on one process"
VARIANTS: dict[str, dict[str, Any]] = {"clue_lock": {}}


def _fit(devices: int) -> Step:
    strategy = "ddp" if devices > 1 else "auto"
    settings = {"max_epochs": 2, "limit_val_batches": 0, "accelerator": "cpu", "devices": devices, "strategy": strategy}
    return startup.ours(startup.FIT + [f"--trainer.{name}={value}" for name, value in settings.items()])


def ours() -> Step:
    return _fit(2)


def peer() -> Step:
    return _fit(1)


def check() -> None:
    ours()()
