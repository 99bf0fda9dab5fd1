"""Skills, banks and versions of them: dossier 1.2 and 1.4, unit tests of 6.7."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.reskill.skills import (
    Add,
    Bank,
    Delete,
    Modify,
    Operation,
    Skill,
    SkillError,
    from_markdown,
    load_bank,
    operation_record,
    parse_operation,
    save_bank,
    to_markdown,
)

NAMES = ("open-first", "look-around", "put-down", "never-idle")
texts = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=20)


@st.composite
def skills(draw: st.DrawFn) -> Skill:
    trigger = draw(st.sampled_from(("general", "beginning", "action_pattern")))
    pattern = draw(st.sampled_from(("^go", "open|take", r"\bput\b"))) if trigger == "action_pattern" else ""
    examples = tuple(draw(st.lists(texts, max_size=2)))
    return Skill(draw(st.sampled_from(NAMES)), draw(texts), draw(texts), examples, trigger, pattern)


operations = st.one_of(
    skills().map(Add),
    st.sampled_from(NAMES).map(Delete),
    st.builds(Modify, st.sampled_from(NAMES), st.fixed_dictionaries({"action": texts})),
    st.builds(Modify, st.sampled_from(NAMES), st.just({"trigger": "general", "pattern": ""})),
)


def skill(name: str = "open-first", **changes: Any) -> Skill:
    return Skill(**{"name": name, "when_to_use": "at a closed door", "action": "open it", **changes})


@settings(max_examples=300, deadline=None)
@given(st.lists(skills(), unique_by=lambda one: one.name, max_size=3), st.lists(operations, max_size=5))
def test_a_bank_is_the_same_after_a_version_was_applied_and_dropped(
    start: list[Skill], bundle: list[Operation]
) -> None:
    """revert(apply(S, ops)) = S, for bundles that fail as well: nothing but the return value ever changes."""
    bank = Bank(tuple(start), cap=3)
    before = json.dumps(bank.records())
    try:
        after = bank.apply(bundle)
    except SkillError:
        after = None
    assert json.dumps(bank.records()) == before
    if after is not None:
        assert after.records() != bank.records() and len(after) <= 3 and 1 <= len(bundle) <= 3
        assert Bank.from_records(json.loads(json.dumps(after.records())), 3) == after


def test_operations_by_hand() -> None:
    bank = Bank().apply([Add(skill()), Add(skill("look-around", action="look"))])
    assert [one.name for one in bank.skills] == ["open-first", "look-around"]
    changed = bank.apply([Modify("open-first", {"action": "push it", "trigger": "action_pattern", "pattern": "^go"})])
    assert changed.get("open-first") == skill(action="push it", trigger="action_pattern", pattern="^go", version=2)
    assert [one.name for one in bank.apply([Delete("open-first"), Add(skill("put-down"))]).skills] == [
        "look-around",
        "put-down",
    ]


@pytest.mark.parametrize(
    ("bundle", "says"),
    [
        ([], "1 to 3 operations, not 0"),
        ([Delete("a")] * 4, "1 to 3 operations, not 4"),
        ([Delete("put-down")], "no skill 'put-down' in the bank: open-first"),
        ([Modify("put-down", {"action": "x"})], "no skill 'put-down'"),
        ([Add(skill())], "names of their own: open-first"),
        ([Add(skill("look-around")), Add(skill("put-down"))], "3 skills in a bank of at most 2"),
        ([Modify("open-first", {"name": "other"})], "name cannot be modified"),
        ([Modify("open-first", {"trigger": "action_pattern"})], "a pattern belongs to the trigger"),
        ([Modify("open-first", {"action": "open it"})], "nothing to test"),
        ([Delete("open-first"), Add(skill(created_at=7))], "nothing to test"),
    ],
)
def test_versions_that_are_refused_before_any_test(bundle: list[Operation], says: str) -> None:
    with pytest.raises(SkillError, match=says):
        Bank((skill(),), cap=2).apply(bundle)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "Open First"}, "lower-case words joined by hyphens"),
        ({"name": 3}, "lower-case words"),
        ({"action": "  "}, "action is not empty"),
        ({"action": 5}, "fields are texts"),
        ({"action": "x" * 490}, "506 characters; at most 500"),
        ({"examples": "go"}, "examples are a list of lines"),
        ({"trigger": "sometimes"}, "trigger must be one of"),
        ({"trigger": "action_pattern"}, "a pattern belongs to"),
        ({"pattern": "go"}, "a pattern belongs to"),
        ({"trigger": "action_pattern", "pattern": "(go"}, "no regular expression"),
        ({"trigger": "action_pattern", "pattern": "(a+)+$"}, "repeats a repetition"),
        ({"trigger": "action_pattern", "pattern": "a" * 201}, "201 characters; 200 are enough"),
        ({"action": "go\n## Examples"}, "no headings"),
        ({"action": "\ud800"}, "no halves of characters"),
        ({"version": "1.0"}, "whole numbers"),
    ],
)
def test_skills_that_cannot_be(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SkillError, match=says):
        skill(**changes)


def test_triggers_see_the_latest_parsed_action_alone() -> None:
    after_go = skill(trigger="action_pattern", pattern="^GO ")
    assert after_go.fires(["open door", "go north"])
    assert (
        not after_go.fires(["go north", "open door"]) and not after_go.fires([]) and not after_go.fires(["go x", None])
    )
    first = skill(trigger="beginning")
    assert first.fires([]) and not first.fires([None])
    assert skill().fires([]) and skill().fires(["go north"])
    bank = Bank((skill("a"), replace(after_go, name="b"), replace(first, name="c")))
    assert [one.name for one in bank.shown([], {})] == ["a", "c"]
    assert [one.name for one in bank.shown(["go x"], {})] == ["a", "b"]


@given(operations)
def test_operations_survive_plain_data(operation: Operation) -> None:
    assert parse_operation(json.loads(json.dumps(operation_record(operation)))) == operation


@pytest.mark.parametrize(
    "record",
    [
        None,
        {},
        {"op": "drop", "name": "a"},
        {"op": "add"},
        {"op": "add", "skill": {"name": "a"}},
        {"op": "add", "skill": {"name": "a", "when_to_use": "", "action": "b", "colour": "red"}},
        {"op": "delete"},
        {"op": "modify", "name": "a"},
        {"op": "modify", "name": "a", "changes": ["b"]},
    ],
)
def test_other_data_is_no_operation(record: Any) -> None:
    with pytest.raises(SkillError):
        parse_operation(record)


@settings(max_examples=100, deadline=None)
@given(skills())
def test_a_skill_survives_its_markdown(one: Skill) -> None:
    assert from_markdown(to_markdown(one)) == one


def test_a_skill_of_another_tool_is_read() -> None:
    front = "---\nname: tidy-up\ndescription: When a room is a mess.\nversion: 1.0.0\n---\n"
    text = f"{front}\n# Tidying\nPut things where they belong.\n"
    read = from_markdown(text)
    assert (read.name, read.when_to_use, read.trigger) == ("tidy-up", "When a room is a mess.", "general")
    assert read.action == "# Tidying\nPut things where they belong."


def test_a_bank_on_disk(tmp_path: Path) -> None:
    bank = Bank(
        (skill(examples=("DO open", "DON'T knock")), skill("put-down", trigger="action_pattern", pattern="^take"))
    )
    save_bank(bank, tmp_path)
    assert load_bank(tmp_path) == bank
    (tmp_path / "skills.json").unlink()
    assert set(load_bank(tmp_path).skills) == set(bank.skills)
    save_bank(bank.apply([Delete("put-down")]), tmp_path)
    assert not (tmp_path / "put-down").exists() and len(load_bank(tmp_path)) == 1
    (tmp_path / "skills.json").unlink()
    (tmp_path / "open-first" / "SKILL.md").write_text("no front matter")
    with pytest.raises(SkillError, match=r"open-first.SKILL.md: no front matter"):
        load_bank(tmp_path)
    with pytest.raises(SkillError, match=r"neither skills\.json nor any"):
        load_bank(tmp_path / "elsewhere")
    (tmp_path / "skills.json").write_text('{"skills": [{"name": "a"}]}')
    with pytest.raises(SkillError, match=r"skills.json: skill 'a' lacks when_to_use, action"):
        load_bank(tmp_path)
