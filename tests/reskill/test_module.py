"""ReSkill in training: what is played, credited and kept (dossier 6.7)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from callbacks.skill_evolution import SkillEvolution
from tests.conftest import small_data
from tests.recording import quiet_trainer, same_weights, weights
from tests.reskill import doors
from tests.reskill.doors import data, evolver
from zoo.agent import AgentModule
from zoo.cards import read_card
from zoo.errors import ConfigError
from zoo.reskill.module import ReSkillCoEvolver
from zoo.reskill.skills import Add, Bank, Skill, load_bank
from zoo.rollout.protocol import WordProtocol
from zoo.rollout.trajectory import Trajectory

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return doors.warm_start(tmp_path_factory.mktemp("start"))


class Recording(SkillEvolution):
    """Remembers every iteration's episodes, and the evolution's state before and after them."""

    def __init__(self) -> None:
        super().__init__()
        self.iterations: list[tuple[dict[str, Any], list[Trajectory], dict[str, Any]]] = []

    def collect(self, module: Any, jobs: Any, generator: Any) -> Any:
        before = module.evolution.state()
        groups, facts = super().collect(module, jobs, generator)
        self.iterations.append((before, [one for group in groups for one in group], module.evolution.state()))
        return groups, facts


def fitted(
    start: Path, epochs: int = 8, folder: Path | None = None, **changes: Any
) -> tuple[ReSkillCoEvolver, Recording]:
    torch.manual_seed(0)
    module, sampler = evolver(start, **changes), Recording()
    fit = quiet_trainer(max_epochs=epochs, callbacks=[sampler], default_root_dir=folder)
    fit.fit(module, datamodule=data())
    return module, sampler


@pytest.fixture(scope="module")
def run(start: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[ReSkillCoEvolver, Recording, Path]:
    folder = tmp_path_factory.mktemp("run")
    return *fitted(start, folder=folder), folder


def names(records: Sequence[dict[str, Any]] | None) -> list[str]:
    return [record["name"] for record in records or ()]


def shown(trajectory: Trajectory, module: ReSkillCoEvolver) -> list[str]:
    """The skills' sections of an episode's prompts."""
    texts = [module.policy.tokenizer.decode(one.ids[: one.prompt_length]) for one in trajectory.segments]
    return [text.partition("skills ")[2].removesuffix(" .") for text in texts]


def test_every_episode_is_played_under_the_version_it_was_given(run: tuple[ReSkillCoEvolver, Recording, Path]) -> None:
    module, sampler, _ = run
    versions = set()
    for before, trajectories, _ in sampler.iterations:
        banks = {
            "old": Bank.from_records(before["bank"]),
            "new": Bank.from_records(before["candidate"] or before["bank"]),
        }
        for trajectory in trajectories:
            version = trajectory.job.behaviour["version"]
            versions.add((version, before["candidate"] is not None))
            expected = " ".join(skill.action for skill in banks[version].skills)  # all of them are shown always
            assert shown(trajectory, module) == [expected] * len(trajectory.turns)
    assert versions == {("old", False), ("old", True), ("new", True)}


def test_a_version_written_in_a_step_is_not_seen_in_that_step(run: tuple[ReSkillCoEvolver, Recording, Path]) -> None:
    _, sampler, _ = run
    begun = [(before, after) for before, _, after in sampler.iterations if before["candidate"] != after["candidate"]]
    assert any(after["candidate"] for _, after in begun)
    first = next(n for n, (_, _, after) in enumerate(sampler.iterations) if after["candidate"])
    assert {one.job.behaviour["version"] for one in sampler.iterations[first][1]} == {"old"}
    assert {one.job.behaviour["version"] for one in sampler.iterations[first + 1][1]} == {"old", "new"}


def test_groups_hold_both_versions_and_share_one_baseline(run: tuple[ReSkillCoEvolver, Recording, Path]) -> None:
    module, sampler, _ = run
    _, trajectories, _ = sampler.iterations[3]
    groups = [[one for one in trajectories if one.job.group == group] for group in range(4)]
    mixed = [group for group in groups if len({one.job.behaviour["version"] for one in group}) == 2]
    mixed = [group for group in mixed if len({one.reward for one in group}) == 2]
    assert mixed
    for group in mixed:
        rewards = torch.tensor([float(one.reward or 0) for one in group])
        rows, _ = module.credit([group])
        expected = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        turns = [advantage for one, advantage in zip(group, expected, strict=True) for _ in one.turns]
        assert [float(row["advantages"].abs().max()) for row in rows] == pytest.approx([abs(float(x)) for x in turns])


def test_rows_are_trained_on_the_prompts_that_were_used(
    run: tuple[ReSkillCoEvolver, Recording, Path], start: Path
) -> None:
    """Contract 1: before the first step the trainer's log-probabilities are the sampler's, skills in the prompt included."""
    skill = Skill("try-red", "", "go red", trigger="action_pattern", pattern="^go red")
    module = evolver(start, skills=[skill.to_dict()], author="none", author_args=None)
    fit = quiet_trainer(max_epochs=1)
    kept: list[Any] = []
    module.objective = lambda batch: kept.append(batch) or AgentModule.objective(module, batch)  # type: ignore[assignment, func-returns-value]
    fit.fit(module, datamodule=data(minibatches=1))
    fresh = evolver(start)
    for batch in kept:
        logprobs = fresh.policy.logprobs(batch["ids"], 1.0, batch["mask"])
        assert torch.allclose(logprobs * batch["mask"], batch["old_logprobs"], atol=1e-4)
    texts = [module.policy.tokenizer.decode(ids) for batch in kept for ids in batch["ids"]]
    assert any("skills go red ." in text for text in texts) and not all("skills" in text for text in texts)


def test_no_episode_is_played_for_a_test(run: tuple[ReSkillCoEvolver, Recording, Path], start: Path) -> None:
    """The rollout counter is that of plain GRPO, and so are the tasks."""
    _, sampler, _ = run
    plain = AgentModule(weights=str(start), learning_rate=1e-3)
    fit = quiet_trainer(max_epochs=8)
    fit.fit(plain, datamodule=data())
    (counter,) = (one for one in fit.callbacks if hasattr(one, "episodes"))  # type: ignore[attr-defined]
    assert counter.episodes == sampler.episodes == 8 * 4 * 6
    assert all(len(trajectories) == 24 for _, trajectories, _ in sampler.iterations)


def test_counts_are_episodes_not_turns(run: tuple[ReSkillCoEvolver, Recording, Path]) -> None:
    _, sampler, _ = run
    tested = [
        (n, after["test"])
        for n, (_, _, after) in enumerate(sampler.iterations)
        if after["test"] and after["test"]["steps"]
    ]
    for n, test in tested:
        (new, old), played = test["steps"][-1], sampler.iterations[n][1]
        assert sum(new) + sum(old) == len(played)
        assert new[0] == sum(one.success for one in played if one.job.behaviour["version"] == "new")
    assert tested


def test_what_a_run_leaves(run: tuple[ReSkillCoEvolver, Recording, Path]) -> None:
    module, _, folder = run
    history = [json.loads(line) for line in (folder / "versions.jsonl").read_text().splitlines()]
    assert [one["accepted"] for one in history] == [one.accepted for one in module.evolution.history] and len(
        history
    ) == 3
    if len(module.evolution.bank):
        assert load_bank(folder / "skills") == module.evolution.bank
    assert (folder / "skills.png").exists()


def test_evaluation_shows_the_incumbent_alone(start: Path) -> None:
    module = evolver(start, skills=[{"name": "stay", "when_to_use": "", "action": "go blue"}])
    module.evolution.begin([Add(Skill("try-red", "", "go red"))], 0)
    played = quiet_trainer().predict(module, datamodule=data())
    assert played and {text for batch in played for one in batch for text in shown(one, module)} == {"go blue"}
    assert not len(module.evolution.reservoir) and not module.evolution.test.steps  # type: ignore[union-attr]


def test_the_bank_travels_with_the_weights(start: Path, tmp_path: Path) -> None:
    bank = [{"name": "stay", "when_to_use": "", "action": "go blue", "trigger": "action_pattern", "pattern": "^go"}]
    evolver(start, skills=bank).save_pretrained(tmp_path)
    assert names(read_card(tmp_path).hparams["skills"]) == ["stay"]
    for loaded in (ReSkillCoEvolver.from_pretrained(tmp_path), evolver(tmp_path)):
        assert loaded.evolution.bank.skills == (Skill.from_dict(bank[0]),)
    assert len(evolver(tmp_path, skills=[]).evolution.bank) == 0
    assert len(evolver(start).evolution.bank) == 0


@pytest.mark.parametrize("epoch", [1, 2, 4, 5])
def test_resume_in_the_middle_of_a_test_is_bit_exact(start: Path, tmp_path: Path, epoch: int) -> None:
    whole, _ = fitted(start, epochs=7)
    torch.manual_seed(0)
    first = quiet_trainer(max_epochs=epoch)
    begun = evolver(start)
    first.fit(begun, datamodule=data())
    first.save_checkpoint(tmp_path / "last.ckpt")
    resumed = evolver(start)
    quiet_trainer(max_epochs=7).fit(resumed, datamodule=data(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert resumed.evolution.state() == whole.evolution.state()
    assert same_weights(weights(resumed), weights(whole))
    assert begun.evolution.test is not None or epoch != 2


def test_two_ranks_count_alike(start: Path, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.reskill.doors", "2", str(start), str(tmp_path / "two")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    one, other = (torch.load(tmp_path / f"two.{rank}", weights_only=True) for rank in (0, 1))
    assert one == other and one["history"]
    assert all(sum(decision["episodes"]) == 2 * 24 for decision in one["history"])  # a window of two steps, all ranks


def test_the_bank_may_evolve_alone(start: Path) -> None:
    module, _ = fitted(start, train_policy=False)
    assert same_weights(weights(module), weights(evolver(start))) and module.evolution.history


def test_slots_hold_the_words_of_the_task(start: Path) -> None:
    """In this world red is the target and there is no station, so a skill about one is not shown."""
    bank = [{"name": slot, "when_to_use": "", "action": f"go {{{slot}}}"} for slot in ("target", "station")]
    module = evolver(start, skills=bank)
    played = quiet_trainer().predict(module, datamodule=data())
    assert {text for batch in played or () for one in batch for text in shown(one, module)} == {"go red"}
    trajectory = played[0][0]  # type: ignore[index]
    trajectory.job.behaviour["version"] = "old"
    experience = module.experience(trajectory, WordProtocol(4, notes="after"))
    assert set(experience.shown) == {("target",)} and experience.roles == {"red": "target"}


def test_an_accepted_skill_is_shown_from_then_on(start: Path) -> None:
    module, sampler = fitted(start, epochs=3, accept="always", author_args={"bundles": doors.WRITTEN[:1]})
    assert names(module.evolution.bank.records()) == ["try-red-0"]
    assert [set(shown(one, module)) for one in sampler.iterations[0][1]] == [{""}] * 24
    assert all(set(shown(one, module)) == {"go red"} for one in sampler.iterations[1][1])


@pytest.mark.parametrize(
    ("changes", "world", "says"),
    [
        ({"skills": [{"name": "a"}]}, {}, "model.skills: skill 'a' lacks when_to_use, action"),
        ({"skills": "nowhere"}, {}, r"model.skills: nowhere: neither skills.json"),
        ({"skills": [{"name": "a", "when_to_use": "", "action": "go green"}]}, {}, "does not know green in skill a"),
        ({"author_args": {"colour": "red"}}, {}, "model.author_args: .*colour"),
        ({"min_reservoir": 300}, {}, "model.min_reservoir=300 is more than model.reservoir keeps"),
        ({"min_reservoir": 20}, {"train_tasks": 4}, "no skill would ever be written: set model.per_task=false"),
        ({}, {"protocol": WordProtocol(4)}, "notes: after"),
        ({}, {"context": small_data().context}, "data.context must be a LatestTurns"),
    ],
)
def test_configurations_that_cannot_work(
    start: Path, changes: dict[str, Any], world: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        quiet_trainer(max_epochs=1).fit(evolver(start, **changes), datamodule=data(**world))
