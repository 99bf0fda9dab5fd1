"""ACT as a LightningModule (Liu et al., "Agentic Critical Training", arXiv 2603.08706, version 2)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import lightning.pytorch as pl

from callbacks.action_pairs import ActionPairWriter
from zoo.act.judgment import Worth, decision_reward
from zoo.agent import AgentModule, Facts, Group
from zoo.registry import register_model
from zoo.rollout.trajectory import Row, Trajectory


@register_model
class ACTCritic(AgentModule):
    """GRPO on single decisions at an expert's states, rewarded by whether the expert's action was taken.

    Which decision is asked for is the datamodule's (:class:`datamodules.ActionPairDataModule`): with ``ask: choice`` this is the
    critic stage, in which the policy is shown the expert's action and its own alternative and says which is better; with
    ``ask: action`` it is the RL stage on expert states. What it thinks before it decides is free and never scored. The same
    weights then act by plain generation. In any other world this is GRPO on episodes, with that world's reward: online RL, which
    the paper does not do. ``zoo predict`` with ``ask: action`` writes the alternatives of the policy as pairs.

    Where the paper is silent: group size, clipping, KL and rewards are settings here, with the values of common GRPO; advantages
    are per reply, divided by the group's std (dossier 1.4), and equal groups teach nothing.

    Args:
        reward_expert: R_acc, for the expert's action.
        reward_admissible: R_adm, for another admissible one.
        reward_unreadable: R_fmt, for a reply without an action.
        reward: ``decision``, or ``random`` (control): a coin's.
        **kwargs: of :class:`zoo.agent.AgentModule`.
    """

    def __init__(
        self,
        reward_expert: float = Worth().expert,
        reward_admissible: float = Worth().admissible,
        reward_unreadable: float = Worth().unreadable,
        reward: Literal["decision", "random"] = "decision",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def configure_callbacks(self) -> list[pl.Callback]:
        return [*super().configure_callbacks(), ActionPairWriter()]

    def credit(self, groups: Sequence[Group]) -> tuple[list[Row], Facts]:
        """Score the decisions, then compare them within their groups."""
        found: Facts = defaultdict(list)
        for group in groups:
            decided = [trajectory for trajectory in group if "expert" in trajectory.info]
            for place, trajectory in enumerate(decided):
                trajectory.reward = self.worth(trajectory, place)
            # Such a group teaches what is possible rather than what is right.
            values = {trajectory.reward for trajectory in decided}
            if decided:
                found["groups_without_expert"].append(
                    float(len(values) > 1 and not any(trajectory.success for trajectory in decided))
                )
            for name, scores in decision_scores(decided).items():
                found[name] += scores
        rows, facts = super().credit(groups)
        return rows, {**facts, **found}

    def worth(self, trajectory: Trajectory, place: int) -> float | None:
        """Reward of a decision; ``place`` is its number in the group."""
        if trajectory.reward is None:  # its world failed
            return None
        settings = self.hparams
        worth = Worth(settings.reward_expert, settings.reward_admissible, settings.reward_unreadable)
        if settings.reward == "random":
            return random.Random(f"{trajectory.job.task} {self.current_epoch} {place}").choice((worth.expert, 0.0))
        info = trajectory.info
        return decision_reward(decided(trajectory), info["expert"], info["admissible"], worth)

    def episode_scores(self, trajectories: Sequence[Trajectory]) -> Facts:
        found = [trajectory for trajectory in trajectories if "expert" in trajectory.info]
        scores = {**super().episode_scores(trajectories), **decision_scores(found)}
        return {**scores, **loop_scores(trajectories)} if len(found) < len(trajectories) else scores


def decided(trajectory: Trajectory) -> str | None:
    """The action of a reply, ``None`` if it holds none."""
    return trajectory.turns[-1].action if trajectory.turns else None


def loop_scores(trajectories: Sequence[Trajectory]) -> Facts:
    """Lists whose means are wanted: which turns fail, and whether the turn after a failure says the same action again.

    A turn fails where the world answers ``nothing happens``, as Household and ALFWorld do. Being caught in such loops is what the
    paper finds in imitating agents (project page, case study).
    """
    scores: Facts = {"failures": [], "repeats_after_failure": []}
    for trajectory in trajectories:
        for before, after in pairwise(trajectory.turns):
            failed = after.observation.lower().startswith("nothing happens")
            scores["failures"].append(float(failed))
            if failed:
                scores["repeats_after_failure"].append(float(after.action == before.action))
    return {name: values for name, values in scores.items() if values}


def decision_scores(trajectories: Sequence[Trajectory]) -> Facts:
    """Lists whose means are wanted: whether a reply held an action, an admissible one, and the right one by its place."""
    scores: Facts = defaultdict(list)
    for trajectory in trajectories:
        action = decided(trajectory)
        scores["readable"].append(float(action is not None))
        if "swapped" in trajectory.info:
            place = "second" if trajectory.info["swapped"] else "first"
            scores[f"success_{place}"].append(float(trajectory.success))
        else:
            scores["admissible"].append(float(action in trajectory.info["admissible"]))
    return scores
