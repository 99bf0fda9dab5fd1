r"""What a language model is told when it writes skills: one system message per stage, and the material as text.

The stages are those of ReSkill (arXiv 2606.01619; dossier 1.10); the words are our own. What patterns are searched in is said to
every stage, and it is what :mod:`zoo.reskill.diagnosis` does.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zoo.reskill.diagnosis import Experience, Grade, contrast, trigger_rate
from zoo.reskill.evolution import Decision
from zoo.reskill.skills import Add, Bank, Modify, Operation

_SHOWN, _ENDS = 30, 5  # actions shown in full; else so many of either end
_THOUGHT, _TASK, _ACTION = 400, 1000, 120  # characters
_VERBS = 20
_DECISIONS = 5

_BASICS = """\
A policy acts in a world, turn by turn, and learns from reward. Its prompt can show skills: short advice, each with a trigger
that says when it is shown. You look at its training episodes and improve its bank of skills.
Episodes are given as parsed actions: of each reply the action alone, without the reasoning around it.
Patterns are Python regular expressions, searched in one parsed action at a time, never in reasoning or prompts; case does
not matter. `^open\\b` fits every action that begins with the word open.
Answer with one JSON object of the form below and with nothing else.
"""

_OPERATIONS = """\
{"op": "add", "skill": {"name": "words-with-hyphens", "when_to_use": "at most 25 words", "action": "at most 50 words",
 "examples": ["Do: one line", "Don't: one line"], "trigger": "action_pattern", "pattern": "^open\\\\b"}}
{"op": "modify", "name": "a-skill-of-the-bank", "changes": {"action": "only the fields that change"}}
{"op": "delete", "name": "a-skill-of-the-bank"}
trigger is `general` (shown at every turn), `beginning` (at the first turn) or `action_pattern` (at a turn right after an
action that fits pattern, hence never at the first turn). Only `action_pattern` has a pattern; for the others it is "".
when_to_use, action and examples have at most 500 characters together. A new or changed trigger must come true in a good part
of the training episodes, as a rule in half of them; the last action of an episode does not count.
1 to 3 operations are carried out in their order and tested together as one version. A full bank needs a delete before an add.
"""

_ASSERTIONS = """\
An assertion is a check of one episode: {"check": ..., "pattern": ..., "description": ...} with check one of action_exists,
action_not_exists, final_action (pattern); action_before (pattern, then second); no_consecutive_repeat (pattern may be "");
action_count (pattern, least, most); min_steps (least); max_steps (most); observation_contains (pattern, searched in what the
world said; after: only what followed such an action counts). Add checks that tell solved from failed episodes, remove those
that do not; 10 are enough.
"""

_CHOICE = """\
In a small bank add; after recent rejections rather modify; near the cap delete. Do not repeat rejected ideas. Say what to do in
any task of this kind, not what one task needed. Prefer `action_pattern`.
"""

_INSIGHT = (
    '{"insight": "one sentence: what made the difference", "failure_mode": "two to five words",'
    ' "success_pattern": "what solved it", "triggers": ["^open\\\\b"]}'
)

CONTRAST = f"""{_BASICS}
You are given episodes of one task. Compare those that solved it with those that failed; if all ended alike, say what decided it.
Version `new` was played with a changed bank that was being tested, `old` with the bank of that time.
triggers are patterns of actions after which advice would have helped.

{_INSIGHT}
"""

CONTRAST_ALL = f"""{_BASICS}
You are given episodes of several tasks. For each task compare those that solved it with those that failed.
triggers are patterns of actions after which advice would have helped. Give one insight per task, or fewer.

{{"insights": [{_INSIGHT}]}}
"""

DIAGNOSE = f"""{_BASICS}
You are given numbered insights from single tasks and numbered assertions with the share of solved and of failed episodes in
which they hold. Say in 2 to 4 sentences, with numbers, what fails most; put insights of one meaning into groups; edit the
assertions.
{_ASSERTIONS}
{{"diagnosis": "...", "groups": [{{"label": "...", "insights": [1, 4], "representative": 4}}],
 "assertions": {{"add": [{{"check": "action_exists", "pattern": "^open\\\\b", "description": "..."}}], "remove": [2]}}}}
"""

RECOMMEND = f"""{_BASICS}
Recommend 1 to 3 operations on the bank, the most promising first. Another step writes them out.
{_CHOICE}
{{"operations": [{{"op": "add, modify or delete", "target": "name of the skill", "intent": "what it shall change",
 "evidence": "numbers that speak for it", "insights": [1, 4], "trigger": "general, beginning, or a pattern"}}]}}
"""

WRITE = f"""{_BASICS}
Write out the recommended operations on the bank. If an earlier attempt was refused, mend what was wrong.

{{"operations": [...]}} with operations of these forms:
{_OPERATIONS}"""

MERGED = f"""{_BASICS}
From insights, assertions (with the share of solved and of failed episodes in which they hold) and the bank: say in 2 to 4
sentences what fails most, edit the assertions, and write 1 to 3 operations on the bank.
{_ASSERTIONS}{_CHOICE}
{{"diagnosis": "...", "assertions": {{"add": [], "remove": []}}, "operations": [...]}} with operations of these forms:
{_OPERATIONS}"""

REPAIR = (
    "Your answer could not be used. Answer again, with one JSON object of the form you were given and nothing else."
)


class Insight(NamedTuple):
    """What the episodes of one task taught.

    Attributes:
        insight: one sentence.
        failure_mode: a label.
        success_pattern: what solved the task.
        triggers: patterns of actions after which advice would have helped.
    """

    insight: str
    failure_mode: str
    success_pattern: str
    triggers: tuple[str, ...] = ()


def by_rule(group: Sequence[Experience]) -> Insight:
    """An insight of one task's episodes without a model: the transition that speaks most for success, and that for failure."""
    solved = sum(one.success for one in group)
    weights = contrast([group])
    if not weights:
        mode = "never solved" if not solved else "always solved"
        return Insight(f"{solved} of {len(group)} episodes solved it", mode, "nothing to compare with")
    best, worst = max(weights, key=weights.__getitem__), min(weights, key=weights.__getitem__)
    good, bad = (f"{action or 'nothing'} {f'after {verb}' if verb else 'first'}" for verb, action in (best, worst))
    insight = f"{solved} of {len(group)} episodes solved it; more often there: {good}; more often in failures: {bad}"
    verbs = dict.fromkeys(pair[0].partition(" ")[0] for pair in (best, worst) if pair[0])
    return Insight(insight, bad, good, tuple(rf"^{re.escape(verb)}\b" for verb in verbs))


def message(sections: Mapping[str, str]) -> str:
    """One text with a heading over each section; empty sections are left out."""
    return "\n\n".join(f"## {title}\n{text}" for title, text in sections.items() if text)


def clipped(text: str, most: int) -> str:
    """A text on one line, cut to ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def task_text(group: Sequence[Experience]) -> str:
    """A task with its episodes: the newest of each version and outcome, so at most four."""
    newest = {(one.condition, one.success): one for one in group}.values()
    episodes = (f"### Episode {n}\n{episode_text(one)}" for n, one in enumerate(newest, 1))
    return message({"Task": clipped(group[0].task, _TASK)}) + "\n\n" + "\n\n".join(episodes)


def episode_text(one: Experience) -> str:
    """An episode: version, outcome, skills shown, parsed actions, and what was thought before the last two."""
    lines = [f"{n}. {clipped(action or '(no action)', _ACTION)}" for n, action in enumerate(one.actions, 1)]
    if len(lines) > _SHOWN:
        lines[_ENDS:-_ENDS] = [f"({len(lines) - 2 * _ENDS} actions left out)"]
    names = dict.fromkeys(name for shown in one.shown for name in shown)
    head = f"version {one.condition}, {'solved' if one.success else 'failed'}, {len(one.actions)} actions"
    thoughts = [f"thought near the end: {clipped(thought, _THOUGHT)}" for thought in one.thoughts[-2:] if thought]
    return "\n".join([head, f"skills shown: {', '.join(names) or 'none'}", *lines, *thoughts])


def insights_text(insights: Sequence[Insight]) -> str:
    """Insights, numbered from 1."""
    return "\n".join(f"{n}. [{one.failure_mode}] {one.insight}" for n, one in enumerate(insights, 1))


def full_text(insights: Sequence[Insight], numbers: Sequence[int]) -> str:
    """All that these insights say; numbers count from 1."""
    return "\n".join(
        f"{n}. {insights[n - 1].insight} Solved by: {insights[n - 1].success_pattern}. "
        f"Patterns: {', '.join(insights[n - 1].triggers) or 'none'}"
        for n in numbers
    )


def grades_text(grades: Sequence[Grade]) -> str:
    """Assertions with their pass rates, numbered from 1."""
    return "\n".join(
        f"{n}. holds in {one.successes:.0%} of solved and {one.failures:.0%} of failed episodes: "
        + json.dumps({key: value for key, value in one.assertion.to_dict().items() if value not in ("", None)})
        for n, one in enumerate(grades, 1)
    )


def bank_text(bank: Bank, experiences: Sequence[Experience], history: Sequence[Decision]) -> str:
    """Every skill with its trigger, the share of episodes that fire it, and for how many versions it has been there."""
    lines = [f"{len(bank)} of at most {bank.cap} skills."]
    for skill in bank.skills:
        trigger = f"after {skill.pattern}" if skill.pattern else skill.trigger
        rate = f"{trigger_rate(skill, experiences):.0%}"
        lines.append(
            f"- {skill.name} ({trigger}; fires in {rate} of episodes; {_age(skill.name, history)}): "
            f"{skill.when_to_use} -> {skill.action}"
        )
    return "\n".join(lines)


def _age(name: str, history: Sequence[Decision]) -> str:
    """How long a skill has been as it is, in versions tried since: nobody tells an author the iteration."""
    for since, decision in enumerate(reversed(history)):
        if decision.accepted and name in map(_target, decision.bundle):
            return f"unchanged for {since} versions"
    return "there from the start"


def history_text(history: Sequence[Decision]) -> str:
    """The latest decisions with both posterior means."""
    lines = []
    for decision in history[-_DECISIONS:]:
        means = f"new {decision.new:.2f}, old {decision.old:.2f}"
        verdict = "accepted" if decision.accepted else "rejected"
        what = "; ".join(map(_told, decision.bundle))
        lines.append(f"- {verdict} ({'untested' if math.isnan(decision.new) else means}): {what}")
    return "\n".join(lines)


def _target(operation: Operation) -> str:
    return operation.skill.name if isinstance(operation, Add) else operation.name


def _told(operation: Operation) -> str:
    if isinstance(operation, Add):
        return f"add {operation.skill.name} ({operation.skill.pattern or operation.skill.trigger}): {operation.skill.action}"
    if isinstance(operation, Modify):
        return f"modify {operation.name}: {json.dumps(operation.changes)}"
    return f"delete {operation.name}"


def vocabulary_text(experiences: Sequence[Experience]) -> str:
    """First words of actions, each with the share of episodes where another turn follows it, and with an example."""
    count: Counter[str] = Counter()
    for one in experiences:
        count.update({_verb(action) for action in one.actions[:-1] if action})
    example = {_verb(action): action for one in experiences for action in one.said}
    chosen = sorted(example, key=lambda verb: -count[verb])[:_VERBS]
    return "\n".join(
        f"- {verb}: followed by a turn in {count[verb] / len(experiences):.0%} of episodes, "
        f"for example: {clipped(example[verb], _ACTION)}"
        for verb in chosen
    )


def _verb(action: str) -> str:
    """The first word, in lower case; of ``search[the moon]`` it is ``search``."""
    return (re.findall(r"\w+", action.lower()) or [action])[0]
