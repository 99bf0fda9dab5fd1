"""Packed rows score as rows alone do, and no distinct token is computed twice."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import zoo.policy.causal
from tests.conftest import ARCHITECTURE
from zoo.policy import CausalPolicy, word_policy
from zoo.policy.causal import _LogProb
from zoo.policy.prefixes import PrefixTree

SHAPE: dict[str, Any] = {
    **{key: value for key, value in ARCHITECTURE.items() if key != "model_type"},
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 23,
    "initializer_range": 0.3,
}
TOKENIZER = word_policy(dict(ARCHITECTURE), [f"w{index}" for index in range(20)]).tokenizer


def network(model_type: str = "llama", **changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 23} if model_type == "gpt2" else SHAPE
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**shape, **changes})).double().eval()


def one_by_one(model: PreTrainedModel, ids: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """The definition: every row alone, whole, in one piece."""
    scores = torch.stack([model(input_ids=row[None]).logits[0] for row in ids]).double() / temperature
    after = scores.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1)
    return torch.nn.functional.pad(after, (1, 0)) * wanted


def check(policy: CausalPolicy, twin: PreTrainedModel, ids: Tensor, wanted: Tensor) -> None:
    wanted = wanted & (torch.arange(ids.shape[1]) > 0)
    weights = torch.randn(ids.shape, generator=torch.Generator().manual_seed(0)).double()
    ours, theirs = policy.logprobs(ids, 0.7, wanted), one_by_one(twin, ids, wanted, 0.7)
    assert torch.allclose(ours, theirs, atol=1e-9)
    policy.zero_grad()
    twin.zero_grad()
    if not wanted.any():
        return
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    for mine, its in zip(policy.model.parameters(), twin.parameters(), strict=True):
        assert mine.grad is not None and its.grad is not None
        assert torch.allclose(mine.grad, its.grad, atol=1e-5)  # norms are computed in fp32


def test_the_tree_of_three_rows() -> None:
    ids = torch.tensor([[5, 6, 7, 0], [5, 6, 8, 9], [5, 6, 7, 4]])
    tree = PrefixTree.of(ids, torch.tensor([3, 4, 2]))
    spelt = [[tree.ids[node].item() for node in row] for row in tree.nodes]
    assert spelt == [[5, 6, 7, 5], [5, 6, 8, 9], [5, 6, 5, 5]]  # 0, the first node, behind a row's end
    assert sorted(zip(tree.ids.tolist(), tree.depth.tolist(), strict=True)) == [(5, 0), (6, 1), (7, 2), (8, 2), (9, 3)]
    assert tree.nodes[0, :2].tolist() == tree.nodes[1, :2].tolist() == tree.nodes[2, :2].tolist()
    assert torch.equal(ids.flatten()[tree.owners], tree.ids)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_nodes_are_the_distinct_prefixes(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(st.integers(3, 5), min_size=1, max_size=6), min_size=1, max_size=6))
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    tree = PrefixTree.of(ids, torch.tensor([len(row) for row in rows]))
    prefixes = {tuple(row[: size + 1]) for row in rows for size in range(len(row))}
    assert len(tree.ids) == len(tree.owners) == len(prefixes)
    for row, nodes in zip(rows, tree.nodes.tolist(), strict=True):
        assert [int(tree.ids[node]) for node in nodes[: len(row)]] == row
        assert [int(tree.depth[node]) for node in nodes[: len(row)]] == list(range(len(row)))
    homes = [divmod(place, width) for place in tree.owners.tolist()]
    assert [int(tree.nodes[row, place]) for row, place in homes] == list(range(len(homes)))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_rows_score_as_they_do_alone(data: st.DataObject) -> None:
    rows, width = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 8))
    tokens = st.lists(st.integers(3, 5), min_size=width, max_size=width)
    ids = torch.tensor([data.draw(tokens) for _ in range(rows)])
    wanted = torch.tensor([data.draw(st.lists(st.booleans(), min_size=width, max_size=width)) for _ in range(rows)])
    check(CausalPolicy(network(), TOKENIZER), network(), ids, wanted)


def prompts_and_replies() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 9, (6, 14), generator=generator)
    ids[1:3, :9] = ids[0, :9]
    return ids, torch.arange(14) >= torch.tensor([9, 9, 9, 4, 4, 12])[:, None]


@pytest.mark.parametrize("changes", [{}, {"sliding_window": 4}], ids=["full", "window"])
@pytest.mark.parametrize("model_type", ["mistral", "qwen3", "gpt_neox", "gpt2", "gemma2"])
def test_other_architectures(model_type: str, changes: dict[str, Any]) -> None:
    policy = CausalPolicy(network(model_type, **changes), TOKENIZER)
    assert policy.takes_prefixes is (model_type != "gemma2")  # its attention caps scores, which SDPA cannot
    check(policy, network(model_type, **changes), *prompts_and_replies())


def test_a_shared_prompt_is_computed_once() -> None:
    policy, (ids, wanted) = CausalPolicy(network(), TOKENIZER), prompts_and_replies()
    seen: list[int] = []
    layer = policy.model.model.layers[0].mlp
    with layer.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[1])):
        policy.logprobs(ids[:3], wanted=wanted[:3])
    assert 9 + 3 * 4 - 3 <= seen[0] <= 9 + 3 * 4  # the last token of a row scores nothing


def test_checkpointed_activations_see_the_same_rows() -> None:
    policy = CausalPolicy(network(), TOKENIZER)
    policy.model.gradient_checkpointing_enable()
    policy.train()
    check(policy, network(), *prompts_and_replies())


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(zoo.policy.causal, "LOGITS", 100)
    monkeypatch.setattr(zoo.policy.causal, "PIECE", 50)
    yield


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("model_type", ["llama", "gemma2", "cohere"])
def test_a_large_vocabulary_never_has_all_its_logits_at_once(model_type: str) -> None:
    policy = CausalPolicy(network(model_type), TOKENIZER)
    sizes: list[int] = []
    with policy.model.lm_head.register_forward_hook(lambda head, inputs, output: sizes.append(output.numel())):
        check(policy, network(model_type), *prompts_and_replies())
    # What these two do to logits behind their head would be lost.
    assert (max(sizes) <= 100) is (model_type == "llama")


def test_the_gradient_of_a_log_probability() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(5, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(7, (5,), generator=generator)
    assert torch.autograd.gradcheck(lambda x: _LogProb.apply(x, tokens, 0.7), logits)
    expected = (logits / 0.7).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    assert torch.allclose(_LogProb.apply(logits, tokens, 0.7), expected, atol=1e-12)


def test_sampling_through_the_same_network_is_untouched() -> None:
    model = network()
    twin = copy.deepcopy(model)
    CausalPolicy(model, TOKENIZER)
    ids = torch.tensor([[3, 4, 5], [0, 6, 7]])
    mask = torch.tensor([[1, 1, 1], [0, 1, 1]])
    assert torch.equal(
        model(input_ids=ids, attention_mask=mask).logits[:, -1], twin(input_ids=ids, attention_mask=mask).logits[:, -1]
    )
