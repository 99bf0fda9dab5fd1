"""Who gets the credit for an episode: ECHO's rules (Xie et al., arXiv 2606.31650). Tensors and numbers only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

Rule = Literal["traced", "dense", "segment", "graph"]
OUTCOME = -1  # the episode's end, as a node of the graph


def rollout_advantages(rewards: Tensor, masked: Tensor, ddof: int = 0, eps: float = 1e-6) -> Tensor:
    """Group-relative advantages over the rollouts that count.

    Args:
        rewards: ``[rollouts]`` of one group.
        masked: ``[rollouts]``, true where a rollout was overlong. Those get advantage 0 and do not enter mean and std; if
            exactly one rollout is left, statistics are over the whole group with the overlong ones as 0.
        ddof: taken off the degrees of freedom of the std; the paper's is 0.
        eps: added to the std, and the std below which a group has no differences.

    Returns:
        ``[rollouts]``: ``(reward - mean) / (std + eps)``.
    """
    counted = ~masked
    advantages = torch.zeros_like(rewards)
    if not bool(counted.any()):
        return advantages
    base = rewards[counted] if int(counted.sum()) > 1 else rewards * counted
    if len(base) <= ddof:
        return advantages
    spread = base.std(unbiased=False) if ddof == 0 else base.std(correction=ddof)
    if spread <= eps:
        return advantages
    return torch.where(counted, (rewards - base.mean()) / (spread + eps), advantages)


def token_weights(
    tags: Mapping[str, Sequence[int]],
    length: int,
    final: bool,
    turns: Mapping[int, float],
    selection: float = 1.0,
) -> Tensor:
    """Share of the advantage that each token of a segment gets (the paper's hard mask mu_q where all weights are 1).

    Args:
        tags: ``source``, ``finding`` (1 + turn, 0 for none) and ``selection`` of each token; an absent one is all 0.
        length: tokens of the segment.
        final: whether the segment is the last of a rollout that came to its end: every token gets 1.
        turns: weight of every credited turn, for its action and its finding.
        selection: weight of the tokens that chose records at the end of this segment.

    Returns:
        ``[length]``, 0 on all other tokens.
    """
    if final:
        return torch.ones(length)
    weights = torch.zeros(length)
    table = torch.zeros(2 + max(turns, default=0))
    for turn, weight in turns.items():
        table[turn + 1] = weight
    for name in ("source", "finding"):
        if name in tags:
            turn_of = torch.tensor(tags[name])
            weights = weights.maximum(torch.where(turn_of < len(table), table[turn_of.clamp(max=len(table) - 1)], 0.0))
    if "selection" in tags:
        weights = weights.maximum(torch.tensor(tags["selection"]) * selection)
    return weights


def turn_graph(turns: Sequence[Sequence[int]], chosen: Sequence[Collection[int]]) -> dict[int, list[tuple[int, str]]]:
    """Which turns each turn had in view, as the later releases define it ("ECHO-Graph").

    Args:
        turns: the turns of each segment, in order; the last segment is the final one.
        chosen: the turns the policy chose at the boundary behind each segment but the last.

    Returns:
        For every turn and :data:`OUTCOME`: its parents with the type of the edge. Inside a segment that is the previous turn
        (``turn``); for the first turn of a later segment the chosen ones (``segment``).
    """
    parents: dict[int, list[tuple[int, str]]] = {}
    for index, members in enumerate([*turns[:-1], [*turns[-1], OUTCOME]]):
        for place, turn in enumerate(members):
            if place:
                parents[turn] = [(members[place - 1], "turn")]
            else:
                parents[turn] = [(source, "segment") for source in chosen[index - 1]] if index else []
    return parents


def graph_weights(
    parents: Mapping[int, Sequence[tuple[int, str]]],
    gamma_turn: float = 1.0,
    gamma_segment: float = 0.9,
    combine: Literal["sum", "max"] = "sum",
    cap: float = 1.0,
) -> dict[int, float] | None:
    """Weights by recursion from the outcome back through the graph.

    ``w(outcome) = 1`` and ``w(i) = min(cap, sum or max over children c of gamma(i -> c) w(c))``, over the children from which
    the outcome can be reached.

    Returns:
        The weight of every turn that reaches the outcome, or ``None`` if the graph has a cycle: use the hard mask then.
    """
    gammas = {"turn": gamma_turn, "segment": gamma_segment}
    weights: dict[int, float] = {OUTCOME: 1.0}
    waiting = _children_left(parents)
    ready = [OUTCOME]
    sums: dict[int, float] = {}
    while ready:
        child = ready.pop()
        weights[child] = 1.0 if child == OUTCOME else min(cap, sums[child])
        for parent, kind in parents.get(child, ()):
            share = gammas[kind] * weights[child]
            sums[parent] = sums.get(parent, 0.0) + share if combine == "sum" else max(sums.get(parent, 0.0), share)
            waiting[parent] -= 1
            if not waiting[parent]:
                ready.append(parent)
    return None if any(waiting.values()) else weights


def _children_left(parents: Mapping[int, Sequence[tuple[int, str]]]) -> dict[int, int]:
    """For every node that reaches the outcome, how many of its children do."""
    reached, queue = {OUTCOME}, [OUTCOME]
    counts: dict[int, int] = {}
    while queue:
        for parent, _ in parents.get(queue.pop(), ()):
            counts[parent] = counts.get(parent, 0) + 1
            if parent not in reached:
                reached.add(parent)
                queue.append(parent)
    return counts
