"""ActGuide-RL as a LightningModule (Ji et al., "Learning Agentic Policy from Action Guidance", arXiv 2605.12004)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor

from callbacks.guided_sampling import GuidedSampler
from zoo.actguide.guidance import (
    Correction,
    StrengthSearch,
    corrupt,
    fixed_strength,
    guided_denominator,
    luffy_weight,
)
from zoo.agent import AgentModule, Facts, Group, Measures, over
from zoo.registry import register_model
from zoo.rollout.trajectory import Job, Row, Task, Trajectory, Turn

GUIDED_MEASURES = (
    *("ratio_guided", "ratio_guided_p10", "ratio_guided_p50", "ratio_guided_p90"),
    *("guidance_shift", "guidance_risk"),
)


@register_model
class ACTGuidePolicy(AgentModule):
    """GRPO that asks for help only where every rollout of a task failed, and learns as if it had not been helped.

    When all unguided rollouts of a task fail, the smallest sufficient prefix of a known action sequence is searched for and
    shown in the prompt; the group is rolled out again under it. The update scores the same tokens behind the *unguided* prompt
    and divides by the probability they had under the guided one (mixed-policy objective), so nothing depends on guidance later.

    Args:
        guidance: ``fallback`` (only when a task's group failed), ``always``, or ``never`` (plain GRPO).
        strength: ``adaptive`` (bisection), ``full`` (all known actions), or a share of them between 0 and 1.
        threshold: a group has failed if no reward exceeds this.
        probes: rollouts per probe of the bisection.
        probe_budget: probes per task and visit.
        view: prompt behind which guided rollouts are learnt: ``unguided`` (the paper) or ``guided`` (ablation).
        correction: of guided rows: ``token`` (cross-view importance ratio), ``none`` (ratio 1) or ``luffy`` (shaped weight).
        luffy_gamma: gamma of the shaping.
        hint_noise: share of the known actions replaced by random ones (noise study).
        **kwargs: of :class:`zoo.agent.AgentModule`; ``ratio: sequence`` gives the sequence-level ratio.
    """

    def __init__(
        self,
        guidance: Literal["fallback", "always", "never"] = "fallback",
        strength: Literal["adaptive", "full"] | float = "adaptive",
        threshold: float = 0.0,
        probes: int = 2,
        probe_budget: int = 5,
        view: Literal["unguided", "guided"] = "unguided",
        correction: Correction = "token",
        luffy_gamma: float = 0.1,
        hint_noise: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(strength, float | int) and not 0 <= strength <= 1:
            raise ValueError(f"model.strength must be 'adaptive', 'full' or a share between 0 and 1, not {strength}")
        if probes < 1 or probe_budget < 1:
            raise ValueError("model.probes and model.probe_budget must be at least 1")
        if not 0 <= hint_noise <= 1:
            raise ValueError(f"model.hint_noise is a share between 0 and 1, not {hint_noise}")

    def sampler(self) -> pl.Callback:
        return GuidedSampler()

    def notes(self, job: Job, turns: Sequence[Turn], info: dict[str, Any]) -> str:
        actions = job.behaviour.get("guidance")
        return self.trainer.datamodule.protocol.guidance(list(enumerate(actions, 1))) if actions else ""  # type: ignore[attr-defined]

    def failed(self, group: Group) -> bool:
        """Whether no rollout was rewarded above the threshold; a group without any known reward has not failed."""
        best = max((trajectory.reward for trajectory in group if trajectory.reward is not None), default=None)
        return best is not None and best <= self.hparams.threshold

    def search(self, actions: Sequence[str]) -> StrengthSearch:
        """The search for a strength; a fixed strength is a search that is over at once."""
        strength = self.hparams.strength
        if strength == "adaptive":
            return StrengthSearch(len(actions), self.hparams.probe_budget)
        search = StrengthSearch(len(actions), 0)
        search.high = len(actions) if strength == "full" else fixed_strength(len(actions), strength)
        return search

    def action_data(self, task: Task, info: dict[str, Any]) -> list[str]:
        """The known actions of a task, with the noise of the noise study; empty if none are known."""
        actions: list[str] = info.get("action_data", [])
        if not self.hparams.hint_noise:
            return actions
        return corrupt(actions, info.get("admissible_actions") or actions, self.hparams.hint_noise, task.seed)

    def rows(self, trajectory: Trajectory, advantage: float, index: int) -> list[Row]:
        if self.hparams.view == "unguided":
            trajectory.segments = [segment.with_plain_prompt() for segment in trajectory.segments]
        rows = super().rows(trajectory, advantage, index)
        for row in rows:
            row["guided"] = torch.tensor("guidance" in trajectory.job.behaviour)  # type: ignore[typeddict-unknown-key]
        return rows

    def credit(self, groups: Sequence[Group]) -> tuple[list[Row], Facts]:
        rows, facts = super().credit(groups)
        for group in groups:
            branch = "guided" if "guidance" in group[0].job.behaviour else "unguided"
            facts[f"success_{branch}"] += [float(trajectory.success) for trajectory in group]
        return rows, facts

    def old_logprobs(self, batch: dict[str, Tensor], logprobs: Tensor) -> Tensor:
        return guided_denominator(logprobs, batch["old_logprobs"], batch["guided"], self.hparams.correction)

    def token_advantages(self, batch: dict[str, Tensor], logprobs: Tensor) -> Tensor:
        if self.hparams.correction != "luffy":
            return batch["advantages"]
        weight = luffy_weight(logprobs, batch["old_logprobs"], batch["guided"], self.hparams.luffy_gamma)
        return batch["advantages"] * weight

    def measures(self, batch: dict[str, Tensor], log_ratio: Tensor, clipped: Tensor) -> Measures:
        """Adds what tells how far guidance leads away: the ratio and clipping by branch, and the shift of whole replies.

        ``shift`` is the mean over guided replies of ``L = sum_t log pi(z_t | x) - log pi(z_t | x, g)``, ``risk`` its variance
        (the paper's off-policy risk R_k at the strengths in use).
        """
        mask, guided = batch["mask"], batch["guided"][:, None]
        measures = super().measures(batch, log_ratio, clipped)
        measures["clipped_guided"] = over(clipped, mask & guided)
        measures["clipped_unguided"] = over(clipped, mask & ~guided)
        # Ranks add up their measures, so each must name the same ones, guided rows or not.
        nothing = log_ratio.new_zeros(())
        measures |= dict.fromkeys(GUIDED_MEASURES, (nothing, nothing))
        ratios = log_ratio[mask & guided].exp()
        if len(ratios):
            count = ratios.new_tensor(len(ratios))
            quantiles = ratios.quantile(ratios.new_tensor([0.1, 0.5, 0.9])) * count
            shifts = (log_ratio * mask).sum(1)[batch["guided"]]
            replies = shifts.new_tensor(len(shifts))
            sums = [(ratios.sum(), count), *((quantile, count) for quantile in quantiles)]
            sums += [(shifts.sum(), replies), (shifts.var(unbiased=False) * replies, replies)]
            measures |= dict(zip(GUIDED_MEASURES, sums, strict=True))
        return measures
