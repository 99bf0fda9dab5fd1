"""``python -m tests.ddp_worker RANKS FILE``: one gradient of fixed rows, then a short fit, on CPU ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch

from callbacks.online_sampling import OnlineSampler
from tests.recording import Recorder, quiet_trainer, recorder, weights
from tests.resume_worker import data
from zoo.rollout.trajectory import Row

LENGTHS = (5, 9, 12, 7, 3, 12, 8)  # into an odd number of micro-batches, so that one rank gets a silent one


def fixed_rows() -> list[Row]:
    """Rows that do not depend on the number of ranks; the third trajectory lies in two of them."""
    noise = torch.Generator().manual_seed(0)
    rows: list[Row] = []
    for place, length in enumerate(LENGTHS):
        mask = torch.rand(length, generator=noise) < 0.6
        mask[0], mask[-1] = False, True
        made: Any = {
            "ids": torch.randint(3, 100, (length,), generator=noise),
            "mask": mask,
            "old_logprobs": mask * -torch.rand(length, generator=noise) * 5,
            "advantages": mask * torch.randn((), generator=noise),
            "trajectory": torch.tensor(min(place, 5)),
        }
        rows.append(made)
    return rows


class FixedSampler(OnlineSampler):
    """Fills the buffer without playing, and keeps the gradient (Adam would hide its scale)."""

    gradient: torch.Tensor

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        trainer.datamodule.buffer.fill(fixed_rows())  # type: ignore[attr-defined]

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: Any, optimizer: Any) -> None:
        self.gradient = torch.cat([parameter.grad.flatten() for parameter in pl_module.policy.parameters()])


def fit(ranks: int, epochs: int, callbacks: Sequence[pl.Callback], **changes: Any) -> tuple[pl.Trainer, Recorder]:
    strategy = "ddp" if ranks > 1 else "auto"
    fit = quiet_trainer(
        devices=ranks, strategy=strategy, max_epochs=epochs, callbacks=list(callbacks), limit_val_batches=1.0
    )
    module, world = recorder(**changes), data()
    if epochs == 1:
        world.buffer.minibatches, world.buffer.micro_batch_tokens = 1, 16
    fit.fit(module, datamodule=world)
    return fit, module


def main(ranks: int, path: str) -> None:
    torch.set_num_threads(1)
    fixed = FixedSampler()
    _, single = fit(ranks, 1, [fixed], gradient_clip=0, aggregation="sequence_mean")
    trainer, played = fit(ranks, 2, [], kl_coef=0.05)
    buffer = trainer.datamodule.buffer  # type: ignore[attr-defined]
    torch.save(
        {
            "gradient": fixed.gradient,
            "step": weights(single),
            "step_measures": single.steps,
            "weights": weights(played),
            "measures": played.steps,
            "rows": [dict(row) for row in buffer.rows],
            "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        },
        f"{path}.{trainer.global_rank}",
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
