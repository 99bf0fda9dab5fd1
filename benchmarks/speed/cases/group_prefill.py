"""From prompts to the first sampled token: one prompt, told to the policy once for a group of G."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

from benchmarks.speed.networks import network, passes
from benchmarks.speed.worker import Step
from zoo.rollout.engine import Engine

PEER = "a forward pass over G copies of the prompt"
VARIANTS: dict[str, dict[str, Any]] = {
    f"{length} tokens, G = {group}": {"length": length, "group": group} for length in (64, 1024) for group in (4, 8, 16)
}


def _prompt(length: int) -> list[int]:
    return torch.randint(3, 4096, (length,), generator=torch.Generator().manual_seed(0)).tolist()


def ours(length: int, group: int) -> Step:
    policy, prompt = network("5M").eval(), _prompt(length)

    @torch.no_grad()
    def step() -> torch.Tensor:
        engine = Engine(policy, 0.0)
        engine.admit([prompt] * group)
        return engine.logits

    return step


def peer(length: int, group: int) -> Step:
    policy, ids = network("5M").eval(), torch.tensor([_prompt(length)] * group)

    @torch.no_grad()
    def step() -> torch.Tensor:
        cache = DynamicCache(config=policy.model.config)
        return policy.model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1]

    return step


def check(length: int, group: int) -> None:
    assert torch.allclose(ours(length, group)(), peer(length, group)(), atol=1e-4)  # type: ignore[arg-type]


def flops(length: int, group: int) -> float:
    return passes(network("5M"), [length], 1)
