"""Log-probabilities of given tokens and their gradient, from a small body and a large vocabulary."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.speed.networks import network, passes
from benchmarks.speed.worker import Step
from zoo.policy import CausalPolicy

PEER = "TRL's selective_log_softmax on the logits of the model"
VARIANTS: dict[str, dict[str, Any]] = {
    "1k": {"vocabulary": 1024},
    "49k": {"vocabulary": 49152},
    "152k": {"vocabulary": 151936},
}
ROWS, LENGTH, PROMPT = 8, 192, 64
SCORED = ROWS * (LENGTH - PROMPT)


def _inputs(vocabulary: int) -> tuple[CausalPolicy, torch.Tensor, torch.Tensor]:
    ids = torch.randint(3, vocabulary, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    return network("1M", vocabulary), ids, (torch.arange(LENGTH) >= PROMPT).expand(ROWS, -1)


def ours(vocabulary: int) -> Step:
    policy, ids, wanted = _inputs(vocabulary)

    def step() -> list[torch.Tensor]:
        policy.zero_grad()
        scores = policy.logprobs(ids, 0.9, wanted)[:, PROMPT:]
        scores.square().mean().backward()
        return [scores.detach(), *(one.grad for one in policy.parameters() if one.grad is not None)]

    return step


def peer(vocabulary: int) -> Step:
    from trl.trainer.utils import selective_log_softmax

    policy, ids, _ = _inputs(vocabulary)

    def step() -> list[torch.Tensor]:
        policy.zero_grad()
        logits = policy.model(input_ids=ids, logits_to_keep=LENGTH - PROMPT + 1, use_cache=False).logits[:, :-1]
        scores = selective_log_softmax(logits, ids[:, PROMPT:], temperature=0.9)
        scores.square().mean().backward()
        return [scores.detach(), *(one.grad for one in policy.parameters() if one.grad is not None)]

    return step


def check(vocabulary: int) -> None:
    for mine, theirs in zip(ours(vocabulary)(), peer(vocabulary)(), strict=True):  # type: ignore[arg-type, call-overload]
        assert torch.allclose(mine, theirs, atol=1e-4, rtol=1e-3), float((mine - theirs).abs().max())


def flops(vocabulary: int) -> float:
    return 3 * passes(network("1M", vocabulary), [LENGTH] * ROWS, SCORED)
