"""What every policy method shares. A method overrides ``notes``, ``credit``, ``rows`` or ``objective`` and little else."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torchmetrics import MeanMetric

from callbacks.online_sampling import OnlineSampler
from zoo import objectives
from zoo.checkpoints import PretrainedMixin
from zoo.errors import ConfigError
from zoo.registry import register_model
from zoo.rollout.loop import World, play
from zoo.rollout.trajectory import Job, Row, Task, Trajectory, Turn

Facts = dict[str, list[float]]
Measures = dict[str, tuple[Tensor, Tensor]]  # name -> sum, and the number of things summed
_LEAST = {
    "learning_rate": 0,
    "weight_decay": 0,
    "gradient_clip": 0,
    "temperature": 0,
    "eval_temperature": 0,
    "kl_coef": 0,
}
_LEAST |= {"clip_low": 0, "clip_high": 0, "eval_samples": 1, "loss_length": 1}
Group = list[Trajectory]


@register_model
class AgentModule(PretrainedMixin, pl.LightningModule):
    """A language-model agent trained on its own episodes by a clipped policy gradient with group-relative advantages.

    On its own this is GRPO (DeepSeekMath, arXiv 2402.03300) over multi-turn episodes.

    Args:
        weights: where the policy starts: a zoo name, a folder, a Hugging Face id, a GGUF file.
        architecture: instead of ``weights``, a transformers config for a random word-level policy over the world's vocabulary.
        lora: arguments of ``peft.LoraConfig``; trains an adapter only.
        learning_rate: of AdamW.
        schedule: the learning rate stays ``constant``, or falls to 0 over ``trainer.max_epochs``, ``linear`` or by a ``cosine``.
        weight_decay: of AdamW.
        gradient_clip: largest gradient norm; 0 for none.
        temperature: of sampling in training; log-probabilities are scaled by it on both sides.
        eval_temperature: of sampling in evaluation; 0 is greedy.
        eval_samples: episodes per evaluated task; above 1, ``pass@k`` is reported and ``eval_temperature`` must not be 0.
        advantage: ``grpo`` (mean and std), ``dr_grpo`` (mean only) or ``rloo`` (leave one out).
        advantage_ddof: degrees of freedom taken off the std of ``grpo``.
        advantage_eps: added to that std.
        ratio: importance ratio per ``token`` or per ``sequence`` (GSPO).
        clip_low: the ratio is clipped below at ``1 - clip_low``.
        clip_high: and above at ``1 + clip_high``.
        dual_clip: bound of the loss for negative advantages, as a multiple of them; ``None`` for none.
        kl_coef: weight of the KL penalty against the policy at the start; 0 keeps no reference model.
        kl_estimator: ``k1``, ``k2`` or ``k3``.
        aggregation: ``token_mean`` over the minibatch, ``sequence_mean``, or ``fixed_length`` (divided by ``loss_length``).
        loss_length: tokens per trajectory that ``fixed_length`` divides by.

    Raises:
        ConfigError: a value that makes no sense.
    """

    def __init__(
        self,
        weights: str | None = None,
        architecture: dict[str, Any] | None = None,
        lora: dict[str, Any] | None = None,
        learning_rate: float = 1e-3,
        schedule: Literal["constant", "linear", "cosine"] = "constant",
        weight_decay: float = 0.0,
        gradient_clip: float = 1.0,
        temperature: float = 1.0,
        eval_temperature: float = 0.0,
        eval_samples: int = 1,
        advantage: Literal["grpo", "dr_grpo", "rloo"] = "grpo",
        advantage_ddof: int = 1,
        advantage_eps: float = 1e-6,
        ratio: Literal["token", "sequence"] = "token",
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        dual_clip: float | None = 3.0,
        kl_coef: float = 0.0,
        kl_estimator: Literal["k1", "k2", "k3"] = "k3",
        aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = "token_mean",
        loss_length: int = 512,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        for name, least in _LEAST.items():
            if self.hparams[name] < least:
                raise ConfigError(f"model.{name} must be at least {least}, not {self.hparams[name]}")
        if eval_samples > 1 and eval_temperature == 0:
            raise ConfigError(
                f"model.eval_samples={eval_samples} greedy episodes are all equal: raise eval_temperature"
            )
        self.automatic_optimization = False  # one optimiser step per minibatch of several micro-batches
        self.allow_zero_length_dataloader_with_multiple_devices = True
        self.init_policy()
        self.scores: dict[str, MeanMetric] = {}
        # Since the last reading: Lightning keeps showing values that are not logged any more.
        self.logged: set[str] = set()

    # -- hooks of a method ------------------------------------------------------------------------------------------------

    def notes(self, job: Job, turns: Sequence[Turn], info: dict[str, Any]) -> str:
        """Text added to a prompt, from the episode's behaviour, the turns before, and what the world has told (later keys win).

        Evaluation passes no behaviour.

        There is one prompt an episode, or one wherever the context manager begins a segment.
        """
        return ""

    def credit(self, groups: Sequence[Group]) -> tuple[list[Row], Facts]:
        """Turn episodes into training rows.

        Groups are compared within themselves, over trajectories. A trajectory without reward (its world failed) is left out of
        the comparison; a group whose rewards are all equal teaches nothing and leaves no rows.

        Returns:
            The rows, and numbers worth logging: lists whose mean over all ranks is reported.
        """
        rows: list[Row] = []
        facts: Facts = defaultdict(list)
        for group in groups:
            scored = [trajectory for trajectory in group if trajectory.reward is not None]
            rewards = torch.tensor([float(trajectory.reward or 0.0) for trajectory in scored])
            facts["dropped"] += [float(trajectory.reward is None) for trajectory in group]
            mixed = len(scored) > 1 and bool((rewards != rewards[0]).any())
            facts["groups_mixed"].append(float(mixed))
            facts["groups_rewarded"].append(float(bool((rewards > 0).any())))
            advantages = self.advantages(scored) if mixed else torch.zeros(len(scored))
            if bool(advantages.any()):
                for advantage, trajectory in zip(advantages, scored, strict=True):
                    rows += self.rows(trajectory, float(advantage), len(rows))
        return rows, facts

    def advantages(self, trajectories: Group) -> Tensor:
        """Advantages of one group's trajectories, all with a reward, ``[trajectories]``."""
        settings = self.hparams
        rewards = torch.tensor([float(trajectory.reward or 0.0) for trajectory in trajectories])
        one_group = torch.zeros(len(rewards), dtype=torch.long)
        return objectives.group_advantages(
            rewards, one_group, settings.advantage, settings.advantage_ddof, settings.advantage_eps
        )

    def rows(self, trajectory: Trajectory, advantage: float, index: int) -> list[Row]:
        """The training rows of one trajectory: by default each segment, every written token with the same advantage."""
        rows = []
        for segment in trajectory.segments:
            mask = torch.tensor(segment.mask)
            rows.append(
                Row(
                    ids=torch.tensor(segment.ids),
                    mask=mask,
                    old_logprobs=torch.tensor(segment.logprobs),
                    advantages=mask * advantage,
                    trajectory=torch.tensor(index),
                )
            )
        return rows

    def objective(self, batch: dict[str, Tensor]) -> tuple[Tensor, Measures]:
        """Loss of a micro-batch as its share of the minibatch loss, and what is worth logging of it."""
        settings, mask = self.hparams, batch["mask"]
        logprobs = self.policy.logprobs(batch["ids"], settings.temperature, batch["mask"])
        shift = objectives.log_ratio(logprobs, self.old_logprobs(batch, logprobs), mask, settings.ratio)
        advantages = self.token_advantages(batch, logprobs)
        loss, clipped = objectives.clipped_surrogate(
            shift, advantages, settings.clip_low, settings.clip_high, settings.dual_clip
        )
        measures = self.measures(batch, shift.detach(), clipped)
        if settings.kl_coef:
            kl = objectives.kl_estimate(logprobs, batch["reference_logprobs"], settings.kl_estimator)
            loss = loss + settings.kl_coef * kl
            measures["kl"] = over(kl.detach(), mask)
        share = self.aggregate(loss, batch)
        return share, measures | {"loss": (share.detach(), mask.sum() / batch["minibatch_tokens"])}

    def measures(self, batch: dict[str, Tensor], log_ratio: Tensor, clipped: Tensor) -> Measures:
        """Numbers of a micro-batch worth logging."""
        mask = batch["mask"]
        return {
            "ratio": over(log_ratio.exp(), mask),
            "clipped": over(clipped, mask),
            "entropy": over(-batch["old_logprobs"], mask),  # of the behaviour policy, estimated on its own samples
        }

    def old_logprobs(self, batch: dict[str, Tensor], logprobs: Tensor) -> Tensor:
        """Denominator of the importance ratio, by default what the sampler recorded."""
        return batch["old_logprobs"]

    def token_advantages(self, batch: dict[str, Tensor], logprobs: Tensor) -> Tensor:
        """Advantages ``[rows, length]`` at the moment of the update, by default those given as credit."""
        return batch["advantages"]

    def aggregate(self, loss: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Per-token losses ``[rows, length]`` to this micro-batch's share of the minibatch loss.

        A sequence is a trajectory, in however many rows it lies.
        """
        kind = self.hparams.aggregation
        if kind == "token_mean":
            return objectives.aggregate(loss, batch["mask"], "token_mean", batch["minibatch_tokens"])
        if kind == "sequence_mean":
            loss, length = loss / batch["sequence_tokens"][:, None], 1
        else:
            length = self.hparams.loss_length
        return objectives.aggregate(loss, batch["mask"], "fixed_length", batch["minibatch_sequences"] * length)

    # -- one iteration ----------------------------------------------------------------------------------------------------

    def configure_callbacks(self) -> list[pl.Callback]:
        """The method's sampler, unless the trainer was given one."""
        given = any(isinstance(callback, OnlineSampler) for callback in self.trainer.callbacks)  # type: ignore[attr-defined]
        return [] if given else [self.sampler()]

    def sampler(self) -> pl.Callback:
        return OnlineSampler()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        trained = [parameter for parameter in self.policy.parameters() if parameter.requires_grad]
        if not trained:
            raise ConfigError("the policy is frozen: no parameter requires a gradient")
        if self.hparams.schedule != "constant" and (self.trainer.max_epochs or 0) < 1:
            raise ConfigError(f"model.schedule={self.hparams.schedule} needs trainer.max_epochs")
        return torch.optim.AdamW(trained, lr=self.hparams.learning_rate, weight_decay=self.hparams.weight_decay)

    def on_train_epoch_start(self) -> None:
        """Set the epoch's learning rate: a function of the epoch alone, so that a resumed run has the same."""
        done = self.current_epoch / (self.trainer.max_epochs or 1)
        share = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
        for optimizer in self.trainer.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.hparams.learning_rate * share[self.hparams.schedule]

    def on_train_start(self) -> None:
        self.trainer.datamodule.buffer.prefixes = self.policy.takes_prefixes  # type: ignore[attr-defined]
        # From a checkpoint made right after an epoch's last batch Lightning enters the next epoch as if that one had
        # started already: no hook would be called, nothing sampled, and an iteration would be lost.
        loop = self.trainer.fit_loop
        batches = loop.epoch_loop
        if loop.restarted_mid_epoch and batches.restarted_on_train_batch_end and batches.batch_progress.is_last_batch:
            loop.reset_restart_stage()

    def play(
        self, jobs: Sequence[Job], temperature: float, generator: torch.Generator | None, world: World | None = None
    ) -> list[Trajectory]:
        """Play one episode per job in ``world`` (the trainer's datamodule by default), without dropout."""
        training = self.policy.training
        self.policy.eval()
        try:
            world = world or self.trainer.datamodule  # type: ignore[attr-defined]
            with self._precision():
                return play(self.policy, world, jobs, temperature=temperature, generator=generator, notes=self.notes)
        finally:
            self.policy.train(training)

    def _precision(self) -> AbstractContextManager[Any]:
        """The precision that the trainer runs steps in, for what is compared with their log-probabilities."""
        return nullcontext() if self._trainer is None else self.trainer.precision_plugin.forward_context()  # type: ignore[attr-defined]

    @torch.no_grad()
    def reference_logprobs(self, batch: dict[str, Tensor]) -> Tensor:
        """Log-probabilities under the policy training started from, ``[rows, length]``."""
        policy = self.policy if self.reference is None else self.reference
        with self.policy.without_adapter(), self._precision():
            return policy.logprobs(batch["ids"], self.hparams.temperature, batch["mask"])

    def training_step(self, minibatch: list[dict[str, Tensor]], batch_idx: int) -> None:
        if not minibatch:
            return  # every group of the iteration was uniform
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        optimizer.zero_grad()
        totals: dict[str, Tensor] = {}
        strategy = self.trainer.strategy
        for index, batch in enumerate(minibatch):
            last = index == len(minibatch) - 1
            with nullcontext() if last or self.trainer.world_size == 1 else strategy.block_backward_sync():  # type: ignore[attr-defined]
                loss, measures = self.objective(batch)
                self.manual_backward(loss * self.trainer.world_size)  # ranks are averaged, shares are to be summed
            for name, (total, count) in measures.items():
                totals[name] = totals.get(name, 0) + torch.stack([total.double(), count.double()])
        if self.hparams.gradient_clip:
            self.clip_gradients(optimizer.optimizer, self.hparams.gradient_clip, "norm")
        optimizer.step()
        names = sorted(totals)
        sums = strategy.reduce(torch.stack([totals[name] for name in names]), reduce_op="sum")
        means = {
            f"train/{name}": float(total / count) for name, (total, count) in zip(names, sums, strict=True) if count
        }
        self.log_dict(means, on_step=False, on_epoch=True, batch_size=1)

    def log_dict(self, dictionary: Any, *args: Any, **kwargs: Any) -> None:
        self.logged |= set(dictionary)
        super().log_dict(dictionary, *args, **kwargs)

    # -- evaluation -------------------------------------------------------------------------------------------------------

    def validation_step(self, tasks: list[Task], batch_idx: int) -> list[Trajectory]:  # type: ignore[override]
        return self.evaluate(tasks, batch_idx)

    def test_step(self, tasks: list[Task], batch_idx: int) -> list[Trajectory]:  # type: ignore[override]
        return self.evaluate(tasks, batch_idx)

    def predict_step(self, tasks: list[Task], batch_idx: int) -> list[Trajectory]:
        """Play the tasks without any behaviour."""
        generator = torch.Generator(self.device).manual_seed(1 + batch_idx)
        jobs = [Job(task, group) for group, task in enumerate(tasks) for _ in range(self.hparams.eval_samples)]
        return self.play(jobs, self.hparams.eval_temperature, generator) if jobs else []

    def evaluate(self, tasks: list[Task], batch_idx: int) -> list[Trajectory]:
        """Play the tasks and keep the scores."""
        trajectories = self.predict_step(tasks, batch_idx)
        for name, values in self.episode_scores(trajectories).items():
            metric = self.scores.setdefault(name, MeanMetric().to(self.device))
            metric.update(torch.tensor(values, device=self.device))
        return trajectories

    def episode_scores(self, trajectories: Sequence[Trajectory]) -> Facts:
        """Lists whose means are the scores of an evaluation."""
        return evaluation_scores(trajectories, self.hparams.eval_samples)

    def on_validation_epoch_end(self) -> None:
        self._report("val")

    def on_test_epoch_end(self) -> None:
        self._report("test")

    def _report(self, stage: str) -> None:
        self.log_dict({f"{stage}/{name}": metric.compute() for name, metric in self.scores.items()})
        self.scores = {}


def over(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the values where the mask is true, and how many those are."""
    return (values * mask).sum(), mask.sum()


def evaluation_scores(trajectories: Sequence[Trajectory], samples: int) -> Facts:
    """Lists whose means are the scores. A trajectory whose world failed counts in ``dropped`` only."""
    scored = [trajectory for trajectory in trajectories if trajectory.reward is not None]
    scores: Facts = {
        "success": [float(trajectory.success) for trajectory in scored],
        "reward": [float(trajectory.reward or 0.0) for trajectory in scored],
        "turns": [float(len(trajectory.turns)) for trajectory in scored],
        "tokens": [float(trajectory.written) for trajectory in scored],
        "dropped": [float(trajectory.reward is None) for trajectory in trajectories],
    }
    if samples > 1:
        solved: dict[int, bool] = defaultdict(bool)
        for trajectory in scored:
            solved[trajectory.job.group] |= trajectory.success
        scores[f"pass@{samples}"] = [float(value) for value in solved.values()]
    return scores
