"""Ours and a peer's speed on the same work: ``python -m benchmarks.speed [CASE ...]``, kept in ``results/CASE.json``.

Each side runs in a process of its own; the sides take turns, after two steps of warm-up. Costs are medians of CPU-seconds, so
that other work matters little; the ratio is the median of the ratios of neighbouring steps. Before anything is timed, both sides
have to compute the same. ``python -m benchmarks.speed.compare OLD NEW`` lists what has changed by more than 5 %.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed import cases
from benchmarks.speed.machine import gemm_rate

RESULTS, README = Path(__file__).parent / "results", Path(__file__).with_name("README.md")
_BEGIN, _END = "<!-- results -->", "<!-- /results -->"
WARM_UP = 2


class Worker:
    """A process of :mod:`benchmarks.speed.worker`."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.speed.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if arguments[2] == "check" else subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": arguments[3], "OMP_WAIT_POLICY": "PASSIVE"},
        )
        if self._line() != "ready":
            raise SystemExit(f"speed: {' '.join(arguments)} failed\n{(self.process.communicate()[1] or '')[-2000:]}")

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def step(self) -> dict[str, float]:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        if not (line := self._line()):
            raise SystemExit(f"speed: a step failed: {self.process.args}")
        return json.loads(line)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def measure(name: str, variant: str, threads: int, pairs: int) -> dict[str, Any]:
    """One row of a case's table."""
    case = importlib.import_module(f"benchmarks.speed.cases.{name}")
    Worker(name, variant, "check", str(threads)).end()
    sides = {side: Worker(name, variant, side, str(threads)) for side in ("ours", "peer") if hasattr(case, side)}
    rounds, rates = [], []
    for _ in range(pairs + WARM_UP):
        rounds.append({side: worker.step() for side, worker in sides.items()})
        rates.append(gemm_rate(threads, seconds=0.2))
    for worker in sides.values():
        worker.end()
    rounds = rounds[WARM_UP:]
    row: dict[str, Any] = {"variant": variant, "threads": threads, "pairs": pairs}
    for side in sides:
        row[side] = {
            "cpu": statistics.median(one[side]["cpu"] for one in rounds),
            "wall": statistics.median(one[side]["wall"] for one in rounds),
            "peak": rounds[-1][side]["peak"],
            "extra": rounds[-1][side]["peak"] - rounds[-1][side]["before"],
        }
    if "peer" in sides:
        row["ratio"] = statistics.median(one["ours"]["cpu"] / one["peer"]["cpu"] for one in rounds)
        row["memory"] = row["ours"]["peak"] / row["peer"]["peak"]
    if hasattr(case, "flops"):
        row["gflop"] = case.flops(**case.VARIANTS[variant]) / 1e9
        row["rate"] = statistics.median(rates[WARM_UP:]) / 1e9
        for side in sides:
            row[side]["of limit"] = row["gflop"] / row["rate"] / row[side]["cpu"]
    if hasattr(case, "facts"):
        row["facts"] = case.facts(**case.VARIANTS[variant])
    return row


def table(rows: list[dict[str, Any]], peer: str) -> str:
    """The rows as markdown."""
    lines = [f"Against {peer}.", ""]
    lines += [
        "| variant | threads | ours, CPU-s | peer | ratio | ours, MiB (of steps) | peer | of the limit: ours | peer |"
    ]
    lines += ["| --- | " + "--: | " * 8]
    for row in rows:
        other = row.get("peer", {})
        cells = [row["variant"], row["threads"], _number(row["ours"]["cpu"]), _number(other.get("cpu"))]
        cells += [_number(row.get("ratio")), _memory(row["ours"]), _memory(other) if other else "-"]
        cells += [_number(row["ours"].get("of limit")), _number(other.get("of limit"))]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    told = [f"{row['variant']}: {name} {value:.3g}" for row in rows for name, value in row.get("facts", {}).items()]
    return "\n".join([*lines, *([""] if told else []), *told])


def _memory(side: dict[str, float]) -> str:
    return f"{side['peak']:.0f} ({side['extra']:.0f})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def main() -> None:
    known = [module.name for module in pkgutil.iter_modules(cases.__path__)]
    parser = argparse.ArgumentParser("python -m benchmarks.speed", description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", choices=[*known, []], help=f"some of {', '.join(known)}; all if none")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    options = parser.parse_args()
    for name in options.cases or known:
        case = importlib.import_module(f"benchmarks.speed.cases.{name}")
        rows = [
            measure(name, variant, threads, options.pairs) for threads in options.threads for variant in case.VARIANTS
        ]
        machine = {"machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
        (RESULTS / f"{name}.json").write_text(json.dumps({**machine, "peer": case.PEER, "rows": rows}, indent=1) + "\n")
        print(f"{name}: {table(rows, case.PEER)}\n", flush=True)
    page = README.read_text()
    before, after = page.split(_BEGIN)[0], page.split(_END)[1]
    README.write_text(before + _BEGIN + "\n" + results(RESULTS) + "\n" + _END + after)


def results(folder: Path) -> str:
    """All tables that are kept in a folder, as markdown."""
    kept = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    tables = [f"### {name}\n\n{table(case['rows'], case['peer'])}" for name, case in kept.items() if "rows" in case]
    return "\n\n".join(tables)


if __name__ == "__main__":
    main()
