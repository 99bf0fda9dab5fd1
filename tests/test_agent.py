"""AgentModule in a real, tiny fit: first ratio, learning, logging, refusals (contracts 1, 7, 9, 10, 11)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import CSVLogger

from callbacks.online_sampling import OnlineSampler
from tests.conftest import ARCHITECTURE, small_data
from tests.recording import START, same_weights, weights
from tests.recording import quiet_trainer as trainer
from tests.recording import recorder as agent
from zoo.agent import AgentModule, evaluation_scores
from zoo.errors import ConfigError
from zoo.rollout.trajectory import Job, Segment, Task, Trajectory, Turn


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_the_first_ratio_is_one_and_the_next_is_not(temperature: float, ratio: Any) -> None:
    module = agent(temperature=temperature, ratio=ratio, learning_rate=1e-2)
    trainer(max_epochs=1).fit(module, datamodule=small_data(minibatches=1, epochs=3, group_size=8))
    first, *later = module.steps
    assert first["train/ratio"] == pytest.approx(1, abs=1e-4)
    assert first["train/clipped"] == 0
    assert all(abs(step["train/ratio"] - 1) > 1e-4 for step in later)
    assert later[-1]["train/clipped"] > 0


def test_bf16_is_the_trainers_option_and_holds_for_sampler_and_reference_alike() -> None:
    module, data = agent(kl_coef=0.1), small_data(group_size=8)
    fit = trainer(max_epochs=1, precision="bf16-mixed")
    fit.fit(module, datamodule=data)
    assert {parameter.dtype for parameter in module.policy.parameters()} == {torch.float32}
    assert module.reference is not None
    module.policy.load_state_dict(module.reference.state_dict())
    played = module.play(data.iteration_jobs(0), 1.0, torch.Generator().manual_seed(0))
    offs: list[list[float]] = [[], [], []]
    for segment in (segment for trajectory in played for segment in trajectory.segments):
        batch = {"ids": torch.tensor([segment.ids]), "mask": torch.tensor([segment.mask])}
        sampled, wanted = torch.tensor([segment.logprobs]), batch["mask"]
        with torch.no_grad():
            full = module.policy.logprobs(batch["ids"], 1.0, wanted)
            with fit.precision_plugin.forward_context():
                half = module.policy.logprobs(batch["ids"], 1.0, wanted)
        for off, scored in zip(offs, (half, module.reference_logprobs(batch), full), strict=True):
            off += (scored - sampled)[wanted].abs().tolist()
    means = [sum(off) / len(off) for off in offs]
    assert max(means[:2]) < means[2] / 3  # bf16 against bf16 differs by the order of sums only


def test_a_fit_changes_the_policy_keeps_the_reference_and_logs(tmp_path: Path) -> None:
    module, data = agent(kl_coef=0.01, learning_rate=1e-3), small_data(minibatches=3, group_size=8)
    fit = trainer(default_root_dir=tmp_path, logger=CSVLogger(tmp_path), limit_val_batches=1, log_every_n_steps=1)
    fit.fit(module, datamodule=data)
    assert module.reference is not None
    moved = weights(module)
    assert all(not torch.equal(moved[name], value) for name, value in module.reference.state_dict().items())
    assert fit.global_step == len(module.steps) == 2 * 3
    metrics = {name: float(value) for name, value in fit.callback_metrics.items()}
    for name in ("success", "reward", "turns", "rows", "dropped", "groups_mixed", "loss", "kl", "entropy", "ratio"):
        assert f"train/{name}" in metrics
    assert metrics["train/episodes"] == 2 * 4 * 8
    assert 0 < metrics["train/groups_mixed"] <= 1
    assert metrics["train/finish_answered"] == 1
    assert {"val/success", "val/reward", "val/turns", "val/tokens", "val/dropped"} <= metrics.keys()
    assert module.steps[0]["train/kl"] == pytest.approx(0, abs=1e-6)
    assert module.steps[-1]["train/kl"] > 1e-6


def test_training_opens_the_lock() -> None:
    """The one check that the signs are right: success rises from chance to near certainty."""
    module = agent(learning_rate=1e-3)
    data = small_data(tasks_per_iteration=16, group_size=8, val_tasks=100, seed=3)
    fit = trainer(max_epochs=15, limit_val_batches=1.0, check_val_every_n_epoch=15)
    (before,) = trainer().test(module, datamodule=data, verbose=False)
    fit.fit(module, datamodule=data)
    assert before["test/success"] < 0.5
    assert float(fit.callback_metrics["val/success"]) > 0.9


def test_validation_does_not_shift_training() -> None:
    runs = []
    for changes in ({}, {"limit_val_batches": 1.0, "check_val_every_n_epoch": 1}):
        torch.manual_seed(0)
        module = agent(eval_temperature=1.0, eval_samples=2)
        trainer(max_epochs=3, **changes).fit(module, datamodule=small_data(seed=1))
        runs.append((module.steps, weights(module)))
        assert module.training and module.policy.training
    (plain, one), (validated, other) = runs
    assert plain == validated  # bit for bit
    assert same_weights(one, other)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.75, 0.5, 0.25]),
        ("cosine", [1.0, 0.85355339, 0.5, 0.14644661]),  # (1 + cos(pi epoch / 4)) / 2
    ],
)
def test_the_learning_rate_follows_its_schedule(schedule: Any, rates: list[float]) -> None:
    seen: list[float] = []

    class Rate(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
            seen.append(trainer.optimizers[0].param_groups[0]["lr"])

    module = agent(learning_rate=2e-3, schedule=schedule)
    trainer(max_epochs=4, callbacks=[Rate()]).fit(module, datamodule=small_data(minibatches=1, seed=1))
    assert seen == pytest.approx([2e-3 * rate for rate in rates])


def test_a_schedule_needs_an_end() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.max_epochs"):
        trainer(max_epochs=-1, max_steps=2).fit(agent(schedule="linear"), datamodule=small_data())


def test_global_randomness_does_not_shift_training() -> None:
    runs = []
    for draws in (0, 5):
        torch.manual_seed(0)
        module = agent()
        fit = trainer(callbacks=[Disturbance(draws)])
        fit.fit(module, datamodule=small_data(seed=1))
        runs.append(module.steps)
    assert runs[0] == runs[1]


class Disturbance(pl.Callback):
    """Somebody else draws from the global generator while we train."""

    def __init__(self, draws: int) -> None:
        self.draws = draws

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        torch.rand(self.draws)


def test_dropout_of_a_policy_is_off_while_it_plays() -> None:
    module = agent(weights=None, architecture={**ARCHITECTURE, "attention_dropout": 0.9})
    trainer(max_epochs=1).fit(module, datamodule=small_data(minibatches=1))
    module.policy.train()
    jobs = small_data().iteration_jobs(0)
    module.trainer = trainer()
    played = module.play(jobs, 1.0, torch.Generator().manual_seed(0), world=small_data())
    segment = played[0].segments[0]
    module.policy.eval()
    with torch.no_grad():
        exact = module.policy.logprobs(torch.tensor([segment.ids]))[0]
    mask = torch.tensor(segment.mask)
    assert torch.allclose(exact[mask], torch.tensor(segment.logprobs)[mask], atol=1e-4)


def test_an_iteration_of_equal_groups_leaves_the_weights_alone() -> None:
    """A lock nobody can open: all rewards are 0, so there is no step at all, not even one of weight decay."""
    module = agent(weight_decay=0.5)
    fit = trainer(max_epochs=2, callbacks=[Remember()])
    fit.fit(module, datamodule=small_data(environment_args={"actions": 64, "steps": 8, "clues": 8}))
    remembered = fit.callbacks[0].weights  # type: ignore[attr-defined]
    assert module.steps == []
    assert float(fit.callback_metrics["train/groups_mixed"]) == 0
    assert float(fit.callback_metrics["train/rows"]) == 0
    assert same_weights(weights(module), remembered)


class Remember(pl.Callback):
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.weights = weights(pl_module)  # type: ignore[arg-type]


def frozen() -> AgentModule:
    class Frozen(AgentModule):
        def configure_model(self) -> None:
            super().configure_model()
            self.policy.requires_grad_(False)

    return Frozen(weights=START)


@pytest.mark.parametrize(
    ("module", "data", "flags", "message"),
    [
        (agent, {"group_size": 1}, {}, "data.group_size=1: .* take at least 2"),
        (frozen, {}, {}, "the policy is frozen"),
        (lambda: agent(temperature=0.0), {}, {}, "model.temperature=0: .* take a temperature above 0"),
        (agent, {}, {"accumulate_grad_batches": 2}, "Remove `Trainer.accumulate_grad_batches=2"),
        (agent, {}, {"reload_dataloaders_every_n_epochs": 1}, "trainer.reload_dataloaders_every_n_epochs"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*does not have any.*")
def test_what_cannot_learn_is_refused(module: Any, data: dict[str, Any], flags: dict[str, Any], message: str) -> None:
    played: list[Any] = []
    with pytest.raises((ConfigError, ValueError, MisconfigurationException), match=message):
        trainer(**flags, callbacks=[Watch(played)]).fit(module(), datamodule=small_data(**data))
    assert not played  # before the first episode


class Watch(OnlineSampler):
    def __init__(self, played: list[Any]) -> None:
        super().__init__()
        self.seen = played

    def play(self, *args: Any) -> Any:
        self.seen.append(args)
        return super().play(*args)


@pytest.mark.parametrize("given", [{}, {"weights": START, "architecture": dict(ARCHITECTURE)}])
def test_a_policy_has_one_origin(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"either model.weights .* or model.architecture"):
        AgentModule(**given)


def test_a_trainer_without_a_rollout_datamodule_is_refused() -> None:
    class Other(pl.LightningDataModule):
        vocabulary = ("a",)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader([1, 2])  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="needs a RolloutDataModule, not Other"):
        trainer().fit(agent(), datamodule=Other())


@pytest.mark.parametrize(
    ("name", "value"), [("max_turns", 0), ("group_size", 0), ("val_tasks", 0), ("tasks_per_iteration", 0)]
)
def test_sizes_below_one_are_refused(name: str, value: int) -> None:
    changed: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"data.{name} must be at least 1, not 0"):
        small_data(**changed)


def test_an_unknown_world_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"no gymnasium environment 'zoo/Nowhere-v0': .*zoo/"):
        small_data(environment="zoo/Nowhere-v0")


def plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(plain(item) for item in value)
    return value is None or type(value) in (str, int, float, bool)


def test_hyperparameters_are_plain() -> None:
    module = AgentModule(architecture=dict(ARCHITECTURE), lora={"r": 4, "target_modules": ["q_proj"]})
    assert plain(dict(module.hparams))
    assert not plain({"a": (1, 2)}) and not plain({"a": torch.tensor(1)})


class Whispering(AgentModule):
    """Records the behaviour of every episode, and would tell it to the policy."""

    def notes(self, job: Job, turns: Sequence[Turn], info: dict[str, Any]) -> str:
        self.heard.append(job.behaviour)  # type: ignore[operator, union-attr]
        return f"hint {job.behaviour['hint']}" if job.behaviour else ""


def test_evaluation_passes_no_behaviour() -> None:
    module = Whispering(weights=START, eval_samples=2, eval_temperature=1.0)
    module.heard = []  # type: ignore[assignment]
    data = small_data()
    fit = trainer(limit_val_batches=1.0)
    fit.test(module, datamodule=data, verbose=False)
    fit.validate(module, datamodule=data, verbose=False)
    assert module.heard == [{}] * 2 * (12 + 8)  # type: ignore[comparison-overlap]


def test_evaluation_is_repeatable_and_greedy_by_default() -> None:
    module = agent()
    data = small_data()
    first, second = (trainer().test(module, datamodule=data, verbose=False)[0] for _ in range(2))
    assert first == second
    assert first["test/turns"] >= 1
    with pytest.raises(AssertionError):
        assert first == trainer().test(agent(eval_temperature=5.0, eval_samples=3), datamodule=data, verbose=False)[0]


def test_scores_leave_failed_worlds_out() -> None:
    def ended(group: int, reward: float | None) -> Trajectory:
        info = {"success": bool(reward)}
        return Trajectory(Job(Task(0, "test"), group), [Segment.begin([3])], reward, "answered", [], info)

    episodes = [ended(0, 1.0), ended(0, 0.0), ended(1, None), ended(1, 0.0)]
    scores = evaluation_scores(episodes, samples=2)
    assert scores["success"] == [1.0, 0.0, 0.0]
    assert scores["reward"] == [1.0, 0.0, 0.0]
    assert scores["dropped"] == [0.0, 0.0, 1.0, 0.0]
    assert scores["pass@2"] == [1.0, 0.0]
    assert "pass@1" not in evaluation_scores(episodes, samples=1)


def test_the_budget_ends_training_after_the_iteration_that_spent_it() -> None:
    fit = trainer(max_epochs=50)
    fit.fit(agent(), datamodule=small_data(episode_budget=17))
    assert fit.current_epoch == 2  # 16 episodes an iteration
    assert float(fit.callback_metrics["train/episodes"]) == 32
