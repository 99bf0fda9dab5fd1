"""Pure tensor maths of policy-gradient objectives: advantages of a group, importance ratios, clipping, KL, aggregation.

Log-probabilities are ``[rows, length]``; the value at ``t`` belongs to token ``t`` given the tokens before it. Masks have the same
shape and are true on trained tokens; what stands elsewhere never matters.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

AdvantageKind = Literal["grpo", "dr_grpo", "rloo"]
RatioLevel = Literal["token", "sequence"]
KLKind = Literal["k1", "k2", "k3"]
AggregationKind = Literal["token_mean", "sequence_mean", "fixed_length"]

LOG_RATIO_LIMIT, KL_LIMIT = 20.0, 10.0  # beyond these a ratio is a broken row, not information


def _known(what: str, kind: str, kinds: Any) -> None:
    if kind not in get_args(kinds):
        raise ValueError(f"unknown {what} {kind!r}: use one of {', '.join(get_args(kinds))}")


def group_advantages(
    rewards: Tensor, groups: Tensor, kind: AdvantageKind = "grpo", ddof: int = 1, eps: float = 1e-6
) -> Tensor:
    """Rewards compared within their group.

    ``grpo``: ``(r - mean) / (std + eps)`` (DeepSeekMath, arXiv 2402.03300, 4.1.2). ``dr_grpo``: ``r - mean`` (Dr. GRPO, arXiv
    2503.20783). ``rloo``: ``r`` minus the mean of the others (RLOO, arXiv 2402.14740), which is ``n / (n - 1)`` times the latter.

    Args:
        rewards: ``[trajectories]``; statistics are over trajectories, in however many rows or turns they lie.
        groups: ``[trajectories]`` non-negative group numbers.
        kind: which comparison.
        ddof: degrees of freedom taken off the variance of ``grpo``: 1 for the sample std, 0 for the population std.
        eps: added to that std.

    Returns:
        ``[trajectories]``, exactly 0 where all rewards of a group are equal, and for a group of one.

    Raises:
        ValueError: an unknown ``kind``; a reward that is not finite; a failed verification is no reward and must be left out.
    """
    _known("advantage", kind, AdvantageKind)
    if not bool(rewards.isfinite().all()):
        index = int((~rewards.isfinite()).nonzero()[0])
        raise ValueError(f"rewards[{index}] is {float(rewards[index])}: leave trajectories without a reward out")
    count = int(groups.max()) + 1 if len(groups) else 0
    zeros = rewards.new_zeros(count)
    size = zeros.index_add(0, groups, torch.ones_like(rewards))
    centred = rewards - (zeros.index_add(0, groups, rewards) / size)[groups]
    lowest = zeros.scatter_reduce(0, groups, rewards, "amin", include_self=False)
    highest = zeros.scatter_reduce(0, groups, rewards, "amax", include_self=False)
    if kind == "rloo":
        scaled = centred * (size / (size - 1).clamp(min=1))[groups]
    elif kind == "grpo":
        variance = zeros.index_add(0, groups, centred**2) / (size - ddof).clamp(min=1)
        scaled = centred / (variance.sqrt()[groups] + eps)
    else:
        scaled = centred
    # The mean of equal floats need not be that float: say exactly 0, not a rounding error over eps.
    return torch.where((lowest == highest)[groups], torch.zeros_like(scaled), scaled)


def log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, level: RatioLevel = "token") -> Tensor:
    """Log of the importance ratio of every token, ``[rows, length]``.

    ``sequence`` gives all tokens of a row the geometric mean of their ratios, with the gradient flowing through each token's own
    log-probability (GSPO, arXiv 2507.18071, GSPO-token).
    """
    _known("ratio", level, RatioLevel)
    difference = logprobs - old_logprobs
    if level == "token":
        return difference
    trained = mask.sum(1, keepdim=True).clamp(min=1)
    mean = torch.where(mask.bool(), difference, torch.zeros_like(difference)).sum(1, keepdim=True) / trained
    return mean.detach() + logprobs - logprobs.detach()


def clipped_surrogate(
    log_ratio: Tensor,
    advantages: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Loss ``-min(r A, clip(r, 1 - low, 1 + high) A)`` per token (PPO, arXiv 1707.06347, eq. 7; DAPO's two bounds).

    Args:
        log_ratio: ``[rows, length]``.
        advantages: ``[rows, length]``, constants.
        clip_low: lower bound is ``1 - clip_low``.
        clip_high: upper bound is ``1 + clip_high``.
        dual_clip: for negative advantages the loss is at most ``-dual_clip * A`` (arXiv 1912.09729).

    Returns:
        The loss, and where a bound took the gradient away.
    """
    ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    free, bounded = -ratio * advantages, -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    loss = torch.maximum(free, bounded)
    clipped = bounded > free
    if dual_clip is not None:
        ceiling = -dual_clip * advantages
        above = (advantages < 0) & (loss > ceiling)
        loss, clipped = torch.where(above, ceiling, loss), clipped | above
    return loss, clipped


def kl_estimate(logprobs: Tensor, reference_logprobs: Tensor, kind: KLKind = "k3") -> Tensor:
    """Estimates of ``KL(policy || reference)`` per token, on the policy's samples (Schulman, "Approximating KL divergence", 2020).

    With ``d = log reference - log policy``: ``k1 = -d`` (unbiased, may be negative), ``k2 = d^2 / 2``, ``k3 = exp(d) - d - 1``
    (unbiased, never negative). ``d`` is clamped so that a broken row stays finite; the value is not, as that would take the
    gradient from just those tokens that have strayed furthest.
    """
    _known("KL", kind, KLKind)
    difference = (reference_logprobs - logprobs).clamp(-KL_LIMIT, KL_LIMIT)
    if kind == "k1":
        return -difference
    return difference**2 / 2 if kind == "k2" else difference.exp() - difference - 1


def aggregate(values: Tensor, mask: Tensor, kind: AggregationKind, denominator: Tensor | float) -> Tensor:
    """Share of a micro-batch in the mean over its whole minibatch; the shares of all micro-batches add up to the mean.

    Args:
        values: ``[rows, length]``.
        mask: ``[rows, length]``.
        kind: ``token_mean`` (DAPO, arXiv 2503.14476), ``sequence_mean`` (mean over the tokens of each row first, GRPO), or
            ``fixed_length`` (Dr. GRPO).
        denominator: of the whole minibatch, over all micro-batches and ranks: trained tokens, rows, or rows x length.
    """
    _known("aggregation", kind, AggregationKind)
    kept = torch.where(mask.bool(), values, torch.zeros_like(values))
    if kind == "sequence_mean":
        kept = kept / mask.sum(1, keepdim=True).clamp(min=1)
    return kept.sum() / denominator


def preference_loss(margin: Tensor, beta: float) -> Tensor:
    """DPO (arXiv 2305.18290, equation 7): ``-log sigmoid(beta margin)``, ``[pairs]``.

    Args:
        margin: ``[pairs]`` log-ratio between policy and reference, summed over a reply's tokens, of the preferred reply less that
            of the other.
        beta: how much a step away from the reference counts.
    """
    return -torch.nn.functional.logsigmoid(beta * margin)
