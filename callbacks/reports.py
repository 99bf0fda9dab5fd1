"""What people look at after a run: learning curves as table and picture, evaluated episodes as JSON lines."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl

from zoo.rollout.trajectory import Row, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from zoo.agent import AgentModule


class LearningCurves(pl.Callback):
    """Writes ``metrics.csv`` after every iteration and draws ``learning_curves.png`` from it at the end.

    A resumed run continues the table where its checkpoint was made.

    Args:
        curves: metrics drawn, one panel each; those a run does not have are left out.
    """

    def __init__(
        self, curves: tuple[str, ...] = ("val/success", "train/success", "train/trigger_rate", "train/mean_k")
    ) -> None:
        self.curves = tuple(curves)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: AgentModule) -> None:  # type: ignore[override]
        fresh = pl_module.logged & trainer.callback_metrics.keys()
        values = {name: float(trainer.callback_metrics[name]) for name in sorted(fresh)}
        pl_module.logged.clear()
        if trainer.is_global_zero:
            path = Path(trainer.default_root_dir) / "metrics.csv"
            earlier = [row for row in read_metrics(path) if int(row["epoch"]) < trainer.current_epoch]
            write_metrics(path, [*earlier, {"epoch": trainer.current_epoch, "step": trainer.global_step, **values}])

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            folder = Path(trainer.default_root_dir)
            draw_curves(read_metrics(folder / "metrics.csv"), self.curves, folder / "learning_curves.png")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.csv``; empty if there is none."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_metrics(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows whose columns may differ; the file appears whole or not at all."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    unfinished.replace(path)


def draw_curves(rows: list[dict[str, Any]], curves: tuple[str, ...], path: Path) -> None:
    """One panel a metric, over played episodes where they were counted and over iterations otherwise."""
    from matplotlib.figure import Figure

    shown = [name for name in curves if any(row.get(name) not in (None, "") for row in rows)]
    if not shown:
        return
    figure = Figure(figsize=(3.6 * len(shown), 3.0), layout="constrained")
    horizontal = "train/episodes" if all(row.get("train/episodes") for row in rows) else "epoch"
    for axis, name in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        points = [(float(row[horizontal]), float(row[name])) for row in rows if row.get(name) not in (None, "")]
        axis.plot(*zip(*points, strict=True), marker=".", linewidth=1.2)
        axis.set(title=name, xlabel=horizontal.removeprefix("train/"))
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


class TrajectoryLog(pl.Callback):
    """Writes evaluated episodes to ``trajectories.jsonl``, one :func:`describe` a line; ``zoo view`` makes a page of them.

    Args:
        limit: episodes kept per evaluation.
    """

    def __init__(self, limit: int = 100) -> None:
        self.limit = limit
        self._left = 0

    def on_test_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._left = self.limit
        if trainer.is_global_zero:
            self._path(trainer).parent.mkdir(parents=True, exist_ok=True)
            self._path(trainer).write_text("")

    def on_test_batch_end(  # type: ignore[override]
        self, trainer: pl.Trainer, pl_module: AgentModule, outputs: list[Trajectory], *_: Any
    ) -> None:
        kept = outputs[: self._left] if trainer.is_global_zero else []
        self._left -= len(kept)
        with self._path(trainer).open("a") as file:
            file.writelines(json.dumps(describe(trajectory, pl_module), default=str) + "\n" for trajectory in kept)

    on_predict_epoch_start = on_test_epoch_start
    on_predict_batch_end = on_test_batch_end  # type: ignore[assignment]

    def _path(self, trainer: pl.Trainer) -> Path:
        return Path(trainer.default_root_dir) / "trajectories.jsonl"


def describe(trajectory: Trajectory, module: AgentModule) -> dict[str, Any]:
    """A trajectory as plain data for people and viewers.

    An evaluated episode has no group to be compared with, so the ``credit`` of a token is the advantage it would be trained
    with if the episode's were 1 (it succeeded), -1 (it failed) or 0 (its world failed).

    Args:
        trajectory: what was played.
        module: whose ``rows`` give credit and whose tokenizer spells the tokens.
    """
    played = replace(trajectory)  # a method may exchange the segments for those it learns from
    advantage = 0.0 if played.reward is None else 1.0 if played.success else -1.0
    rows = module.rows(played, advantage, 0)
    return {
        "task": played.job.task._asdict(),
        "behaviour": played.job.behaviour,
        "reward": played.reward,
        "success": played.success,
        "finish": played.finish,
        "tokens_written": played.written,
        "turns": [asdict(turn) for turn in played.turns],
        "segments": [
            {**_row(row, module.policy.tokenizer), **segment.tags}
            for row, segment in zip(rows, played.segments, strict=True)
        ],
        "boundaries": [asdict(boundary) for boundary in played.boundaries],
        "info": played.info,
    }


def _row(row: Row, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    ids = row["ids"].tolist()
    spelled = {token: spelling(tokenizer, token) for token in set(ids)}
    return {
        "tokens": [spelled[token] for token in ids],
        "written": row["mask"].int().tolist(),
        "credit": [round(value, 4) or 0 for value in row["advantages"].tolist()],  # no -0.0
    }


def spelling(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """What a token adds to a text; alone, some tokenizers decode it without the space before it."""
    once, twice = (
        str(tokenizer.decode([token] * count, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        for count in (1, 2)
    )
    return twice[len(once) :]
