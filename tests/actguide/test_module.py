"""ActGuide's wiring: what is shown, what is replaced, what is trained (dossier tests a to g)."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from callbacks.guided_sampling import GuidedSampler
from datamodules import RolloutDataModule
from datamodules.buffer import collate
from tests.conftest import ARCHITECTURE, small_data
from zoo.actguide.module import ACTGuidePolicy
from zoo.policy import word_policy
from zoo.rollout.trajectory import Job, Trajectory

HARD = {"environment_args": {"actions": 8, "steps": 4, "clues": 8}, "max_turns": 4}


def prepared(data: RolloutDataModule, **settings: Any) -> tuple[ACTGuidePolicy, pl.Trainer]:
    """A module and a trainer that know each other, without a fit."""
    module = ACTGuidePolicy(architecture=dict(ARCHITECTURE), **settings)
    module._set_policy(word_policy(ARCHITECTURE, data.vocabulary))
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.strategy.connect(module)
    module.trainer = trainer
    trainer.datamodule = data  # type: ignore[attr-defined]
    return module, trainer


class Scripted(GuidedSampler):
    """Plays nothing: an episode succeeds from ``needed`` actions of guidance on. Records what was asked for."""

    def __init__(self, needed: int) -> None:
        super().__init__()
        self.needed, self.calls = needed, []

    def play(self, module: Any, jobs: Any, generator: Any) -> list[Trajectory]:
        self.calls.append([len(job.behaviour.get("guidance", [])) for job in jobs])
        played = []
        for index, job in enumerate(jobs):
            plan = job.behaviour.get("guidance", [])
            won = len(plan) >= self.needed and index % 2 == 0
            info = {"success": won, "action_data": ["a1", "a2", "a3", "a4"], "admissible_actions": ["a0", "a1"]}
            played.append(Trajectory(job, [], float(won), "answered", [], info))
        return played


def test_hard_groups_are_replaced_whole_and_easy_ones_kept() -> None:
    data = small_data(**HARD)
    module, _ = prepared(data)
    for needed, calls in ((0, 1), (3, 4)):
        sampler = Scripted(needed)
        groups, facts = sampler.collect(module, data.iteration_jobs(0), torch.Generator())
        assert len(sampler.calls) == calls  # needed 3 of 4: unguided, probes at 2, 3 (two of one lap), final
        shown = [{len(t.job.behaviour.get("guidance", [])) for t in group} for group in groups]
        assert shown == [{needed}] * 4  # a group is homogeneous
        assert [len(group) for group in groups] == [4] * 4
        assert facts["trigger_rate"] == [float(needed > 0)] * 4
    assert sampler.calls[1:3] == [[2] * 8, [3] * 8]
    assert facts["mean_k"] == [3.0] * 4


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"guidance": "never"}, [[0] * 16]),
        ({"strength": "full"}, [[0] * 16, [4] * 16]),
        ({"strength": 0.5}, [[0] * 16, [2] * 16]),
        ({"guidance": "always", "strength": "full"}, [[4] * 16]),
    ],
)
def test_ablations_ask_for_what_their_name_says(settings: dict[str, Any], expected: list[list[int]]) -> None:
    data = small_data(**HARD)
    module, _ = prepared(data, **settings)
    sampler = Scripted(needed=9)
    sampler.collect(module, data.iteration_jobs(0), torch.Generator())
    assert sampler.calls == expected


def guided_rows(
    module: ACTGuidePolicy, data: RolloutDataModule, guidance: list[str]
) -> tuple[Trajectory, dict[str, Any]]:
    job = Job(data.task("train", 0), 0, {"guidance": guidance} if guidance else {})
    trajectory = module.play([job], 1.0, torch.Generator().manual_seed(0))[0]
    row = module.rows(trajectory, 1.0, 0)[0]
    batch = collate([row], {0: int(row["mask"].sum())})
    return trajectory, batch


def test_unguided_rows_have_ratio_one_and_guided_ones_do_not_see_the_hint() -> None:
    data = small_data(**HARD)
    module, _ = prepared(data)
    hint = set(module.policy.tokenizer.encode("hint"))
    _, plain = guided_rows(module, data, [])
    _, measures = module.objective(plain)
    assert [float(value) for value in measures["ratio"]] == pytest.approx(
        [float(plain["minibatch_tokens"])] * 2, abs=1e-3
    )
    assert float(measures["clipped"][0]) == 0
    assert float(measures["ratio_guided"][1]) == 0
    unguided_names = measures.keys()
    trajectory, batch = guided_rows(module, data, ["a1", "a2"])
    assert not hint & set(batch["ids"][0].tolist())  # numerator and reference see the unguided prompt
    assert trajectory.turns[0].reply
    _, measures = module.objective(batch)
    assert float(measures["ratio_guided"][0]) != pytest.approx(float(batch["minibatch_tokens"]), abs=1e-2)
    assert float(measures["clipped_unguided"][1]) == 0
    assert measures.keys() == unguided_names  # or ranks would add up different things


def test_numerator_and_reference_do_not_depend_on_the_hint_but_the_denominator_does() -> None:
    data = small_data(**HARD)
    module, _ = prepared(data, kl_coef=0.1)
    trajectory, first = guided_rows(module, data, ["a1", "a2"])
    segment = trajectory.segments[0]
    assert module.reference is not None
    expected = module.policy.logprobs(first["ids"], wanted=first["mask"])
    assert torch.allclose(module.reference_logprobs(first), expected)
    # The same reply under the guided view: other log-probabilities, and those are what the sampler recorded.
    view, _ = prepared(data, view="guided")
    view.policy.load_state_dict(module.policy.state_dict())
    again, guided = guided_rows(view, data, ["a1", "a2"])
    mask = guided["mask"]
    scored = view.policy.logprobs(guided["ids"])
    assert torch.allclose(scored[mask], guided["old_logprobs"][mask], atol=1e-4)
    assert torch.equal(first["old_logprobs"][first["mask"]], guided["old_logprobs"][mask])
    assert not torch.allclose(expected[first["mask"]], scored[mask], atol=1e-2)
    assert segment.plain_prompt is None and again.segments[0].plain_prompt is not None


def test_k_zero_is_the_unguided_prompt() -> None:
    data = small_data(**HARD)
    module, _ = prepared(data)
    assert module.notes(Job(data.task("train", 0), 0, {"guidance": []}), [], {}) == ""
    assert module.notes(Job(data.task("train", 0)), [], {}) == ""


def test_no_hint_in_any_evaluation_prompt() -> None:
    data = small_data(**HARD)
    module, _ = prepared(data)
    hint = set(module.policy.tokenizer.encode("hint"))
    for trajectory in module.evaluate(data.tasks("test"), 0):
        assert not hint & set(trajectory.segments[0].ids)
        assert "action_data" not in trajectory.info  # not even known outside of training


@pytest.mark.parametrize("correction", ["none", "luffy"])
def test_options_that_force_the_ratio_touch_guided_rows_only(correction: str) -> None:
    data = small_data(**HARD)
    module, _ = prepared(data, correction=correction)
    _, batch = guided_rows(module, data, ["a1", "a2"])
    logprobs = module.policy.logprobs(batch["ids"])
    assert torch.allclose(module.old_logprobs(batch, logprobs), logprobs)
    weighted = module.token_advantages(batch, logprobs)[batch["mask"]]
    assert (weighted.unique().numel() > 1) == (correction == "luffy")
    batch["guided"] = torch.tensor([False])
    assert torch.equal(module.old_logprobs(batch, logprobs), batch["old_logprobs"])
    assert torch.equal(module.token_advantages(batch, logprobs), batch["advantages"])


def test_nonsense_settings_are_refused() -> None:
    for wrong in ({"strength": 1.5}, {"probes": 0}, {"hint_noise": 2.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ACTGuidePolicy(architecture=dict(ARCHITECTURE), **wrong)
