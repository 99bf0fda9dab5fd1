"""Expert states as tasks: shown as in episodes, asked in fair order, read from files without losing anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from datamodules import ActionPairDataModule, RolloutDataModule
from datamodules.action_pairs import read_pairs, write_pairs
from tests.act.conftest import FEW, WORLD, states
from tests.conftest import ARCHITECTURE
from zoo.errors import ConfigError
from zoo.policy import word_policy
from zoo.policy.words import word_tokenizer
from zoo.rollout.context import AppendOnly, LatestTurns
from zoo.rollout.loop import perform
from zoo.rollout.protocol import ChoiceProtocol, WordProtocol
from zoo.rollout.trajectory import Job


@pytest.mark.parametrize("turns", [1, 3, 30])
def test_a_state_is_shown_as_in_an_episode(turns: int) -> None:
    """Token for token: what is learnt at expert states is asked the same way when the expert's episode is played."""
    context = LatestTurns(400, turns)
    data, world = states(context=context), RolloutDataModule(**WORLD, context=context)
    tokenizer = word_tokenizer(data.vocabulary)
    tasks = [world.task("train", index) for index in range(FEW["train"])]
    jobs = [Job(task, index) for index, task in enumerate(tasks)]
    played = perform(lambda episode: ("", episode.info["expert_action"]), tokenizer, world, jobs)
    shown = [segment.ids[: segment.prompt_length] for trajectory in played for segment in trajectory.segments]
    assert all(trajectory.success for trajectory in played)
    asked = [data.protocol.prompt(tokenizer, decision.state, {}) for decision in data.decisions["train"]]
    assert shown == asked
    assert [turn.action for trajectory in played for turn in trajectory.turns] == [
        decision.expert for decision in data.decisions["train"]
    ]


def test_states_of_a_split_come_from_its_tasks() -> None:
    decisions = states().decisions
    assert {split: len({one.trajectory for one in some}) for split, some in decisions.items()} == FEW
    assert len({one.state.split("places")[0] for some in decisions.values() for one in some if one.turn == 0}) > 4
    for some in decisions.values():
        assert all(one.expert in one.admissible for one in some)


def test_a_choice_shows_both_in_an_order_drawn_anew_and_the_label_stays(pairs: str) -> None:
    data = states(ask="choice", pairs=pairs, tasks_per_iteration=16, group_size=3)
    env = data.environments(1)[0]
    orders: dict[int, set[bool]] = {}
    for iteration in range(80):
        jobs = data.iteration_jobs(iteration)
        assert [job.task.options for job in jobs] == [job.task.options for job in data.iteration_jobs(iteration)]
        for group in range(16):
            (task,) = {json.dumps(job.task): job.task for job in jobs if job.group == group}.values()
            orders.setdefault(task.seed, set()).add(task.options["swap"])
            shown, info = env.reset(seed=task.seed, options={"split": task.split, **task.options})
            decision = data.decisions["train"][task.seed]
            pair = [decision.expert, *decision.alternatives]
            first, second = pair[::-1] if task.options["swap"] else pair
            assert shown.endswith(f"better {first} or {second} ?")
            assert info["admissible_actions"] == [first, second]
            assert info["expert"] == decision.expert
            assert env.step(decision.expert)[1:3] == (1.0, True)
            assert env.step(decision.alternatives[0])[1:3] == (0.0, True)
    assert all(seen == {True, False} for seen in orders.values())
    swaps = [task.options["swap"] for task in data.tasks("test")]
    assert swaps.count(True) == swaps.count(False) == len(data.decisions["test"])


def labelled(data: ActionPairDataModule, split: str, seed: int, swap: bool) -> str:
    """What is called the expert's action in a choice."""
    info = data.environments(1)[0].reset(seed=seed, options={"split": split, "swap": swap})[1]
    return str(info["expert"])


def test_a_warm_start_asks_half_of_its_tasks_each_way_and_is_right_where_it_asks_for_an_action() -> None:
    data = states(ask="either", source="random", shuffle_labels=True, tasks_per_iteration=40, group_size=1)
    tokenizer = word_tokenizer(data.vocabulary)
    said = [tokenizer.decode(row["ids"]) for row in data.demonstrations(0, tokenizer)]
    choices = [text for text in said if " better " in text]
    assert len(said) == 40 and len(choices) == 20
    experts = {one.state.replace("\n", " "): one.expert for one in data.decisions["train"]}
    for text in set(said) - set(choices):
        assert any(" ".join(text.split()) == f"{state} {action} <end>" for state, action in experts.items())
    assert all(not task.options for task in data.tasks("val"))


def test_controls(pairs: str) -> None:
    first = states(ask="choice", pairs=pairs, order="expert_first")
    assert not any(job.task.options["swap"] for job in first.iteration_jobs(0))
    shuffled = states(ask="choice", pairs=pairs, shuffle_labels=True)
    for split, share in (("train", 0.5), ("test", 0.0)):
        swapped = []
        for seed, decision in enumerate(shuffled.decisions[split]):
            labels = {labelled(shuffled, split, seed, swap) for swap in (False, True)}
            assert len(labels) == 1 and labels <= {decision.expert, *decision.alternatives}
            swapped.append(labels != {decision.expert})
        assert sum(swapped) / len(swapped) == pytest.approx(share, abs=0.2)
    drawn = states(ask="choice", source="random")
    for one in drawn.decisions["train"]:
        assert len(one.alternatives) == 1
        assert set(one.alternatives) <= set(one.admissible) - {one.expert}


def test_a_wrong_rationale_stands_where_one_would_think(pairs: str) -> None:
    skipped = WordProtocol(8, thoughts="skipped")
    data = states(ask="choice", pairs=pairs, inject=True, protocol=skipped)
    shown, info = data.environments(1)[0].reset(seed=0, options={"split": "test", "swap": False})
    first, second = info["admissible_actions"]
    tokenizer = word_tokenizer(data.vocabulary)
    asked = tokenizer.decode(data.protocol.prompt(tokenizer, shown, info))
    assert asked.endswith(f" better {first} or {second} ? find mug sink1 do")


def test_every_arm_reads_the_same_pairs_and_a_changed_file_is_refused(pairs: str) -> None:
    decisions = read_pairs(Path(pairs))
    assert write_pairs(Path(pairs), decisions) == json.loads(Path(pairs).read_text().splitlines()[0])["sha256"]
    assert read_pairs(Path(pairs)) == decisions
    text = Path(pairs).read_text()
    Path(pairs).write_text(text.replace("look", "sing", 1))
    with pytest.raises(ConfigError, match="was changed after it was written"):
        read_pairs(Path(pairs))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda line: line[:-1], "Expecting"),
        (lambda line: "[]", "must be a mapping|list"),
        (lambda line: json.dumps({**json.loads(line), "state": 3}), "state must be text, not 3"),
        (lambda line: json.dumps({**json.loads(line), "split": "dev"}), "split must be one of"),
        (lambda line: json.dumps({**json.loads(line), "alternatives": [json.loads(line)["expert"]]}), "must differ"),
        (lambda line: json.dumps({**json.loads(line), "admissible": "look"}), "admissible must be a list of texts"),
        (lambda line: json.dumps({**json.loads(line), "thoughts": []}), "a thought for each alternative"),
    ],
)
def test_a_broken_line_is_named_and_alone_is_lost(pairs: str, change: Any, reason: str) -> None:
    lines = Path(pairs).read_text().splitlines()
    lines[3] = change(lines[3])
    Path(pairs).write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=rf"pairs.jsonl:4: .*({reason}).*data.on_error=skip"):
        read_pairs(Path(pairs))
    with pytest.warns(UserWarning, match="pairs.jsonl:4: "):
        assert len(read_pairs(Path(pairs), "skip")) == len(lines) - 2


def test_demonstrations_of_a_file(tmp_path: Path) -> None:
    step = {"action": "Go fridge1", "observation": "at fridge1 closed .", "admissible_actions": ["go fridge1", "look"]}
    last = {"action": "open fridge1", "observation": "at fridge1 open .", "admissible_actions": ["open fridge1"]}
    path = tmp_path / "expert.jsonl"
    path.write_text(json.dumps({"first": "task put mug .", "steps": [step, last]}) + "\n")
    found = states(demonstrations=str(path)).decisions["train"]
    assert [one.expert for one in found] == ["go fridge1", "open fridge1"]
    assert found[1].state == "task put mug .\ndo Go fridge1 at fridge1 closed ."
    path.write_text(json.dumps({"first": "task put mug .", "steps": [{"action": "look"}]}) + "\n")
    with pytest.raises(ConfigError, match=r"expert.jsonl:1: no 'observation'"):
        _ = states(demonstrations=str(path)).decisions


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ask": "choice"}, "data.pairs is missing"),
        ({"context": AppendOnly(400)}, "must be a LatestTurns"),
        ({"trajectories": {"dev": 3}}, "data.trajectories has the splits"),
        ({"demonstrations": "nowhere.jsonl"}, "there is no file nowhere.jsonl"),
        ({"environment": "zoo/PageHunt-v0"}, "tells no expert_action"),
        ({"max_turns": 2}, "the expert solves only 0 of 40 tasks"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _ = states(**settings).decisions


def test_imitated_rows_hold_the_experts_action_and_nothing_else_is_trained(pairs: str) -> None:
    for protocol in (WordProtocol(8), WordProtocol(8, thoughts="free"), ChoiceProtocol(30)):
        for ask in ("action", "choice"):
            data = states(ask=ask, pairs=pairs, protocol=protocol, tasks_per_iteration=5, group_size=1)
            policy = word_policy(ARCHITECTURE, data.vocabulary)
            rows = data.demonstrations(0, policy.tokenizer)
            jobs = data.iteration_jobs(0)
            assert len(rows) == 5
            for row, job in zip(rows, jobs, strict=True):
                said = policy.tokenizer.decode(row["ids"][row["mask"]])
                decision = data.decisions["train"][job.task.seed]
                _, info = data.environments(1)[0].reset(
                    seed=job.task.seed, options={"split": "train", **job.task.options}
                )
                assert protocol.parse(said, info) == decision.expert
                assert torch.equal(row["advantages"], row["mask"].float())


def test_a_thought_is_shown_and_not_imitated() -> None:
    data = states(protocol=WordProtocol(12, thoughts="free"), tasks_per_iteration=5, group_size=1)
    policy = word_policy(ARCHITECTURE, data.vocabulary)
    rows = data.demonstrations(0, policy.tokenizer, lambda jobs: [f"find mug sink1 {1 + job.group}" for job in jobs])
    for row, job in zip(rows, data.iteration_jobs(0), strict=True):
        decision = data.decisions["train"][job.task.seed]
        said = f"do {decision.expert} <end>"
        assert policy.tokenizer.decode(row["ids"]).endswith(f" find mug sink1 {1 + decision.trajectory} {said}")
        assert policy.tokenizer.decode(row["ids"][row["mask"]]) == said
        assert int(row["trajectory"]) == decision.trajectory
        assert torch.equal(row["advantages"], row["mask"].float())
