"""How memory is talked about: once in words of a tiny vocabulary, once in prose for instruction-tuned models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from zoo.rollout.trajectory import Record

MAX_TURNS = 64  # turns a word-level vocabulary can name
TAGS = ("finding", "selection", "summary")


@dataclass(frozen=True)
class Phrases:
    """Templates; the fields in braces are filled in.

    Attributes:
        turn: name of a turn, with ``{}`` for its number.
        record: one line of memory: ``turn``, ``action``, ``finding``.
        records: how kept records are shown: ``records``.
        findings: first prompt of a policy that writes findings.
        select: asks for a selection: ``records``, ``limit``, ``recent``.
        summaries: first prompt of a policy that writes summaries.
        summarise: asks for a summary: ``limit``.
        summary: how a summary is shown: ``summary``.
        acted: a turn in a history: ``action``, ``observation``.
        judge: asks which of two actions is better: ``first``, ``second``.
        skill: one skill in a prompt: ``name``, ``when_to_use``, ``action``, ``examples``.
        skills: the section of all that are shown: ``skills``.
        no_skills: the same where there is none.
        headwords: a record may be named by the first word of its finding as well as by its turn. A policy of a few hundred
            thousand parameters finds a word that belongs to what it looks for; from there to the number that stands two words
            before is a step it does not learn in a short warm start.
    """

    turn: str
    record: str
    records: str
    findings: str
    select: str
    summaries: str
    summarise: str
    summary: str
    acted: str
    judge: str
    skill: str
    skills: str
    no_skills: str
    headwords: bool = False

    def show(self, records: Sequence[Record]) -> str:
        """Records, one after the other, as they stand in a prompt."""
        lines = (
            self.record.format(turn=self.turn.format(record.turn), action=record.action, finding=record.finding)
            for record in records
        )
        return "\n".join(lines)

    def name(self, record: Record) -> str:
        """How the policy may call a record when it selects."""
        return record.finding.split()[0] if self.headwords and record.finding else self.turn.format(record.turn)

    def turns(self, text: str, records: Sequence[Record] = ()) -> list[int]:
        """Turns named in a text, in the order they stand there; of records that share a name the latest is meant."""
        names = {self.name(record): record.turn for record in records} if self.headwords else {}
        number = rf"(?<!\w){re.escape(self.turn.partition('{}')[0])}(\d+)(?!\w)"
        word = rf"(?<!\S)({'|'.join(map(re.escape, names))})(?!\S)" if names else "((?!))"
        return [int(found[1]) if found[1] else names[found[2]] for found in re.finditer(f"{number}|{word}", text)]

    @property
    def words(self) -> tuple[str, ...]:
        """The vocabulary of the templates, for word-level policies."""
        templates = (
            self.record,
            self.records,
            self.findings,
            self.select,
            self.summaries,
            self.summarise,
            self.summary,
        )
        fixed = [word for template in templates for word in template.split() if "{" not in word]
        tags = [f"<{slash}{tag}>" for tag in TAGS for slash in ("", "/")]
        return tuple(dict.fromkeys([*fixed, *tags, *(self.turn.format(number) for number in range(MAX_TURNS))]))


def tagged(text: str, tag: str) -> tuple[int, int, str] | None:
    """Start, end and content of the first ``<tag>...</tag>``; an open one reaches to the end of the text."""
    found = re.search(rf"<{tag}>(.*?)(?:</{tag}>|$)", text, re.DOTALL)
    return (found.start(), found.end(), found.group(1)) if found else None


WORDS = Phrases(
    turn="t{}",
    record="{turn} {action} {finding}",
    records="records {records}",
    findings="findings",
    select="records {records} select",
    summaries="summaries",
    summarise="summarise",
    summary="summary {summary}",
    acted="do {action} {observation}",  # as in a reply, so that a thought is not taken for an action
    judge="better {first} or {second} ?",
    skill="{action}",
    skills="skills {skills} .",
    no_skills="",
    headwords=True,
)

PROSE = Phrases(
    turn="turn_{}",
    record="{turn}: action={action} | finding={finding}",
    records="Relevant earlier turns:\n{records}",
    findings=(
        "Your context is limited. After every observation, begin your reply with one factual sentence about that observation "
        "only, in <finding>...</finding>; then think and act as usual."
    ),
    select=(
        "The context is full. All turns so far:\n{records}\nWhich of them are needed to go on? The last {recent} are kept "
        "anyway. Do not act or answer now. Reply with exactly one block of at most {limit} lines:\n"
        "<selection>\nturn_N: reason\n</selection>"
    ),
    summaries="Your context is limited. When it is full you will be asked to sum up what you know, and go on from your summary.",
    summarise=(
        "The context is full. Do not act now. In at most {limit} tokens write down everything that is needed to go on - facts "
        "with their sources, what was tried, what is next - as one block: <summary>...</summary>"
    ),
    summary="Summary of what happened so far:\n{summary}",
    acted="> {action}\n{observation}",
    judge=(
        "Two actions are proposed.\nAction 1: {first}\nAction 2: {second}\nWhich of them is better for the task? Think about "
        "both, then give the better action itself."
    ),
    skill="### {name}\nWhen to use: {when_to_use}\nAction: {action}\n{examples}",
    skills=(
        "## Available skills\n{skills}\n\nRead when each skill is to be used. Name the one that applies and follow its action, or "
        "go on by your own judgement."
    ),
    no_skills="## Available skills\n(no skills available)",
)
