"""What becomes of versions: dossier 1.8 and 2, unit tests of 6.7; and the authors that need no language model."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.reskill.test_diagnosis import episode
from zoo.reskill.authors import AdversarialAuthor, Author, NoAuthor, ScriptedAuthor, TemplateAuthor
from zoo.reskill.diagnosis import Experience
from zoo.reskill.evolution import Decision, Evolution, Rules
from zoo.reskill.skills import Add, Bank, Delete, Skill, SkillError
from zoo.reskill.timeline import draw_timeline, label

LOOK = Skill("look-first", "at the start", "look")
OPEN = Skill("open-it", "before a closed thing", "open it", trigger="action_pattern", pattern="^go")


def evolution(bank: Sequence[Skill] = (), **rules: Any) -> Evolution:
    return Evolution(Bank(tuple(bank)), Rules(**{"min_reservoir": 4, "min_episodes": 4, "window": 2, **rules}))


def outcomes(new: tuple[int, int], old: tuple[int, int], **changes: Any) -> list[Experience]:
    """Episodes of both versions: successes and failures."""
    made = []
    for condition, (won, lost) in (("new", new), ("old", old)):
        for n, success in enumerate([True] * won + [False] * lost):
            made.append(episode("go a", "look", task=f"{n}", success=success, condition=condition, **changes))
    return made


def test_a_version_is_tested_and_kept() -> None:
    state = evolution([LOOK])
    assert state.share(np.random.default_rng(0)) == 0.0 and state.shown("new") is state.bank
    assert state.observe(outcomes((0, 0), (2, 3)), 0) is None and state.ready
    state.begin([Add(OPEN)], 0)
    assert not state.ready
    assert [one.name for one in state.shown("new").skills] == ["look-first", "open-it"]
    assert state.shown("old").skills == (LOOK,)
    assert 0.4 < state.share(np.random.default_rng(0)) < 0.6
    assert state.observe(outcomes((4, 0), (0, 4)), 1) is None
    assert state.share(np.random.default_rng(0)) == 0.85
    decision = state.observe(outcomes((3, 1), (1, 3), shown=(("open-it",),)), 2)
    assert decision and decision.accepted and (decision.started, decision.iteration) == (0, 2)
    assert (decision.new, decision.old) == (8 / 10, 2 / 10) and decision.episodes == (8, 8)
    assert decision.fired == {"open-it": 8}
    assert len(state.bank) == 2 and state.test is None and state.history == [decision]


def test_a_worse_or_equal_version_leaves_the_bank_as_it_was() -> None:
    for new in ((1, 3), (2, 2)):
        state = evolution([LOOK], window=1)
        state.observe(outcomes((0, 0), (2, 3)), 0)
        before = state.bank
        state.begin([Add(OPEN), Delete("look-first")], 0)
        decision = state.observe(outcomes(new, (2, 2)), 1)
        assert decision and not decision.accepted and state.bank is before and state.shown("new") is before


def test_a_test_goes_on_until_there_are_enough_episodes() -> None:
    state = evolution(window=1, min_episodes=9)
    state.observe(outcomes((0, 0), (2, 3)), 0)
    state.begin([Add(LOOK)], 0)
    assert state.observe(outcomes((2, 2), (2, 2)), 1) is None
    assert state.observe(outcomes((2, 2), (2, 2)), 2) is not None


def test_both_versions_start_anew_in_the_next_test_and_m_is_used_from_the_third() -> None:
    state = evolution(window=1)
    for iteration in range(3):
        state.observe(outcomes((0, 0), (2, 3)), iteration)
        state.begin([Add(Skill(f"skill-{iteration}", "", "look"))], iteration)
        assert state.test and state.test.new == state.test.old == (1, 1)
        assert (state.test.memory == math.inf) == (iteration < 2)
        state.observe(outcomes((3, 1), (1, 3)), iteration)


@pytest.mark.parametrize(
    ("memory", "value", "last"), [("none", math.inf, False), ("last_step", math.inf, True), (40, 40.0, False)]
)
def test_other_discounts(memory: Any, value: float, last: bool) -> None:
    state = evolution(memory=memory)
    state.begin([Add(LOOK)], 0)
    assert state.test and (state.test.memory, state.test.last_step) == (value, last)


def test_ablations_of_the_test() -> None:
    adopted = evolution(accept="always")
    adopted.begin([Add(LOOK)], 3)
    assert (
        adopted.bank.skills == (replace(LOOK, created_at=3),)
        and adopted.test is None
        and math.isnan(adopted.history[0].new)
    )
    even = evolution(allocation="uniform")
    even.begin([Add(LOOK)], 0)
    even.observe(outcomes((4, 0), (0, 4)), 1)
    assert even.share(np.random.default_rng(0)) == 0.5
    once = evolution(accept="always", versions=1)
    once.observe(outcomes((0, 0), (2, 3)), 0)
    assert once.ready
    once.begin([Add(LOOK)], 0)
    assert not once.ready


def test_nothing_is_written_without_both_outcomes() -> None:
    state = evolution()
    state.observe(outcomes((0, 0), (0, 9)), 0)
    assert not state.ready
    state.observe(outcomes((0, 0), (1, 0)), 1)
    assert state.ready


class Says(Author):
    def __init__(self, bundle: Any) -> None:
        self.bundle = bundle

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self.bundle


def test_versions_that_cannot_be_are_refused_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    state = evolution([LOOK])
    state.observe(outcomes((0, 0), (2, 3)), 0)
    rng = random.Random(0)
    assert state.write(Says(None), 0, rng) is None and state.write(Says([]), 0, rng) is None and not caplog.records
    assert state.write(Says([Delete("open-it")]), 7, rng) is None
    assert "iteration 7: the proposed version is refused: no skill 'open-it'" in caplog.text
    rare = Skill("rare", "", "look", trigger="action_pattern", pattern="^heat")
    with pytest.raises(SkillError, match="skill rare fires in 0% of 5 episodes; at least 50% are asked for"):
        state.check([Add(rare)])
    assert state.check([Add(OPEN)])

    def unreadable(skills: Sequence[Skill]) -> None:
        raise SkillError("no such word")

    state.readable = unreadable
    with pytest.raises(SkillError, match="no such word"):
        state.check([Add(OPEN)])


def test_a_test_in_the_middle_survives_plain_data_with_both_banks() -> None:
    state, copy = evolution([LOOK], window=1), evolution()
    for iteration in range(3):
        state.observe(outcomes((0, 0), (2, 3)), iteration)
        state.begin([Add(Skill(f"skill-{iteration}", "", "look", created_at=iteration))], iteration)
        state.observe(outcomes((3, 1), (1, 3)), iteration)
    state.begin([Delete("look-first"), Add(OPEN)], 3)
    state.rules = Rules(window=5)
    state.observe(outcomes((3, 1), (1, 3), shown=(("open-it",),)), 4)
    copy.load_state(json.loads(json.dumps(state.state())))
    assert copy.state() == state.state()
    assert copy.shown("new") == state.shown("new") != copy.shown("old") == state.shown("old")
    assert copy.share(np.random.default_rng(1)) == state.share(np.random.default_rng(1))
    assert copy.estimate.value == state.estimate.value < math.inf and copy.test == state.test


# -- authors -------------------------------------------------------------------------------------------------------------


def training() -> list[Experience]:
    """Successes take the target once they see it; failures take other things, or walk on."""
    made = []
    for n in range(12):
        made.append(episode("go fridge1", "take tomato fridge1", "go shelf1", "put tomato shelf1", task=f"{n}"))
        made.append(episode("go fridge1", "take egg fridge1", "go sink1", "put egg sink1", task=f"{n}", success=False))
    return made


def written(
    author: Author, bank: Sequence[Skill] = (), history: Sequence[Decision] = (), seed: int = 0, **rules: Any
) -> Any:
    state = evolution(bank, **rules)
    state.history[:] = history
    state.observe(training(), 0)
    return state.write(author, 0, random.Random(seed))


def test_the_template_author_says_what_successes_do() -> None:
    bundle = written(TemplateAuthor(operations=3))
    advice = {operation.skill.action for operation in bundle}
    assert advice <= {
        *("try take {target} other", "try go {destination}", "try put {target} {destination}"),
        *("avoid take other other", "avoid go {station}", "avoid put other {station}"),
    }
    assert all(operation.skill.pattern in ("^go\\b", "^take\\b") for operation in bundle)
    assert len(bundle) == 3


def test_it_keeps_assertions_that_tell_successes_from_failures() -> None:
    state = evolution()
    state.observe(training(), 0)
    state.write(TemplateAuthor(), 0, random.Random(0))
    assert 1 <= len(state.assertions) <= 10
    assert all(one.holds(training()[0])[0] and not one.holds(training()[1])[0] for one in state.assertions)
    state.write(TemplateAuthor(use_assertions=False), 0, random.Random(0))
    assert state.assertions == []


def test_it_proposes_neither_what_is_there_nor_what_was_rejected() -> None:
    first = written(TemplateAuthor(operations=1))[0].skill
    second = written(TemplateAuthor(operations=1), bank=[first])[0].skill
    assert second.name != first.name
    rejected = Decision(0, 1, False, 0.1, 0.2, (Add(first),))
    assert written(TemplateAuthor(operations=1), history=[rejected])[0].skill.name == second.name


def test_it_deletes_what_the_episodes_speak_against_and_makes_room() -> None:
    wrong = Skill(
        "avoid-take-target-other-after-go", "", "avoid take {target} other", trigger="action_pattern", pattern="^go\\b"
    )
    bundle = written(TemplateAuthor(operations=1), bank=[wrong])
    assert bundle[0] == Delete(wrong.name) and isinstance(bundle[1], Add)
    full = [Skill(f"mine-{n}", "", f"be {n}") for n in range(8)]
    bundle = written(TemplateAuthor(operations=2), bank=full)
    assert [type(operation) for operation in bundle] == [Delete, Add]


def test_a_rare_verb_makes_a_skill_that_is_always_shown() -> None:
    state = evolution()
    some = training() + [episode("look", "go sink1", task=f"x{n}", success=False) for n in range(40)]
    state.observe(some, 0)
    bundle = state.write(TemplateAuthor(operations=3), 0, random.Random(0))
    assert bundle and {operation.skill.trigger for operation in bundle} == {"general"}  # type: ignore[union-attr]


def test_the_adversarial_author_turns_whole_proposals_round() -> None:
    plain, turned = [], []
    for seed in range(40):
        plain += [{operation.skill.action for operation in written(TemplateAuthor(), seed=seed)}]
        turned += [
            {operation.skill.action for operation in written(AdversarialAuthor(TemplateAuthor(), 0.5), seed=seed)}
        ]
    swapped = {
        action.replace("try", "x").replace("avoid", "try").replace("x", "avoid") for one in plain for action in one
    }
    bad = [one for one in turned if one <= swapped]
    good = [one for one in turned if one <= set.union(*plain)]
    assert len(bad) + len(good) == 40 and 10 <= len(bad) <= 30


def test_scripted_and_silent_authors() -> None:
    script = ScriptedAuthor([[{"op": "add", "skill": LOOK.to_dict()}], [{"op": "delete", "name": "look-first"}]])
    assert written(script) == (Add(LOOK),)
    done = Decision(0, 1, True, 0.2, 0.1, (Add(LOOK),))
    assert written(script, bank=[LOOK], history=[done]) == (Delete("look-first"),)
    assert written(script, history=[done, done]) is None and written(NoAuthor()) is None


def test_the_picture_of_versions(tmp_path: Any) -> None:
    kept = Decision(0, 5, True, 0.4, 0.3, (Add(LOOK), Delete("open-it")))
    adopted = Decision(5, 5, True, math.nan, math.nan, (Add(OPEN),))
    assert label(kept) == "+ look-first, - open-it"
    draw_timeline([kept, adopted], [(0, 0.1), (5, 0.4)], tmp_path / "skills.png")
    assert (tmp_path / "skills.png").stat().st_size > 1000
    draw_timeline([], [], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
    assert Decision.from_dict(json.loads(json.dumps(kept.to_dict()))) == kept
