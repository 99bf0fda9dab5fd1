"""The short way through a network gives what the network gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.test_prefixes import TOKENIZER, network
from zoo.policy import CausalPolicy
from zoo.policy.decoding import feed, feeds
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


FEEDS = [  # tokens of two rows, padded with 0 on the left
    [[0, 0, 7, 8, 9], [3, 4, 5, 6, 7]],
    [[11], [12]],
    [[0], [13]],
    [[0, 14, 15], [0, 0, 0]],
    [[16, 17], [18, 19]],
]


def fed(model: PreTrainedModel, short: bool) -> list[torch.Tensor]:
    """Logits behind each of ``FEEDS``, for the rows that end in a token."""
    cache, seen, found = roomy_cache(model.config), torch.zeros(2, 0, dtype=torch.bool), []
    for tokens in FEEDS:
        ids = torch.tensor(tokens)
        real = ids > 0
        places = (seen.sum(1, keepdim=True) + real.cumsum(1) - 1).clamp(min=0)
        seen = torch.cat([seen, real], 1)
        if short:
            logits = feed(model, ids, places, real, seen, cache)
        else:
            inputs = {"input_ids": ids, "position_ids": places, "attention_mask": seen.long()}
            logits = model(**inputs, cache=cache, use_cache=True).logits[:, -1]
        found.append(logits[real[:, -1]])
    return found


@pytest.mark.parametrize(("model_type", "changes"), KNOWN, ids=lambda value: str(value))
@torch.no_grad()
def test_logits_are_those_of_the_model(model_type: str, changes: dict[str, Any]) -> None:
    model = network(model_type, **changes)
    for parameter in model.parameters():  # biases and norms begin at 0 and 1, which hides that they are used
        if parameter.dim() == 1:
            parameter.copy_(torch.linspace(0.5, 1.5, len(parameter)))
    assert feeds(model)
    for mine, theirs in zip(fed(model, short=True), fed(model, short=False), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)  # norms of the model are in fp32


@pytest.mark.parametrize(("model_type", "changes"), OTHERS, ids=lambda value: str(value))
def test_other_families_are_left_to_themselves(model_type: str, changes: dict[str, Any]) -> None:
    assert not feeds(network(model_type, **changes))


def test_adapters_are_left_to_themselves() -> None:
    peft = pytest.importorskip("peft")
    model = network()
    assert not feeds(peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"])))
    assert not feeds(model)  # its layers have been replaced


def test_subclasses_and_hooks_are_left_to_themselves() -> None:
    model = network()
    kind = type("Steered", (type(model),), {"__module__": __name__})
    assert not feeds(kind(model.config))
    handle = model.model.layers[1].register_forward_hook(lambda module, inputs, output: None)
    assert not feeds(model)
    handle.remove()
    assert feeds(model)


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
        assert direct == (not calls)
    assert [reply.ids for reply in written[0]] == [reply.ids for reply in written[1]]
    assert sum(len(reply.ids) for reply in written[0]) > 6
