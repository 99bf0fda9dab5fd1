"""Sampling under two versions of a bank of skills, and what happens to them between sampling and update (ReSkill)."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import numpy as np
import torch

from callbacks.online_sampling import OnlineSampler, by_group
from callbacks.reports import read_metrics
from zoo.errors import ConfigError
from zoo.rollout.trajectory import Job, Trajectory

if TYPE_CHECKING:
    from zoo.agent import Facts
    from zoo.reskill.diagnosis import Experience
    from zoo.reskill.module import ReSkillCoEvolver
    from zoo.reskill.skills import Bundle


class SkillEvolution(OnlineSampler):
    """Draws a version for every episode, and after the episodes were played updates the test and lets the author write.

    A version that is written in one iteration is played from the next one on. All that must survive a restart lies in the module's
    ``evolution`` and goes into its checkpoints. The bank, the decisions and a picture of them are written to the folder of the run.
    """

    def on_fit_start(self, trainer: pl.Trainer, pl_module: ReSkillCoEvolver) -> None:  # type: ignore[override]
        super().on_fit_start(trainer, pl_module)
        rules, pool = pl_module.evolution.rules, trainer.datamodule.sizes["train"]  # type: ignore[attr-defined]
        writes = pl_module.hparams.author != "none"
        if writes and rules.min_reservoir > rules.reservoir:
            raise ConfigError(f"model.min_reservoir={rules.min_reservoir} is more than model.reservoir keeps")
        if writes and rules.per_task and 4 * pool < rules.min_reservoir:
            raise ConfigError(
                f"{pool} training tasks leave at most {4 * pool} episodes in the reservoir and model.min_reservoir asks for "
                f"{rules.min_reservoir}, so no skill would ever be written: set model.per_task=false"
            )
        self.author = pl_module.make_author()

    def collect(  # type: ignore[override]
        self, module: ReSkillCoEvolver, jobs: Sequence[Job], generator: torch.Generator
    ) -> tuple[list[list[Trajectory]], Facts]:
        evolution, trainer = module.evolution, module.trainer
        data, iteration = trainer.datamodule, trainer.current_epoch  # type: ignore[attr-defined]
        facts: Facts = defaultdict(list)
        share = evolution.share(np.random.default_rng([data.seed, iteration]))
        draws = np.random.default_rng([data.seed, iteration, 1 + trainer.global_rank]).random(len(jobs))
        versions = ["new" if draw < share else "old" for draw in draws]
        played = self.play(
            module,
            [replace(job, behaviour={"version": version}) for job, version in zip(jobs, versions, strict=True)],
            generator,
        )
        scored = [trajectory for trajectory in played if trajectory.reward is not None]
        experiences = _gathered([module.experience(one, data.protocol) for one in scored], trainer.world_size)
        for one in experiences if evolution.test else ():
            facts[f"success_{one.condition}"].append(float(one.success))
            facts["success_tested"].append(float(one.success))  # while a version is on trial
        decision = evolution.observe(experiences, iteration)
        if decision:
            facts["accepted"] = [float(decision.accepted)]
        self._write(module, iteration)
        facts["share_new"], facts["skills"] = [share], [float(len(evolution.bank))]
        return by_group(played), facts

    def _write(self, module: ReSkillCoEvolver, iteration: int) -> None:
        """Let the author write if it is time; on the first rank alone, since an author may be a service."""
        evolution, trainer = module.evolution, module.trainer
        if evolution.ready:
            rng = random.Random(f"{trainer.datamodule.seed} {iteration} author")  # type: ignore[attr-defined]
            bundle: Bundle | None = None
            if trainer.is_global_zero:
                bundle = evolution.write(self.author, iteration, rng)
            bundle, evolution.assertions[:] = trainer.strategy.broadcast((bundle, list(evolution.assertions)))
            if bundle:
                evolution.begin(bundle, iteration)
        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._keep(module)

    def _keep(self, module: ReSkillCoEvolver) -> None:
        """Write bank and decisions to the run's folder, where they have changed."""
        from zoo.reskill.skills import save_bank

        evolution, folder = module.evolution, Path(module.trainer.default_root_dir)
        lines = "".join(json.dumps(decision.to_dict()) + "\n" for decision in evolution.history)
        path = folder / "versions.jsonl"
        if not path.exists() or path.read_text(encoding="utf-8") != lines:
            save_bank(evolution.bank, folder / "skills")
            path.write_text(lines, encoding="utf-8")

    def on_fit_end(self, trainer: pl.Trainer, pl_module: ReSkillCoEvolver) -> None:  # type: ignore[override]
        from zoo.reskill.timeline import draw_timeline

        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            folder = Path(trainer.default_root_dir)
            rows = read_metrics(folder / "metrics.csv")
            success = [(int(row["epoch"]), float(row["train/success"])) for row in rows if row.get("train/success")]
            draw_timeline(pl_module.evolution.history, success, folder / "skills.png")


def _gathered(experiences: list[Experience], world_size: int) -> list[Experience]:
    """All ranks' episodes, in the same order on every rank."""
    if world_size == 1:
        return experiences
    parts: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(parts, experiences)
    return [one for part in parts for one in part]
