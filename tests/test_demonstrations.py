"""Demonstrations of worlds that tell their solutions: what is shown as guidance, and what is played."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from datamodules import DemonstrationDataModule
from zoo.errors import ConfigError
from zoo.policy.words import word_tokenizer


def demonstrations(**options: Any) -> list[tuple[dict[int, str], list[str], list[str]]]:
    """Of each: the actions shown by turn, the actions played, and the solution."""
    world = {"actions": 64, "steps": 4, "clues": 16}
    data = DemonstrationDataModule(
        environment="zoo/ClueLock-v0", environment_args=world, tasks_per_iteration=64, seed=0, **options
    )
    tokenizer = word_tokenizer(data.vocabulary)
    found = []
    for row, job in zip(data.demonstrations(0, tokenizer), data.iteration_jobs(0), strict=True):
        read = str(tokenizer.decode(row["ids"][~row["mask"].bool()])).split()
        said = str(tokenizer.decode(row["ids"][row["mask"].bool()])).split()
        shown = {int(turn): action for turn, action in pairwise(read) if action.startswith("a")}
        actions = [word for word in said if word.startswith("a")]
        found.append((shown, actions, data.task_info(job.task)["action_data"]))
    return found


def test_guidance_shows_the_solution_and_the_solution_is_played() -> None:
    played = demonstrations(guided_share=1.0)
    assert all(actions == solution for _, actions, solution in played)
    assert all(shown == dict(enumerate(solution[: len(shown)], 1)) for shown, _, solution in played)
    assert {len(shown) for shown, *_ in played} == {1, 2, 3, 4}
    assert not any(shown for shown, *_ in demonstrations())


def test_noise_in_guidance_is_not_followed() -> None:
    played = demonstrations(guided_share=1.0, hint_noise=0.5)
    assert all(actions == solution for _, actions, solution in played)
    pairs = [(action, solution[turn - 1]) for shown, _, solution in played for turn, action in shown.items()]
    assert 0.3 < sum(action != right for action, right in pairs) / len(pairs) < 0.7


def test_wandering_follows_guidance_and_knows_nothing_else() -> None:
    played = demonstrations(guided_share=0.8, wander=True)
    for shown, actions, solution in played:
        assert actions[: len(shown)] == solution[: len(shown)]
    unshown = [
        (actions[len(shown)], solution[len(shown)]) for shown, actions, solution in played if len(shown) < len(solution)
    ]
    assert sum(action == right for action, right in unshown) <= 2  # by chance one in 64
    assert len({action for action, _ in unshown}) > 20


@pytest.mark.parametrize("share", ["guided_share", "hint_noise", "selection_skill"])
def test_shares_are_shares(share: str) -> None:
    with pytest.raises(ConfigError, match=rf"data\.{share} is a share between 0 and 1, not 1.5"):
        DemonstrationDataModule(environment="zoo/ClueLock-v0", **{share: 1.5})


def test_wandering_needs_admissible_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    told = DemonstrationDataModule.task_info
    monkeypatch.setattr(
        DemonstrationDataModule, "task_info", lambda self, task: {"action_data": told(self, task)["action_data"]}
    )
    with pytest.raises(ConfigError, match="tells no admissible_actions"):
        demonstrations(wander=True)
