"""Loss and gradient of 32 rows whose lengths are spread 1:8."""

from __future__ import annotations

import tempfile
from typing import Any

import torch

from benchmarks.speed.networks import network, passes
from benchmarks.speed.peers import trl_trainer
from benchmarks.speed.worker import Step
from datamodules.buffer import RolloutBuffer
from zoo.agent import AgentModule
from zoo.rollout.trajectory import Row

PEER = "the loss of trl.GRPOTrainer (dapo) on the same rows, padded, eight at a time"
VARIANTS: dict[str, dict[str, Any]] = {"1M": {"size": "1M"}, "5M": {"size": "5M"}}
ROWS, SHORTEST, LONGEST, PROMPT = 32, 64, 512, 32
LENGTHS = torch.linspace(SHORTEST, LONGEST, ROWS).long()[
    torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
]


def _rows() -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    rows = []
    for index, length in enumerate(LENGTHS.tolist()):
        mask = torch.arange(length) >= PROMPT
        old = -7 * torch.rand(length, generator=generator) * mask
        ids = torch.randint(3, 1000, (length,), generator=generator)
        reward = torch.randn((), generator=generator)
        rows.append(Row(ids=ids, mask=mask, old_logprobs=old, advantages=mask * reward, trajectory=torch.tensor(index)))
        rows[-1]["reference_logprobs"] = old  # type: ignore[typeddict-unknown-key]
    return rows


def ours(size: str) -> Step:
    module = AgentModule(architecture={"model_type": "llama"}, dual_clip=None)
    module._set_policy(network(size))
    buffer = RolloutBuffer(micro_batch_tokens=4096)  # what a core's cache holds the activations of
    buffer.fill(_rows())

    def step() -> list[torch.Tensor]:
        module.zero_grad()
        for batch in buffer.minibatch(0):
            module.objective(batch)[0].backward()
        return [one.grad for one in module.policy.parameters() if one.grad is not None]

    return step


def peer(size: str) -> Step:
    from tests.test_against_trl import trl_inputs

    policy, rows = network(size), _rows()
    trainer = trl_trainer(policy, tempfile.mkdtemp())
    trainer.current_gradient_accumulation_steps = 1
    tokens = torch.tensor(sum(int(row["mask"].sum()) for row in rows))
    parts = [{**trl_inputs(rows[at : at + 8]), "num_items_in_batch": tokens} for at in range(0, ROWS, 8)]

    def step() -> list[torch.Tensor]:
        policy.zero_grad()
        for part in parts:
            trainer._compute_loss(policy.model, part).backward()
        return [one.grad for one in policy.parameters() if one.grad is not None]

    return step


def check(size: str) -> None:
    for mine, theirs in zip(ours(size)(), peer(size)(), strict=True):  # type: ignore[arg-type, call-overload]
        assert torch.allclose(mine, theirs, atol=1e-5, rtol=1e-3), float((mine - theirs).abs().max())


def facts(size: str) -> dict[str, float]:
    """Share of the tokens that go through the network which some score needs."""
    policy, seen = network(size), []
    module = AgentModule(architecture={"model_type": "llama"}, dual_clip=None)
    module._set_policy(policy)
    buffer = RolloutBuffer(micro_batch_tokens=4096)
    buffer.fill(_rows())
    layer = policy.model.model.layers[0].mlp
    with layer.register_forward_hook(lambda layer, inputs, output: seen.append(output.shape[:-1].numel())):
        for batch in buffer.minibatch(0):
            module.objective(batch)
    return {"useful tokens": float(LENGTHS.sum() - ROWS) / sum(seen)}


def flops(size: str) -> float:
    return 3 * passes(network(size), (LENGTHS - 1).tolist(), int(LENGTHS.sum()) - ROWS * PROMPT)
