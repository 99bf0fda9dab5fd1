"""What a run leaves behind and where: result rows, learning curves, reasons of failure."""

from __future__ import annotations

import csv
import json
import math
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.claims.spec import FOLDER

KEY = ("setting", "arm", "seed")
RUN_COLUMNS = ("episodes", "generated_tokens", "cpu_seconds", "wall_seconds", "commit", "episodes_to_50", "fingerprint")
LEVEL = 0.5  # of episodes_to_50

Row = dict[str, Any]
Key = tuple[str, str, int]


class RunFailed(RuntimeError):
    """A run without a usable result; the message says why."""


class Records:
    """Files of one claims file, under the repository at ``root``."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.runs = Path("runs/claims") / name
        results = root / FOLDER / "results"
        self.rows, self.curves = results / f"{name}.csv", results / f"{name}.curves.csv"
        self.markdown, self.picture = results / f"{name}.md", results / f"{name}.png"
        self.sweep = results / f"{name}.sweep.png"

    def folder(self, key: Key) -> Path:
        """The run's folder, relative to the root."""
        return self.runs.joinpath(*map(str, key))

    def failure(self, key: Key) -> Path:
        """The file that says why a run failed; it stands until the run is tried again."""
        return self.root / self.folder(key) / "failed.txt"

    def done(self) -> dict[Key, Row]:
        return {key_of(row): row for row in read(self.rows)}

    def add(self, key: Key, row: Row, curve: list[Row]) -> None:
        """Record a finished run in place of an earlier one; the row comes last, as it says that all is there."""
        named = dict(zip(KEY, key, strict=True))
        _replace(self.curves, key, [{**named, **point} for point in curve])
        _replace(self.rows, key, [{**named, **row}])


def key_of(row: Row) -> Key:
    return row["setting"], row["arm"], int(row["seed"])


def read(path: Path) -> list[Row]:
    """The rows of a table; empty if there is none."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _replace(path: Path, key: Key, rows: list[Row]) -> None:
    """Put rows at the end of a table instead of those of the same key. The file is always whole, whatever ends us."""
    table = [row for row in read(path) if key_of(row) != key] + rows
    columns = dict.fromkeys(column for row in table for column in row)
    ordered = [name for name in columns if name not in RUN_COLUMNS] + [name for name in RUN_COLUMNS if name in columns]
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", newline="") as file:
        writer = csv.DictWriter(file, ordered, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    unfinished.replace(path)


def scores(path: Path, metric: str) -> Row:
    """The split and its scores out of a ``test_metrics.json``.

    Raises:
        RunFailed: no such file, or the metric is missing or no finite number.
    """
    if not path.is_file():
        raise RunFailed(f"`zoo test` left no {path.name}")
    found = json.loads(path.read_text())
    if not math.isfinite(found.get(metric, math.nan)):
        raise RunFailed(f"{path.name} has no finite {metric}; it has {', '.join(found) or 'nothing'}")
    split = metric.split("/", 1)[0]
    return {"split": split} | {
        name.removeprefix(f"{split}/"): value for name, value in found.items() if name.startswith(f"{split}/")
    }


def learning_curve(path: Path, columns: tuple[str, ...], episodes_before: int) -> list[Row]:
    """One row an epoch out of a ``metrics.csv``: epoch, cumulative episodes (earlier stages' included), the columns.

    Raises:
        RunFailed: no such file.
    """
    if not path.is_file():
        raise RunFailed(f"`zoo fit` left no {path.name}")
    return [
        {"epoch": row["epoch"], "episodes": episodes_before + _count(row, "train/episodes")}
        | {column: row.get(column, "") for column in columns}
        for row in read(path)
    ]


def curve_means(curve: list[Row], columns: tuple[str, ...]) -> Row:
    """``mean_X`` for every ``train/X``: over the iterations that logged it."""
    means: Row = {}
    for column in columns:
        values = [float(point[column]) for point in curve if point[column] != ""]
        if column.startswith("train/") and values:
            means[f"mean_{column.removeprefix('train/')}"] = sum(values) / len(values)
    return means


def totals(path: Path) -> tuple[int, int]:
    """Episodes played and tokens generated in one fit; none where nothing is played (imitation)."""
    rows = read(path)
    episodes = max((_count(row, "train/episodes") for row in rows), default=0)
    return episodes, max((_count(row, "train/generated_tokens") for row in rows), default=0)


def episodes_to_level(curve: list[Row], column: str) -> int | str:
    """Episodes at the first point of the curve at or above the level; empty if there is none."""
    return next((point["episodes"] for point in curve if point[column] and float(point[column]) >= LEVEL), "")


def commit(root: Path) -> str:
    """Short hash of the code, ``-dirty`` where it was changed since; result files do not count as code."""
    head = _git(root, "rev-parse", "--short", "HEAD")
    changed = _git(root, "status", "--porcelain", "--", ".", f":(exclude){FOLDER}/results")
    return f"{head}-dirty" if head and changed else head or "unknown"


def _git(root: Path, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=False).stdout.strip()


def _count(row: Row, column: str) -> int:
    return round(float(row.get(column) or 0))
