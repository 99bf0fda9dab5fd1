"""The engine samples exactly what the trainer will score (contract 1), whatever the batch looks like."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from tests.conftest import ARCHITECTURE
from zoo.policy import CausalPolicy, word_policy
from zoo.rollout import engine as engines
from zoo.rollout.engine import Engine

WORDS = [f"w{index}" for index in range(20)]


def tiny(**changes: object) -> CausalPolicy:
    torch.manual_seed(0)
    return word_policy({**ARCHITECTURE, **changes}, WORDS).eval()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def converse(policy: CausalPolicy, prompts: list[list[int]], observations: list[list[list[int]]]) -> float:
    """Largest difference between sampled and recomputed log-probabilities over a conversation."""
    engine = Engine(policy, 0.7, seeded())
    engine.admit(prompts)
    rows, scores = [list(prompt) for prompt in prompts], [[0.0] * len(prompt) for prompt in prompts]
    for turn in observations:
        replies = engine.generate([4] * len(prompts), [[1], [4, 5]])
        engine.feed([reply.ids[-1:] + seen for reply, seen in zip(replies, turn, strict=True)])
        for row, score, reply, seen in zip(rows, scores, replies, turn, strict=True):
            row += reply.ids + seen
            score += reply.logprobs + [0.0] * len(seen)
    worst = 0.0
    for row, score in zip(rows, scores, strict=True):
        exact = policy.logprobs(torch.tensor([row]), temperature=0.7)[0]
        sampled = torch.tensor(score)
        worst = max(worst, float((exact - sampled)[sampled != 0].abs().max()))
    return worst


TOKENS = st.lists(st.integers(1, 20), max_size=5)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_logprobs_equal_the_trainers_for_ragged_prompts_and_observations(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 5))
    prompts = data.draw(st.lists(TOKENS.filter(bool), min_size=rows, max_size=rows))
    turns = data.draw(st.lists(st.lists(TOKENS, min_size=rows, max_size=rows), min_size=1, max_size=3))
    assert converse(tiny(), prompts, turns) < 1e-4


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "gemma2", "gpt_neox"])
def test_other_architectures(model_type: str) -> None:
    shape = {key: value for key, value in ARCHITECTURE.items() if key != "model_type"}
    shape |= {"num_key_value_heads": 1, "head_dim": 16, "vocab_size": 23, "initializer_range": 0.1}
    config = AutoConfig.for_model(model_type, **shape)
    policy = CausalPolicy(AutoModelForCausalLM.from_config(config), tiny().tokenizer).eval()
    assert converse(policy, [[3, 4], [5], [6, 7, 8]], [[[9], [], [10, 11]], [[], [12, 13, 14], [15]]]) < 1e-4


@torch.no_grad()
def test_a_row_does_not_depend_on_its_neighbours() -> None:
    policy = tiny()
    alone = Engine(policy, 0.0)
    alone.admit([[3, 4, 5]])
    crowd = Engine(policy, 0.0)
    crowd.admit([[7], [3, 4, 5], [9, 9, 9, 9, 9, 9, 9]])
    for _ in range(2):
        reply = alone.generate([5], [])[0]
        same = crowd.generate([2, 5, 7], [])[1]
        assert reply.ids == same.ids
        assert reply.logprobs == pytest.approx(same.logprobs, abs=1e-5)
        alone.feed([[*reply.ids[-1:], 6]])
        crowd.feed([[8], [*same.ids[-1:], 6], [8, 8, 8]])


@torch.no_grad()
def test_equal_prompts_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny()
    widths, feed = [], engines.feed
    monkeypatch.setattr(
        engines, "feed", lambda model, ids, *rest: (widths.append(len(ids)), feed(model, ids, *rest))[1]
    )
    engine = Engine(policy, 1.0, seeded())
    engine.admit([[3, 4]] * 8 + [[5]])
    assert widths == [2]
    assert engine.logits.shape[0] == 9
    assert torch.equal(engine.logits[0], engine.logits[7])


@torch.no_grad()
def test_rows_that_left_are_not_computed_and_new_ones_can_join() -> None:
    policy = tiny()
    engine = Engine(policy, 0.0)
    engine.admit([[3], [4, 5], [6]])
    first = engine.generate([3, 3, 3], [])
    engine.keep([1])
    engine.feed([first[1].ids[-1:]])
    engine.admit([[7, 8, 9, 10, 11, 12]])
    both = engine.generate([4, 4], [])
    for prompt, reply in (([4, 5, *first[1].ids], both[0]), ([7, 8, 9, 10, 11, 12], both[1])):
        fresh = Engine(policy, 0.0)
        fresh.admit([prompt])
        expected = fresh.generate([4], [])[0]
        assert reply.ids == expected.ids
        assert reply.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


@torch.no_grad()
def test_rows_forget_what_is_no_longer_in_view() -> None:
    policy = tiny()
    engine = Engine(policy, 0.0)
    prompts = [[3, 4, 5, 6, 7, 8], [9, 10], [11, 12, 13]]
    engine.admit(prompts)
    said = engine.generate([4, 2, 3], [])
    engine.keep([0, 1, 2])
    engine.forget([2, None, 1])
    engine.feed([[14, 15], [*said[1].ids[-1:], 16], [17, 18, 19, 20]])
    replies = engine.generate([5, 5, 5], [])
    for view, reply in zip(([3, 4, 14, 15], [9, 10, *said[1].ids, 16], [11, 17, 18, 19, 20]), replies, strict=True):
        fresh = Engine(policy, 0.0)
        fresh.admit([view])
        expected = fresh.generate([5], [])[0]
        assert reply.ids == expected.ids
        assert reply.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_windows_of_attention_cannot_forget() -> None:
    shape = {key: value for key, value in ARCHITECTURE.items() if key != "model_type"}
    config = AutoConfig.for_model("gemma2", **shape, head_dim=16, vocab_size=23)
    policy = CausalPolicy(AutoModelForCausalLM.from_config(config), tiny().tokenizer)
    assert not Engine(policy, 0.0).forgets
    assert Engine(tiny(), 0.0).forgets


@torch.no_grad()
def test_stop_sequences_and_caps() -> None:
    policy = tiny()
    engine = Engine(policy, 0.0)
    engine.admit([[3], [3], [3]])
    free = engine.generate([6, 6, 0], [])
    assert [len(reply.ids) for reply in free] == [6, 6, 0]
    assert not any(reply.stopped for reply in free)
    ending = free[0].ids[2:4]
    again = Engine(policy, 0.0)
    again.admit([[3], [3]])
    stopped = again.generate([6, 2], [ending])
    first = next(n for n in range(2, 7) if free[0].ids[n - 2 : n] == ending)
    assert stopped[0].ids == free[0].ids[:first]
    assert stopped[0].stopped
    assert len(stopped[1].ids) == 2


@torch.no_grad()
def test_sampling_follows_its_own_generator_and_leaves_the_global_one_alone() -> None:
    policy = tiny()

    def sample(seed: int) -> list[int]:
        engine = Engine(policy, 1.0, seeded(seed))
        engine.admit([[3]])
        return engine.generate([20], [])[0].ids

    before = torch.get_rng_state()
    assert sample(0) == sample(0)
    assert sample(0) != sample(1)
    assert torch.equal(before, torch.get_rng_state())


@torch.no_grad()
def test_samples_have_the_policys_distribution() -> None:
    policy = tiny()
    engine = Engine(policy, 2.0, seeded())
    engine.admit([[3]] * 20_000)
    expected = (engine.logits[0] / 2.0).softmax(-1)
    drawn = torch.tensor([reply.ids[0] for reply in engine.generate([1] * 20_000, [])])
    counts = torch.bincount(drawn, minlength=len(expected)) / 20_000
    assert float((counts - expected).abs().max()) < 0.02


def test_sampling_without_a_generator_and_empty_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="Generator"):
        Engine(tiny(), 1.0)
    with pytest.raises(ValueError, match="at least one token"):
        Engine(tiny(), 0.0).admit([[]])
