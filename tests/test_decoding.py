"""The short way through a network gives what the network gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from tests.test_prefixes import TOKENIZER, network
from zoo.policy import CausalPolicy
from zoo.policy.decoding import decode, decodes
from zoo.rollout.cache import roomy_cache
from zoo.rollout.engine import Engine

KNOWN: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    ("mistral", {"sliding_window": None}),
    ("qwen2", {}),
    ("qwen3", {"tie_word_embeddings": False}),
]
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("mistral", {"sliding_window": 4}),
    (
        "qwen2",
        {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4, "use_sliding_window": True},
    ),
    ("gemma2", {}),
    ("gpt2", {}),
]


def fed(model: PreTrainedModel, short: bool) -> torch.Tensor:
    """Logits of the second of two tokens behind prompts of 3 and 5, the first of them left out in one row."""
    prompts, cache = torch.tensor([[0, 0, 7, 8, 9], [3, 4, 5, 6, 7]]), roomy_cache(model.config)
    seen = torch.tensor([[False, False, True, True, True], [True] * 5])
    places = (seen.cumsum(1) - 1).clamp(min=0)
    model(input_ids=prompts, attention_mask=seen.long(), position_ids=places, cache=cache, use_cache=True)
    for token, real in ((11, [True, False]), (12, [True, True])):
        seen = torch.cat([seen, torch.tensor(real)[:, None]], 1)
        ids, position = torch.tensor([token, token + 1]), seen.sum(1) - 1
        logits = step(model, ids, position, seen, cache, short)
    return logits


def step(
    model: PreTrainedModel,
    ids: torch.Tensor,
    position: torch.Tensor,
    seen: torch.Tensor,
    cache: DynamicCache,
    short: bool,
) -> torch.Tensor:
    if short:
        return decode(model, ids, position, seen, cache)
    inputs = {"input_ids": ids[:, None], "position_ids": position[:, None], "attention_mask": seen.long()}
    return model(**inputs, cache=cache, use_cache=True).logits[:, -1]


@pytest.mark.parametrize(("model_type", "changes"), KNOWN, ids=lambda value: str(value))
@torch.no_grad()
def test_logits_are_those_of_the_model(model_type: str, changes: dict[str, Any]) -> None:
    model = network(model_type, **changes)
    for parameter in model.parameters():  # biases and norms begin at 0 and 1, which hides that they are used
        if parameter.dim() == 1:
            parameter.copy_(torch.linspace(0.5, 1.5, len(parameter)))
    assert decodes(model)
    assert torch.allclose(fed(model, short=True), fed(model, short=False), atol=1e-6)  # norms of the model are in fp32


@pytest.mark.parametrize(("model_type", "changes"), OTHERS, ids=lambda value: str(value))
def test_other_families_are_left_to_themselves(model_type: str, changes: dict[str, Any]) -> None:
    assert not decodes(network(model_type, **changes))


def test_adapters_are_left_to_themselves() -> None:
    peft = pytest.importorskip("peft")
    model = network()
    assert not decodes(peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"])))
    assert not decodes(model)  # its layers have been replaced


def test_subclasses_and_hooks_are_left_to_themselves() -> None:
    model = network()
    kind = type("Steered", (type(model),), {"__module__": __name__})
    assert not decodes(kind(model.config))
    handle = model.model.layers[1].register_forward_hook(lambda module, inputs, output: None)
    assert not decodes(model)
    handle.remove()
    assert decodes(model)


def test_both_ways_write_the_same_and_the_direct_one_leaves_the_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, written, calls = CausalPolicy(network(), TOKENIZER), [], []
    forward = policy.model.forward
    monkeypatch.setattr(policy.model, "forward", lambda *args, **inputs: (calls.append(1), forward(*args, **inputs))[1])
    for direct in (True, False):
        engine = Engine(policy, 1.0, torch.Generator().manual_seed(0))
        assert engine.direct
        engine.direct = direct
        engine.admit([[3, 4, 5], [6]])
        engine.admit([[7]])
        written.append(engine.generate([9, 6, 9], [[5]]))
        assert direct == (len(calls) == 1)  # for the prompts, of which one has a single token
    assert [reply.ids for reply in written[0]] == [reply.ids for reply in written[1]]
    assert sum(len(reply.ids) for reply in written[0]) > 6
