"""The training objective against TRL's GRPOTrainer: same rows, same loss, same gradient of every parameter."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from datamodules.buffer import collate
from tests.conftest import ARCHITECTURE
from zoo.agent import AgentModule
from zoo.objectives import aggregate, clipped_surrogate, group_advantages, kl_estimate, log_ratio
from zoo.policy import word_policy
from zoo.rollout.trajectory import Row

trl = pytest.importorskip("trl", reason="pip install 'agentic-zoo[bench]'")

WORDS = [f"w{index}" for index in range(20)]
LOSS_LENGTH = 12


def _near_uniform(length: int, generator: torch.Generator) -> Tensor:
    """Around log 23, the surprise of an untrained model: ratios from 0.2 to 5."""
    return 3.1 + 3 * torch.rand(length, generator=generator, dtype=torch.float64) - 1.5


def make_rows() -> list[Row]:
    """Ragged prompts and replies, with observations in between that nobody trains on."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for index, (prompt, reply) in enumerate([(3, 7), (1, 4), (5, 9), (2, 5)]):
        length = prompt + reply
        mask = torch.arange(length) >= prompt
        if reply > 5:
            mask[prompt + 2 : prompt + 4] = False  # a tool's answer
        rows.append(
            Row(
                ids=torch.randint(3, 23, (length,), generator=generator),
                mask=mask,
                old_logprobs=-_near_uniform(length, generator) * mask,
                advantages=mask.double() * [1.3, -0.7, -1.1, 0.5][index],
                trajectory=torch.tensor(index),
                reference_logprobs=-_near_uniform(length, generator),  # type: ignore[typeddict-unknown-key]
            )
        )
    return rows


def trl_inputs(rows: list[Row]) -> dict[str, Tensor]:
    """The same rows as TRL holds them: prompts padded on the left, completions on the right."""
    starts = [int(row["mask"].long().argmax()) for row in rows]
    left, right = max(starts), max(len(row["ids"]) - start for row, start in zip(rows, starts, strict=True))

    def split(name: str) -> tuple[Tensor, Tensor]:
        values = [row[name] for row in rows]  # type: ignore[literal-required]
        prompts = torch.stack([torch.cat([v.new_zeros(left - s), v[:s]]) for v, s in zip(values, starts, strict=True)])
        replies = torch.stack(
            [torch.cat([v[s:], v.new_zeros(right - len(v) + s)]) for v, s in zip(values, starts, strict=True)]
        )
        return prompts, replies

    present = [{"ids": torch.ones_like(row["ids"])} for row in rows]
    lengths = torch.tensor([len(one["ids"]) for one in present])
    prompt_mask = torch.arange(left)[None] >= left - torch.tensor(starts)[:, None]
    completion_mask = torch.arange(right)[None] < (lengths - torch.tensor(starts))[:, None]
    prompt_ids, completion_ids = split("ids")
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask.long(),
        "completion_ids": completion_ids,
        "completion_mask": completion_mask.long(),
        "tool_mask": split("mask")[1].long(),
        "old_per_token_logps": split("old_logprobs")[1],
        "ref_per_token_logps": split("reference_logprobs")[1],
        "advantages": torch.stack([row["advantages"][row["mask"]][0] for row in rows]),
        "num_items_in_batch": sum(row["mask"].sum() for row in rows),  # type: ignore[dict-item]
    }


def trl_trainer(model: Any, tokenizer: Any, folder: Path, reward: Any = lambda **_: [0.0], **settings: Any) -> Any:
    from datasets import Dataset

    arguments = trl.GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        report_to="none",
        max_completion_length=LOSS_LENGTH,
        gradient_checkpointing=False,
        use_bias_correction_kl=False,
        beta=0.0,
        **{"per_device_train_batch_size": 2, "num_generations": 2, **settings},
    )
    data = Dataset.from_dict({"prompt": ["w1", "w2"]})
    return trl.GRPOTrainer(model, reward_funcs=reward, args=arguments, train_dataset=data, processing_class=tokenizer)


def trl_loss(trainer: Any, rows: list[Row], beta: float = 0.07) -> Tensor:
    trainer.beta = beta  # set late, or the trainer makes a reference model of its own
    trainer.model.eval()
    return trainer._compute_loss(trainer.model, trl_inputs(rows))  # type: ignore[no-any-return]


def completion_logprobs(model: Any, ids: Tensor, attention: Tensor, length: int) -> Tensor:
    scores = model(input_ids=ids, attention_mask=attention).logits[:, :-1].log_softmax(-1)
    return scores.gather(-1, ids[:, 1:, None])[..., 0][:, -length:]


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize(
    ("loss_type", "aggregation"), [("grpo", "sequence_mean"), ("dr_grpo", "fixed_length"), ("dapo", "token_mean")]
)
def test_loss_and_gradient_equal_trls(loss_type: str, aggregation: str, ratio: str, tmp_path: Path) -> None:
    rows = make_rows()
    module = AgentModule(
        architecture=dict(ARCHITECTURE),
        aggregation=aggregation,  # type: ignore[arg-type]
        ratio=ratio,  # type: ignore[arg-type]
        loss_length=LOSS_LENGTH,
        clip_low=0.2,
        clip_high=0.28,
        dual_clip=3.0,
        kl_coef=0.07,
    )
    policy = word_policy({**ARCHITECTURE, "initializer_range": 0.05}, WORDS)
    policy.model.double()
    twin = copy.deepcopy(policy)
    module._set_policy(policy)
    loss, measures = module.objective(collate(rows, {index: int(row["mask"].sum()) for index, row in enumerate(rows)}))
    loss.backward()
    clip = {"epsilon": 0.2, "epsilon_high": 0.28, "delta": 3.0}
    trainer = trl_trainer(
        twin.model, twin.tokenizer, tmp_path, loss_type=loss_type, importance_sampling_level=ratio, **clip
    )
    theirs = trl_loss(trainer, rows)
    theirs.backward()
    # TRL's log-probabilities are fp32 whatever the model is; see the test below for float64 throughout
    assert float(loss.detach()) == pytest.approx(float(theirs.detach()), abs=1e-6)
    assert 0 < float(measures["clipped"][0]) < float(measures["clipped"][1])  # the case is not an empty one
    expected = dict(twin.model.named_parameters())
    for name, parameter in policy.model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, expected[name].grad, atol=1e-6, rtol=0.0), name
        assert float(parameter.grad.abs().max()) > 0


@pytest.mark.parametrize("beta", [0.0, 0.07])
@pytest.mark.parametrize(
    ("loss_type", "aggregation"), [("grpo", "sequence_mean"), ("dr_grpo", "fixed_length"), ("dapo", "token_mean")]
)
def test_objectives_alone_equal_trls(loss_type: str, aggregation: str, beta: float, tmp_path: Path) -> None:
    """The functions without a module around them; both sides get float64 log-probabilities: only rounding differs."""
    rows = make_rows()
    policy = word_policy({**ARCHITECTURE, "initializer_range": 0.05}, WORDS)
    policy.model.double().eval()
    twin, inputs = copy.deepcopy(policy), trl_inputs(rows)
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    mask = inputs["completion_mask"] * inputs["tool_mask"]

    logprobs = completion_logprobs(policy.model, ids, attention, mask.shape[1])
    shift = log_ratio(logprobs, inputs["old_per_token_logps"], mask, "token")
    loss, _ = clipped_surrogate(shift, inputs["advantages"][:, None].expand_as(shift), 0.2, 0.28, 3.0)
    if beta:
        loss = loss + beta * kl_estimate(logprobs, inputs["ref_per_token_logps"], "k3")
    whole = {"grpo": len(rows), "dr_grpo": len(rows) * LOSS_LENGTH, "dapo": int(mask.sum())}[loss_type]
    ours = aggregate(loss, mask, aggregation, whole)  # type: ignore[arg-type]
    ours.backward()

    clip = {"epsilon": 0.2, "epsilon_high": 0.28, "delta": 3.0}
    trainer = trl_trainer(twin.model, twin.tokenizer, tmp_path, loss_type=loss_type, **clip)

    def forward(model: Any, ids: Tensor, attention: Tensor, length: int, **_: Any) -> tuple[Tensor, Tensor, None]:
        values = completion_logprobs(model, ids, attention, length)
        return values, torch.zeros_like(values), None

    trainer._get_per_token_logps_and_entropies = forward
    theirs = trl_loss(trainer, rows, beta)
    theirs.backward()
    assert theirs.dtype == torch.float64
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=1e-12)
    expected = dict(twin.model.named_parameters())
    for name, parameter in policy.model.named_parameters():
        assert torch.allclose(parameter.grad, expected[name].grad, atol=1e-12, rtol=0.0), name
        assert float(parameter.grad.abs().max()) > 1e-5, (
            name
        )  # far above the tolerance: the comparison is not an empty one


@pytest.mark.parametrize(("scaling", "kind"), [("group", "grpo"), ("none", "dr_grpo")])
def test_advantages_equal_trls_scaling(scaling: str, kind: str, tmp_path: Path) -> None:
    """Advantages as TRL's trainer makes them from a reward function's values, generation replaced by fixed replies."""
    rewards = [1.0, 0.0, 0.0, 0.5, 2.0, 2.0, 1.0, 0.0, 0.5, 0.5, 0.5, 0.5]
    policy = word_policy(dict(ARCHITECTURE), WORDS)
    sizes = {"per_device_train_batch_size": 12, "num_generations": 4}
    trainer = trl_trainer(policy.model, policy.tokenizer, tmp_path, lambda **_: rewards, scale_rewards=scaling, **sizes)
    replies = [[3, 4]] * 12
    trainer._generate = lambda prompts: ([[5]] * 12, replies, None, ["w"] * 12, None, {}, None, None)
    theirs = trainer._generate_and_score_completions([{"prompt": f"w{index // 4}"} for index in range(12)])
    groups = torch.arange(3).repeat_interleave(4)
    ours = group_advantages(torch.tensor(rewards), groups, kind, eps=1e-4)  # type: ignore[arg-type]
    assert float(ours.abs().max()) > 0.5
    assert torch.allclose(ours, theirs["advantages"], atol=1e-6, rtol=0.0)
