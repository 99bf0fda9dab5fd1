"""ECHO as a LightningModule (Xie et al., "ECHO: Prune to act, trace to learn", arXiv 2606.31650)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from zoo.agent import AgentModule, Facts, Group
from zoo.echo.credit import Rule, graph_weights, rollout_advantages, token_weights, turn_graph
from zoo.errors import ConfigError
from zoo.registry import register_model
from zoo.rollout.trajectory import Boundary, Row, Segment, Trajectory

OVERLONG = ("overlong", "max_turns")  # ends that say nothing but that the episode was long


@register_model
class ECHOAgent(AgentModule):
    """GRPO over episodes of several contexts, with credit only for what the final context was built from.

    How the context is bounded is the datamodule's ``context``; the paper's is :class:`zoo.rollout.memory.SelectiveMemory`. An
    episode leaves one row per segment. A rollout that did better than its group is reinforced on its final segment, on the
    actions and findings of the turns whose records stood in the last reconstructed context, and on every selection; nothing
    else is changed (paper: Ã_q = max(A, 0) μ_q). SUPO is ``credit: dense, sign: signed`` under a rolling summary.

    Args:
        credit: ``traced`` (the paper), ``dense`` (every written token), ``segment`` (whole segments that hold a traced turn) or
            ``graph`` (recursive weights of the later releases).
        sign: ``positive`` (the paper) or ``signed``: whether rollouts worse than their group are pushed down.
        overlong: ``mask`` (the paper): episodes that ran out of rounds or turns neither count nor teach; ``fail``: they are
            failures like others.
        gamma_turn: ``graph``: weight lost per turn of a segment.
        gamma_segment: ``graph``: weight lost per boundary.
        combine: ``graph``: how the weights of several children are put together.
        cap: ``graph``: largest weight.
        clip_high: as in :class:`zoo.agent.AgentModule`; the paper's value.
        advantage_ddof: the same; the paper takes the population's std.
        **kwargs: of :class:`zoo.agent.AgentModule`.
    """

    def __init__(
        self,
        credit: Rule = "traced",
        sign: Literal["positive", "signed"] = "positive",
        overlong: Literal["mask", "fail"] = "mask",
        gamma_turn: float = 1.0,
        gamma_segment: float = 0.9,
        combine: Literal["sum", "max"] = "sum",
        cap: float = 1.0,
        clip_high: float = 0.28,
        advantage_ddof: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(clip_high=clip_high, advantage_ddof=advantage_ddof, **kwargs)
        if self.hparams.advantage != "grpo":
            raise ConfigError("model.advantage: ECHOAgent has the paper's group statistics; leave it at grpo")
        if min(gamma_turn, gamma_segment, cap) < 0:
            raise ConfigError("model.gamma_turn, model.gamma_segment and model.cap must not be negative")

    def advantages(self, trajectories: Group) -> Tensor:
        rewards = torch.tensor([float(trajectory.reward or 0.0) for trajectory in trajectories])
        masked = torch.tensor([self._masked(trajectory) for trajectory in trajectories])
        settings = self.hparams
        return rollout_advantages(rewards * ~masked, masked, settings.advantage_ddof, settings.advantage_eps)

    def _masked(self, trajectory: Trajectory) -> bool:
        return self.hparams.overlong == "mask" and trajectory.finish in OVERLONG

    def rows(self, trajectory: Trajectory, advantage: float, index: int) -> list[Row]:
        rows = super().rows(trajectory, advantage, index)
        nothing = self._masked(trajectory) or (advantage < 0 and self.hparams.sign == "positive")
        for row, weights in zip(rows, self.weights(trajectory), strict=True):
            row["advantages"] = row["mask"] * weights * (0.0 if nothing else advantage)
        return rows

    def weights(self, trajectory: Trajectory) -> list[Tensor]:
        """Share of the advantage that every token gets, ``[length]`` per segment; see ``credit``."""
        segments, boundaries, rule = trajectory.segments, trajectory.boundaries, self.hparams.credit
        if rule == "dense":
            return [torch.ones(len(segment.ids)) for segment in segments]
        turns, selections = dict.fromkeys(trace(boundaries), 1.0), [1.0] * len(boundaries)
        if rule == "graph":
            turns, selections = self._graph(segments, boundaries, turns, selections)
        finals = [place == len(segments) - 1 for place in range(len(segments))]
        if rule == "segment":
            finals = [
                final or bool(turns.keys() & set(_turns(part))) for final, part in zip(finals, segments, strict=True)
            ]
        chosen = [*selections, 0.0][: len(segments)]
        return [
            token_weights(segment.tags, len(segment.ids), final, turns, weight)
            for segment, final, weight in zip(segments, finals, chosen, strict=True)
        ]

    def _graph(
        self,
        segments: Sequence[Segment],
        boundaries: Sequence[Boundary],
        turns: dict[int, float],
        selections: list[float],
    ) -> tuple[dict[int, float], list[float]]:
        """Recursive weights of turns and selections; the hard ones where a selection could not be read or turns form a cycle."""
        settings, members = self.hparams, [_turns(segment) for segment in segments]
        parents = turn_graph(members, [boundary.chosen for boundary in boundaries])
        weights = graph_weights(parents, settings.gamma_turn, settings.gamma_segment, settings.combine, settings.cap)
        if weights is None or not all(boundary.valid for boundary in boundaries):
            return turns, selections
        following = [part[0] if part else -1 for part in members[1:]]  # -1: nothing but the outcome
        return {t: w for t, w in weights.items() if t >= 0}, [weights.get(turn, 0.0) for turn in following]

    def credit(self, groups: Sequence[Group]) -> tuple[list[Row], Facts]:
        rows, facts = super().credit(groups)
        for group in groups:
            for name, values in memory_scores(group).items():
                facts[name] += values
        written = sum(int(row["mask"].sum()) for row in rows)
        if written:
            facts["credited"].append(sum(int((row["advantages"] != 0).sum()) for row in rows) / written)
        return rows, facts

    def episode_scores(self, trajectories: Sequence[Trajectory]) -> Facts:
        return {**super().episode_scores(trajectories), **memory_scores(trajectories)}


def trace(boundaries: Sequence[Boundary]) -> set[int]:
    """The turns in the last reconstructed context: its records and the turn carried over raw (the paper's I_src)."""
    return {*boundaries[-1].kept, boundaries[-1].turn} if boundaries else set()


def _turns(segment: Segment) -> list[int]:
    """The turns written in a segment, in order."""
    return [turn - 1 for turn in dict.fromkeys(segment.tags.get("source", [])) if turn]


def memory_scores(trajectories: Sequence[Trajectory]) -> Facts:
    """Numbers about memory, as lists whose means are wanted.

    ``repeats`` is the share of actions that were done before in the episode. Where the world tells which actions have
    answers that are needed (``info["gold"]``), ``selection_precision`` is the share of those among the chosen turns, and
    ``selection_recall`` the share of the needed answers seen so far that are in the next context; both per boundary.
    """
    scores: Facts = defaultdict(list)
    for trajectory in trajectories:
        scores["segments"].append(float(len(trajectory.segments)))
        scores["overlong"].append(float(trajectory.finish in OVERLONG))
        actions = [turn.action for turn in trajectory.turns]
        if actions:
            scores["repeats"].append(1 - len(set(actions)) / len(actions))
        gold = set(trajectory.info.get("gold", ()))
        for boundary in trajectory.boundaries if gold else ():
            if boundary.chosen:
                hits = sum(actions[turn] in gold for turn in boundary.chosen)
                scores["selection_precision"].append(hits / len(boundary.chosen))
            found = gold & set(actions[: boundary.turn + 1])
            if boundary.records and found:
                held = {actions[turn] for turn in (*boundary.kept, boundary.turn)}
                scores["selection_recall"].append(len(found & held) / len(found))
    return scores
