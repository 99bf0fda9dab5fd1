"""One side of a case in a process of its own: ``python -m benchmarks.speed.worker CASE VARIANT SIDE THREADS``.

Prints ``ready``, then makes a step for every line it is sent and prints what that cost. Side ``check`` is the equality gate.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

Step = Callable[[], object]


class Paced:
    """A training loop that makes one step per call: its callback calls :meth:`pause` where a step begins."""

    def __init__(self, fit: Callable[[Paced], object]) -> None:
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._fit = fit
        threading.Thread(target=self._run, daemon=True).start()
        self._done.acquire()

    def _run(self) -> None:
        try:
            self._fit(self)
        except BaseException:  # noqa: BLE001 - whoever waits for the step would wait for ever
            traceback.print_exc()
            os._exit(1)

    def pause(self) -> None:
        self._done.release()
        self._go.acquire()

    def __call__(self) -> None:
        self._go.release()
        self._done.acquire()


def peak_mib() -> float:
    """Largest resident memory of this process so far (``ru_maxrss`` would begin at that of the process that started it)."""
    if (status := Path("/proc/self/status")).exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cpu_seconds() -> float:
    """Of this process and of those it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def main(name: str, variant: str, side: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    case = importlib.import_module(f"benchmarks.speed.cases.{name}")
    made = getattr(case, side)(**case.VARIANTS[variant])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what trainers print is not an answer
    print("ready", file=answers)
    if side == "check":
        return
    before = peak_mib()
    for _ in sys.stdin:
        start, wall = cpu_seconds(), time.perf_counter()
        made()
        cost = {"cpu": cpu_seconds() - start, "wall": time.perf_counter() - wall}
        print(json.dumps({**cost, "peak": peak_mib(), "before": before}), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
