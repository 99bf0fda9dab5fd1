"""Drills: errands with commands that follow from them, and little of what is right."""

from __future__ import annotations

import re
from typing import Any

import pytest

from datamodules import ErrandDrills
from datamodules.environments.household import Household
from zoo.errors import ConfigError
from zoo.policy.words import word_tokenizer
from zoo.reskill.lexicon import action_class, fill
from zoo.rollout.context import AppendOnly, LatestTurns
from zoo.rollout.protocol import WordProtocol


def drills(**changes: Any) -> tuple[ErrandDrills, list[tuple[str, str, str]]]:
    """A datamodule, and what its turns show, think and do."""
    settings: dict[str, Any] = {
        "environment": "zoo/Household-v0",
        "environment_args": {"unseen": "spare"},
        "protocol": WordProtocol(12, thoughts="free"),
        "tasks_per_iteration": 12,
        "context": LatestTurns(512, turns=20),
        "max_turns": 20,
        "seed": 0,
    }
    data = ErrandDrills(**{**settings, **changes})
    tokenizer = word_tokenizer(data.vocabulary)
    turns: list[tuple[str, str, str]] = []
    for row in data.demonstrations(0, tokenizer):
        assert tokenizer.unk_token_id not in row["ids"]
        text = tokenizer.decode(row["ids"]).removesuffix(" <end>")
        shown, _, action = text.rpartition(" do ")
        *_, verb, thing, place = shown.split()
        turns.append((shown.removesuffix(f" {verb} {thing} {place}"), f"{verb} {thing} {place}", action))
        learnt = tokenizer.decode(row["ids"][row["mask"]])
        before, said, rest = learnt.rpartition(f"{verb} {thing} {place} do {action} <end>")
        assert said and not rest
        # Besides what is said: the world's latest answer, where there is one and no question behind it, and the command
        # before it, if it was meant, that is, said in the row before.
        assert f"{turns[-1][0]} ".endswith(before)
        assert (" better " in turns[-1][0]) <= (before == "")
        command = re.split(r"at [a-z]+\d |nothing happens ", f" {before}", maxsplit=1)[0].strip()
        assert not command or (command == turns[-2][2] and turns[-1][0].endswith(f"do {before}".strip()))
    return data, turns


def test_commands_follow_from_errands() -> None:
    _, turns = drills(slips=0.3)
    assert len(turns) > 100
    for shown, thought, action in turns:
        verb, thing, place = thought.split()
        state = shown.split(" better ")[0]
        at, opened = state.split(" at ")[-1].split()[:2]
        if state.endswith("nothing happens ."):
            continue
        if at != place:
            assert action == f"go {place}"
        elif opened == "closed":
            assert action == f"open {place}"
        else:
            assert action == {"find": "look", "use": f"use {place}"}.get(verb, f"{verb} {thing} {place}")


def test_comparisons_show_the_meant_command_at_either_place() -> None:
    asked = [turn for turn in drills(comparisons=1.0)[1] if " better " in turn[0]]
    places = [0, 0]
    for shown, _, action in asked:
        first, second = shown.split(" better ")[1].removesuffix(" ?").split(" or ")
        assert action in (first, second) != (first, first)
        places[action == second] += 1
    assert min(places) > 0.35 * len(asked) > 35
    assert not any(" better " in shown for shown, *_ in drills(comparisons=0.0)[1])


def test_skill_is_how_often_the_errand_is_the_experts() -> None:
    """Without slips and comparisons every turn is shown, so that the episodes can be followed."""
    for skill, least, most in ((1.0, 1.0, 1.0), (0.0, 0.05, 0.45)):
        data, turns = drills(skill=skill, slips=0.0, comparisons=0.0)
        env, right, index = Household(unseen="spare"), [], 0
        for job in data.iteration_jobs(0):
            env.reset(seed=job.task.seed, options={"split": "train"})
            for _ in range(20):
                right.append(turns[index][2] == env._expert())
                ended = env.step(turns[index][2])[2]
                index += 1
                if ended:
                    break
        assert index == len(turns)
        assert least <= sum(right) / len(right) <= most


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"skill": 1.5}, "data.skill is a share"), ({"context": AppendOnly(99)}, "must be a LatestTurns")],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        drills(**settings)


def advised(**changes: Any) -> list[tuple[set[str], set[str], str]]:
    """Of turns under advice: the possible commands it says to try and to avoid, and what is done."""
    settings: dict[str, Any] = {
        "environment": "zoo/Household-v0",
        "environment_args": {"unseen": "mixed"},
        "protocol": WordProtocol(8, notes="after"),
        "tasks_per_iteration": 12,
        "context": LatestTurns(640, turns=20),
        "max_turns": 20,
        "comparisons": 0.0,
        "advised": 1.0,
        "obedience": 1.0,
        "slips": 0.0,
        "seed": 0,
    }
    data = ErrandDrills(**{**settings, **changes})
    found, tokenizer, env = [], word_tokenizer(data.vocabulary), Household(unseen="mixed")
    rows = iter(data.demonstrations(0, tokenizer))
    for job in data.iteration_jobs(0):
        first, info = env.reset(seed=job.task.seed, options={"split": "train"})
        roles, ended, turns = info["roles"], False, 0
        while not ended and turns < 20:
            row = next(rows)
            text = tokenizer.decode(row["ids"]).removesuffix(" <end>")
            shown, _, rest = text.rpartition(" skills ")
            advice, _, action = rest.rpartition(" . ")
            assert shown.startswith(first) and tokenizer.unk_token_id not in row["ids"]
            learnt = tokenizer.decode(row["ids"][row["mask"]]).removesuffix(" <end>")
            assert (
                learnt.endswith(action)
                and "skills" not in learnt
                and shown.endswith(learnt.removesuffix(action).strip())
            )
            lines = [(word, what.strip()) for word, what in re.findall(r"(try|avoid) (.+?)(?= try | avoid |$)", advice)]
            about = {
                word: {
                    one
                    for one in info["admissible_actions"]
                    for said, what in lines
                    if said == word and covers(what, one, roles)
                }
                for word in ("try", "avoid")
            }
            found.append((about["try"], about["avoid"], action))
            _, _, ended, _, info = env.step(action)
            turns += 1
    assert next(rows, None) is None
    return found


def covers(advice: str, action: str, roles: dict[str, str]) -> bool:
    """Whether an advice, a command or a class of them in words of the task, is about an action."""
    return advice == action or advice == fill(action_class(action, roles), roles)


def test_advice_is_followed_where_it_can_be() -> None:
    turns = advised()
    told = [(wanted, action) for wanted, _, action in turns if wanted]
    warned = [(banned, action) for wanted, banned, action in turns if banned and not wanted]
    assert len(told) > 80 and len(warned) > 40
    assert all(action in wanted for wanted, action in told)
    # Where all that is possible is to be avoided, or a place stands for all of its kind, nothing else can be done.
    assert sum(action not in banned for banned, action in warned) > 0.9 * len(warned)


def test_advice_may_be_ignored_and_needs_roles() -> None:
    turns = advised(obedience=0.0)
    assert any(wanted and action not in wanted for wanted, _, action in turns)
    assert any(action in banned for _, banned, action in turns)
    with pytest.raises(ConfigError, match="advised shows skills behind the state"):
        ErrandDrills(advised=0.5, protocol=WordProtocol(8))
    with pytest.raises(ConfigError, match="tells no roles, which"):
        ErrandDrills(advised=0.5, protocol=WordProtocol(8, notes="after")).demonstrations(0, word_tokenizer(["a"]))
