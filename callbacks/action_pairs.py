"""Alternatives to an expert's actions, sampled from the policy before it learns anything (ACT's first stage)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_info

from datamodules.action_pairs import ActionPairDataModule, write_pairs
from zoo.act.judgment import alternatives, canonical
from zoo.rollout.trajectory import Split, Trajectory

if TYPE_CHECKING:
    from zoo.act.module import ACTCritic


class ActionPairWriter(pl.Callback):
    """After ``zoo predict`` on an ``ActionPairDataModule`` with ``ask: action``, writes ``pairs.jsonl`` into the run's folder.

    Exact matches with the expert's action are dropped, and with them the states at which nothing else was sampled; of what is
    left, equal alternatives count once. Nothing is executed.
    """

    def __init__(self) -> None:
        self._proposed: dict[tuple[Split, int], list[tuple[str, str]]] = defaultdict(list)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._proposed.clear()

    def on_predict_batch_end(  # type: ignore[override]
        self, trainer: pl.Trainer, pl_module: ACTCritic, outputs: list[Trajectory], *_: Any
    ) -> None:
        thought = trainer.datamodule.protocol.thought  # type: ignore[attr-defined]
        for trajectory in outputs:
            task = trajectory.job.task
            said = [(turn.action, thought(turn.reply)) for turn in trajectory.turns[-1:] if turn.action is not None]
            self._proposed[task.split, task.seed] += said

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, ActionPairDataModule) or data.ask != "action":
            return
        parts: list[Any] = [dict(self._proposed)]
        if trainer.world_size > 1:
            parts = [None] * trainer.world_size
            torch.distributed.all_gather_object(parts, dict(self._proposed))
        proposed = {key: actions for part in parts for key, actions in part.items()}
        if not trainer.is_global_zero:
            return
        pairs = []
        for split, decisions in data.decisions.items():
            for index, decision in enumerate(decisions):
                said = proposed.get((split, index), [])
                thoughts = {canonical(action): thought for action, thought in reversed(said)}
                if others := alternatives((action for action, _ in said), decision.expert, len(said)):
                    pairs.append(replace(decision, alternatives=others, thoughts=[thoughts[one] for one in others]))
        path = Path(trainer.default_root_dir) / "pairs.jsonl"
        digest = write_pairs(path, pairs)
        total = sum(map(len, data.decisions.values()))
        rank_zero_info(f"{path}: {len(pairs)} of {total} states have an alternative; sha256 {digest[:12]}")
