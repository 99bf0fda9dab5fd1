"""Pure tensor maths of policy-gradient objectives: advantages of a group, clipped surrogates, KL estimators, aggregation."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

AdvantageKind = Literal["grpo", "dr_grpo", "rloo"]
KLKind = Literal["k1", "k2", "k3"]
AggregationKind = Literal["token_mean", "sequence_mean", "fixed_length"]


def group_advantages(rewards: Tensor, groups: Tensor, kind: AdvantageKind = "grpo", ddof: int = 1, eps: float = 1e-6) -> Tensor:
    count = int(groups.max()) + 1
    size = torch.zeros(count, dtype=rewards.dtype).index_add(0, groups, torch.ones_like(rewards))
    mean = torch.zeros(count, dtype=rewards.dtype).index_add(0, groups, rewards) / size
    centred = rewards - mean[groups]
    if kind == "dr_grpo":
        return centred
    if kind == "rloo":
        return centred * (size / (size - 1))[groups]
    var = torch.zeros(count, dtype=rewards.dtype).index_add(0, groups, centred**2) / (size - ddof)
    return centred / (var.sqrt()[groups] + eps)


def log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, level: Literal["token", "sequence"] = "token") -> Tensor:
    token = logprobs - old_logprobs
    if level == "token":
        return token
    mean = (token * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return mean.detach() + logprobs - logprobs.detach()


def clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None
) -> tuple[Tensor, Tensor]:
    ratio = log_ratio.clamp(-20, 20).exp()
    free = -ratio * advantages
    bound = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    loss = torch.maximum(free, bound)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)
    return loss, loss != free


def kl_estimate(logprobs: Tensor, reference: Tensor, kind: KLKind = "k3") -> Tensor:
    d = (reference - logprobs).clamp(-10, 10)
    return {"k1": -d, "k2": d**2 / 2, "k3": d.exp() - d - 1}[kind]


def aggregate(values: Tensor, mask: Tensor, kind: AggregationKind, denominator: Tensor | float) -> Tensor:
    if kind == "sequence_mean":
        values = values / mask.sum(1, keepdim=True).clamp(min=1)
    return (values * mask).sum() / denominator
