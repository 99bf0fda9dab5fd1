"""Skills, banks of them, and versions of a bank (ReSkill, arXiv 2606.01619, section 3; dossier 1.2-1.4)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from zoo.reskill.lexicon import fill

Trigger = Literal["general", "beginning", "action_pattern"]
MAX_LENGTH = 500  # characters of a skill's content
MAX_OPERATIONS = 3  # of a version
MAX_PATTERN = 200  # characters
INDEX_FILE, SKILL_FILE = "skills.json", "SKILL.md"
_CONTENT = ("when_to_use", "action", "examples")
_CHANGEABLE = (*_CONTENT, "trigger", "pattern")


class SkillError(ValueError):
    """A skill, an operation or a file of skills that cannot be used; the message names it and says why."""


@dataclass(frozen=True)
class Skill:
    """An advice to the policy, with the situation in which it is shown.

    Attributes:
        name: short, in kebab-case; operations call a skill by it.
        when_to_use: where it applies.
        action: what is to be done. Slots, ``{target}``, ``{destination}`` and ``{station}``, are filled with the words of the task
            where the world tells their roles.
        examples: at most one pair of lines, what to do and what not to do.
        trigger: shown at every turn (``general``), at the first (``beginning``), or where the latest action fits ``pattern``.
        pattern: a regular expression, searched in the parsed action without regard to case.
        created_at: iteration in which it was written.
        version: raised by every modification.

    Raises:
        SkillError: a name, trigger, pattern or content that cannot be.
    """

    name: str
    when_to_use: str
    action: str
    examples: tuple[str, ...] = ()
    trigger: Trigger = "general"
    pattern: str = ""
    created_at: int = 0
    version: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise SkillError(f"skill name {self.name!r}: use lower-case words joined by hyphens")
        if isinstance(self.examples, str) or not isinstance(self.examples, Sequence):
            raise SkillError(f"skill {self.name}: examples are a list of lines, not {self.examples!r}")
        object.__setattr__(self, "examples", tuple(self.examples))
        texts = (self.when_to_use, self.action, self.pattern, *self.examples)
        if not all(isinstance(text, str) for text in texts) or not self.action.strip():
            raise SkillError(f"skill {self.name}: its fields are texts, and action is not empty")
        if any(re.search(r"^## |[\ud800-\udfff]", text, re.MULTILINE) for text in texts):
            raise SkillError(f"skill {self.name}: no headings and no halves of characters, please")
        if type(self.created_at) is not int or type(self.version) is not int:
            raise SkillError(f"skill {self.name}: created_at and version are whole numbers")
        if self.length > MAX_LENGTH:
            raise SkillError(f"skill {self.name} has {self.length} characters; at most {MAX_LENGTH} are shown")
        if self.trigger not in get_args(Trigger):
            raise SkillError(f"skill {self.name}: trigger must be one of {get_args(Trigger)}, not {self.trigger!r}")
        if (self.trigger == "action_pattern") != bool(self.pattern):
            raise SkillError(f"skill {self.name}: a pattern belongs to the trigger action_pattern, and it needs one")
        if problem := bad_pattern(self.pattern):
            raise SkillError(f"skill {self.name}: {problem}")

    @property
    def length(self) -> int:
        """Characters of the content."""
        return sum(map(len, (self.when_to_use, self.action, *self.examples)))

    def fires(self, actions: Sequence[str | None]) -> bool:
        """Whether it is shown after these parsed actions (``None``: a reply without one)."""
        if self.trigger == "action_pattern":
            return bool(actions and actions[-1] and re.search(self.pattern, actions[-1], re.IGNORECASE))
        return self.trigger == "general" or not actions

    @classmethod
    def from_dict(cls, record: Any) -> Skill:
        """A skill from its record; unknown and missing keys are refused."""
        if not isinstance(record, dict):
            raise SkillError(f"a skill is a mapping, not {record!r}")
        known = {field.name for field in fields(cls)}
        if unknown := sorted(map(str, record.keys() - known)):
            raise SkillError(f"skill {record.get('name')!r}: unknown keys {', '.join(unknown)}")
        if missing := [name for name in ("name", "when_to_use", "action") if name not in record]:
            raise SkillError(f"skill {record.get('name')!r} lacks {', '.join(missing)}")
        return cls(**record)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "examples": list(self.examples)}


def bad_pattern(pattern: str) -> str:
    """Why a text is no pattern to be searched with, or nothing. One whose search may take for ever is none."""
    if len(pattern) > MAX_PATTERN:
        return f"a pattern of {len(pattern)} characters; {MAX_PATTERN} are enough"
    if re.search(r"[+*}][^(]*\)[+*{]", pattern):
        return f"the pattern {pattern!r} repeats a repetition"
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"{pattern!r} is no regular expression: {error}"
    return ""


@dataclass(frozen=True)
class Add:
    """Put a new skill into the bank."""

    skill: Skill


@dataclass(frozen=True)
class Modify:
    """Change fields of a skill: those of its content, ``trigger`` and ``pattern``."""

    name: str
    changes: dict[str, Any]


@dataclass(frozen=True)
class Delete:
    """Take a skill out of the bank."""

    name: str


Operation = Add | Modify | Delete
Bundle = Sequence[Operation]


@dataclass(frozen=True)
class Bank:
    """The skills that a policy may be shown, in the order they came.

    Never changed, only replaced: a version is tested against the very bank it was made from, and rejecting it means going on
    with that bank.

    Attributes:
        skills: at most ``cap``, no two of one name.
        cap: how many there may be.
    """

    skills: tuple[Skill, ...] = ()
    cap: int = 8

    def __post_init__(self) -> None:
        if len(self.skills) > self.cap:
            raise SkillError(f"{len(self.skills)} skills in a bank of at most {self.cap}: delete one first")
        names = [skill.name for skill in self.skills]
        if double := {name for name in names if names.count(name) > 1}:
            raise SkillError(f"skills must have names of their own: {', '.join(sorted(double))}")

    def __len__(self) -> int:
        return len(self.skills)

    def get(self, name: str) -> Skill:
        for skill in self.skills:
            if skill.name == name:
                return skill
        raise SkillError(f"no skill {name!r} in the bank: {', '.join(s.name for s in self.skills) or 'it is empty'}")

    def shown(self, actions: Sequence[str | None], roles: Mapping[str, str]) -> list[Skill]:
        """The skills whose trigger is true after these parsed actions, without those that this task has no words for."""
        return [skill for skill in self.skills if skill.fires(actions) and fill(skill.action, roles) is not None]

    def apply(self, bundle: Bundle, most: int = MAX_OPERATIONS) -> Bank:
        """The next version: all operations of the bundle, in their order, or none.

        Raises:
            SkillError: an empty or too long bundle, one that changes nothing, an unknown name, a name that is taken, a full bank.
        """
        if not 1 <= len(bundle) <= most:
            raise SkillError(f"a version has 1 to {most} operations, not {len(bundle)}")
        bank = self
        for operation in bundle:
            bank = bank._apply(operation)
        if [_meaning(skill) for skill in bank.skills] == [_meaning(skill) for skill in self.skills]:
            raise SkillError("the version shows what the bank shows already: there is nothing to test")
        return bank

    def _apply(self, operation: Operation) -> Bank:
        if isinstance(operation, Add):
            return replace(self, skills=(*self.skills, operation.skill))
        old = self.get(operation.name)
        if isinstance(operation, Delete):
            return replace(self, skills=tuple(skill for skill in self.skills if skill is not old))
        if unknown := sorted(operation.changes.keys() - set(_CHANGEABLE)):
            raise SkillError(
                f"skill {old.name}: {', '.join(unknown)} cannot be modified, only {', '.join(_CHANGEABLE)}"
            )
        new = replace(old, **operation.changes, version=old.version + 1)
        return replace(self, skills=tuple(new if skill is old else skill for skill in self.skills))

    def records(self) -> list[dict[str, Any]]:
        """Plain data, for checkpoints and cards."""
        return [skill.to_dict() for skill in self.skills]

    @classmethod
    def from_records(cls, records: Iterable[Any], cap: int = 8) -> Bank:
        return cls(tuple(Skill.from_dict(record) for record in records), cap)


def _meaning(skill: Skill) -> Skill:
    """A skill without what does not matter to the policy."""
    return replace(skill, created_at=0, version=1)


def parse_operation(record: Any) -> Operation:
    """An operation from plain data: ``{"op": "add", "skill": {...}}``, ``{"op": "modify", "name", "changes"}``, ``{"op": "delete",
    "name"}``.

    Raises:
        SkillError: any other form.
    """
    kind = record.get("op") if isinstance(record, dict) else None
    if kind == "add":
        return Add(Skill.from_dict(record.get("skill")))
    if kind in ("modify", "delete"):
        name = record.get("name")
        if not isinstance(name, str):
            raise SkillError(f"an operation {kind!r} needs the name of a skill: {record!r}")
        if kind == "delete":
            return Delete(name)
        if not isinstance(changes := record.get("changes"), dict):
            raise SkillError(f"to modify {name} takes a mapping of changes: {record!r}")
        return Modify(name, changes)
    raise SkillError(f"an operation has op add, modify or delete: {record!r}")


def operation_record(operation: Operation) -> dict[str, Any]:
    """The plain data that :func:`parse_operation` reads."""
    if isinstance(operation, Add):
        return {"op": "add", "skill": operation.skill.to_dict()}
    if isinstance(operation, Delete):
        return {"op": "delete", "name": operation.name}
    changes = {key: list(value) if isinstance(value, tuple) else value for key, value in operation.changes.items()}
    return {"op": "modify", "name": operation.name, "changes": changes}


def save_bank(bank: Bank, folder: str | Path) -> None:
    """Write a bank as ``skills.json``, and for other tools and for people one ``<name>/SKILL.md`` each."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"*/{SKILL_FILE}"):
        old.unlink()
        if not any(old.parent.iterdir()):
            old.parent.rmdir()
    for skill in bank.skills:
        (folder / skill.name).mkdir(exist_ok=True)
        (folder / skill.name / SKILL_FILE).write_text(to_markdown(skill), encoding="utf-8")
    text = json.dumps({"cap": bank.cap, "skills": bank.records()}, indent=1)
    (folder / INDEX_FILE).write_text(text + "\n", encoding="utf-8")


def load_bank(folder: str | Path, cap: int = 8) -> Bank:
    """Read a bank: ``skills.json``, or else every ``*/SKILL.md`` by name.

    Raises:
        SkillError: there is neither, or a file that cannot be read; names the file.
    """
    index, files = Path(folder) / INDEX_FILE, sorted(Path(folder).glob(f"*/{SKILL_FILE}"))
    if not index.exists() and not files:
        raise SkillError(f"{folder}: neither {INDEX_FILE} nor any */{SKILL_FILE}")
    path = index
    try:
        if index.exists():
            records = json.loads(index.read_text(encoding="utf-8"))["skills"]
            return Bank.from_records(records, cap)
        skills = []
        for path in files:
            skills.append(from_markdown(path.read_text(encoding="utf-8")))
        return Bank(tuple(skills), cap)
    except (ValueError, KeyError, TypeError) as error:
        raise SkillError(f"{path}: {error}") from error


def to_markdown(skill: Skill) -> str:
    """``SKILL.md``: front matter in YAML, then the content in sections."""
    front: dict[str, Any] = {"name": skill.name, "description": skill.when_to_use, "trigger": skill.trigger}
    front |= {"pattern": skill.pattern, "created_at": skill.created_at, "version": skill.version}
    head = yaml.safe_dump({key: value for key, value in front.items() if value != ""}, sort_keys=False, width=1000)
    examples = "".join(f"- {line}\n" for line in skill.examples)
    sections = {"When to Use": skill.when_to_use, "Action": skill.action, "Examples": examples}
    body = "\n\n".join(f"## {title}\n\n{text.strip()}" for title, text in sections.items() if text)
    return f"---\n{head}---\n\n{body}\n"


def from_markdown(text: str) -> Skill:
    """Read a ``SKILL.md``. One of another tool, without our keys, is shown always and has the whole text as its action.

    Raises:
        SkillError: no front matter, or a content that no skill may have.
    """
    found = re.fullmatch(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL)
    try:
        front = yaml.safe_load(found.group(1)) if found else None
    except yaml.YAMLError as error:
        raise SkillError(f"front matter that is not YAML: {error}") from None
    if found is None or not isinstance(front, dict):
        raise SkillError("no front matter: begin with a line ---, name and description, and a line ---")
    parts = re.split(r"^## (.+)\n", found.group(2), flags=re.MULTILINE)
    sections = {title.strip().lower(): body.strip() for title, body in zip(parts[1::2], parts[2::2], strict=True)}
    lines = (line.removeprefix("-").strip() for line in sections.get("examples", "").splitlines())
    kept = {key: front[key] for key in ("trigger", "pattern", "created_at") if key in front}
    if type(front.get("version")) is int:  # other tools write "1.0.0"
        kept["version"] = front["version"]
    record = {
        "name": front.get("name"),
        "when_to_use": sections.get("when to use", front.get("description", "")),
        "action": sections.get("action", found.group(2).strip()),
        "examples": [line for line in lines if line],
    }
    return Skill.from_dict(record | kept)
