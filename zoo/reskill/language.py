"""Language models as authors of skills (ReSkill, arXiv 2606.01619, section 3; dossier 1.10 and 6.6).

Any :data:`Chat` will do: an OpenAI-compatible endpoint (:func:`endpoint_chat`), the policy itself, a script in a test.
"""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import torch

from zoo.errors import ConfigError
from zoo.policy.causal import CausalPolicy
from zoo.reskill import prompts
from zoo.reskill.authors import Author, Check
from zoo.reskill.diagnosis import Assertion, Experience, Reservoir, distinct, grade
from zoo.reskill.evolution import Decision
from zoo.reskill.prompts import Insight
from zoo.reskill.skills import Bank, Bundle, SkillError, parse_operation
from zoo.rollout.engine import Engine

log = logging.getLogger(__name__)
T = TypeVar("T")
Json = dict[str, Any]
Chat = Callable[[str, str], str]  # system message, user message -> reply

ATTEMPTS = 3  # at a version that may be tested
_RECOMMENDED = 3  # operations
_REFERENCED = 3  # insights that an operation rests on
_QUOTED = 2000  # characters of a reply that is to be mended
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ChatError(RuntimeError):
    """A chat that gave no reply: endpoint down, out of time, request refused. One line."""


class _Unusable(ValueError):
    """A reply that is not what was asked for; the message says what is wrong with it."""


@dataclass(frozen=True)
class _Material:
    """What one proposal is made from; the arguments of :meth:`Author.__call__`."""

    experiences: Sequence[Experience]
    groups: Sequence[Sequence[Experience]]
    bank: Bank
    history: Sequence[Decision]
    assertions: list[Assertion]
    check: Check

    @property
    def bank_text(self) -> str:
        return prompts.bank_text(self.bank, self.experiences, self.history)

    @property
    def grades_text(self) -> str:
        return prompts.grades_text(grade(self.assertions, self.experiences))

    @property
    def vocabulary_text(self) -> str:
        return prompts.vocabulary_text(self.experiences)


class _Group(NamedTuple):
    """Insights of one meaning: their numbers, from 1, and the one that says it best."""

    label: str
    insights: list[int]
    representative: int


class _Edits(NamedTuple):
    """Assertions to add, as plain data, and the numbers, from 1, of those to remove."""

    add: list[Any]
    remove: list[int]

    def carry_out(self, assertions: list[Assertion]) -> None:
        """Edit in place. An addition that is no assertion is left out: nothing but advice to the author rests on it."""
        kept = [assertion for number, assertion in enumerate(assertions, 1) if number not in self.remove]
        for record in self.add:
            try:
                kept.append(Assertion.from_dict(record))
            except SkillError as error:
                log.info("an assertion is left out: %s", error)
        assertions[:] = distinct(kept)


@dataclass(frozen=True)
class _Diagnosis:
    """What a batch of insights comes to; empty where the model's answer could not be used."""

    text: str = ""
    groups: tuple[_Group, ...] = ()


class LanguageAuthor(Author):
    """Writes versions with a language model.

    In stages, as the paper does: one call per task contrasts its episodes; assertions are graded without a model; one call
    diagnoses the batch and edits the assertions; one recommends operations; one writes them, and again with the reason, up to
    three times, if they may not be tested. Merged, for a small policy that is its own author: one call contrasts all tasks, one
    diagnoses and writes.

    A reply that cannot be read is asked for once more, with the reason. A failed proposal costs training no more than its calls:
    if nothing usable comes, or the chat raises :class:`ChatError`, that is one line in the log. Any other exception of a chat is a
    mistake in it and is not caught.

    Args:
        chat: the model; in stages it is called from several threads.
        merged: two calls instead of stages.
        groups: most tasks that are contrasted; also bounds the length of the merged call's prompt.
        workers: calls at a time in the first stage.

    Raises:
        ConfigError: groups or workers below 1.
    """

    def __init__(self, chat: Chat, merged: bool = False, groups: int = 30, workers: int = 16) -> None:
        if min(groups, workers) < 1:
            raise ConfigError(f"author.groups and author.workers must be at least 1, not {groups} and {workers}")
        self.chat, self.merged, self.groups, self.workers = chat, merged, groups, workers

    def __call__(
        self,
        reservoir: Reservoir,
        bank: Bank,
        history: Sequence[Decision],
        assertions: list[Assertion],
        *,
        rng: random.Random,
        check: Check,
    ) -> Bundle | None:
        groups = reservoir.sample(rng, self.groups)
        material = _Material(reservoir.experiences, groups, bank, history, assertions, check)
        chat = _Line(self.chat)
        try:
            if not groups:
                raise _Unusable("there are no episodes to learn from")
            return self._at_once(chat, material) if self.merged else self._in_stages(chat, material)
        except (ChatError, _Unusable, SkillError) as error:
            log.warning("the author proposes no version: %s", prompts.clipped(str(error), 300))
            return None

    def _in_stages(self, chat: Chat, material: _Material) -> Bundle:
        with ThreadPoolExecutor(min(self.workers, len(material.groups))) as pool:
            insights = list(pool.map(lambda group: _contrast(chat, group), material.groups))
        diagnosis = _diagnose(chat, material, insights)
        recommended = _recommend(chat, material, insights, diagnosis)
        return _write(chat, material, insights, recommended)

    def _at_once(self, chat: Chat, material: _Material) -> Bundle:
        tasks = "\n\n".join(map(prompts.task_text, material.groups))
        try:
            insights = _ask(chat, prompts.CONTRAST_ALL, tasks, _insights)
        except _Unusable as error:
            log.info("insights by rule: %s", error)
            insights = list(map(prompts.by_rule, material.groups))
        sections = {
            "Insights": prompts.full_text(insights, range(1, len(insights) + 1)),
            "Assertions": material.grades_text,
            "Bank": material.bank_text,
            "Latest versions": prompts.history_text(material.history),
            "Actions": material.vocabulary_text,
        }
        operations, edits = _ask(
            chat, prompts.MERGED, prompts.message(sections), lambda reply: (_list(reply, "operations"), _edits(reply))
        )
        edits.carry_out(material.assertions)
        return _checked(operations, material.check)


class _Line:
    """A chat that is not tried again after its first error, from whatever thread."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self.error: ChatError | None = None

    def __call__(self, system: str, user: str) -> str:
        if self.error is not None:
            raise self.error
        try:
            return self.chat(system, user)
        except ChatError as error:
            self.error = error
            raise


def _contrast(chat: Chat, group: Sequence[Experience]) -> Insight:
    """What one task teaches; by rule if the model's answer cannot be used."""
    try:
        return _ask(chat, prompts.CONTRAST, prompts.task_text(group), _insight)
    except _Unusable as error:
        log.info("an insight by rule: %s", error)
        return prompts.by_rule(group)


def _diagnose(chat: Chat, material: _Material, insights: Sequence[Insight]) -> _Diagnosis:
    """What fails most; edits the assertions, whose new ones are first graded in the next cycle."""
    sections = {
        "Insights": prompts.insights_text(insights),
        "Assertions": material.grades_text or "none yet",
        "Bank": material.bank_text,
    }

    def read(reply: Json) -> tuple[_Diagnosis, _Edits]:
        groups = tuple(_group(record, len(insights)) for record in _list(reply, "groups"))
        return _Diagnosis(_text(reply, "diagnosis"), groups), _edits(reply)

    try:
        diagnosis, edits = _ask(chat, prompts.DIAGNOSE, prompts.message(sections), read)
    except _Unusable as error:
        log.info("no diagnosis: %s", error)
        return _Diagnosis()
    edits.carry_out(material.assertions)
    return diagnosis


def _recommend(chat: Chat, material: _Material, insights: Sequence[Insight], diagnosis: _Diagnosis) -> list[Json]:
    """One to three operations with what speaks for them."""
    largest_first = sorted(diagnosis.groups, key=lambda group: -len(group.insights))
    lines = [
        f"- {group.label}: {len(group.insights)} insights, such as {prompts.full_text(insights, [group.representative])}"
        for group in largest_first
    ]
    sections = {
        "Diagnosis": diagnosis.text,
        "Groups of insights": "\n".join(lines),
        "Insights": prompts.insights_text(insights),
        "Bank": material.bank_text,
        "Latest versions": prompts.history_text(material.history),
        "Actions": material.vocabulary_text,
    }

    def read(reply: Json) -> list[Json]:
        return [_recommendation(record, len(insights)) for record in _list(reply, "operations", 1)[:_RECOMMENDED]]

    return _ask(chat, prompts.RECOMMEND, prompts.message(sections), read)


def _write(chat: Chat, material: _Material, insights: Sequence[Insight], recommended: Sequence[Json]) -> Bundle:
    """The recommended operations, written out until they may be tested.

    Raises:
        _Unusable: none of the attempts may; says what was wrong with the last one.
    """
    numbers = sorted({number for record in recommended for number in record["insights"][:_REFERENCED]})
    targets = {record["target"] for record in recommended}
    sections = {
        "Recommended": "\n".join(map(json.dumps, recommended)),
        "Skills concerned": "\n".join(
            json.dumps(_without_dates(skill.to_dict())) for skill in material.bank.skills if skill.name in targets
        ),
        "Insights": prompts.full_text(insights, numbers),
        "Bank": material.bank_text,
        "Actions": material.vocabulary_text,
    }
    reason = ""
    for _ in range(ATTEMPTS):
        records = _ask(chat, prompts.WRITE, prompts.message(sections), lambda reply: _list(reply, "operations"))
        try:
            return _checked(records, material.check)
        except SkillError as error:
            reason = str(error)
            sections |= {"Your last attempt": json.dumps(records), "Why it was refused": reason}
    raise _Unusable(f"refused {ATTEMPTS} times, at last because {reason}")


def _checked(records: Sequence[Any], check: Check) -> Bundle:
    """A bundle that may be tested."""
    bundle = [parse_operation(_undated(record)) for record in records]
    check(bundle)
    return bundle


def _undated(record: Any) -> Any:
    """An operation without what is not the model's to say."""
    skill = record.get("skill") if isinstance(record, dict) else None
    return {**record, "skill": _without_dates(skill)} if isinstance(skill, dict) else record


def _without_dates(skill: Json) -> Json:
    return {key: value for key, value in skill.items() if key not in ("created_at", "version")}


def _ask(chat: Chat, system: str, user: str, read: Callable[[Json], T]) -> T:
    """One call, and one more with what was wrong if ``read`` cannot use the reply.

    Raises:
        _Unusable: the second reply is no better.
    """
    reply = chat(system, user)
    try:
        return _first(reply, read)
    except _Unusable as error:
        repair = {"Your answer": reply[:_QUOTED], "What was wrong": str(error), "Now": prompts.REPAIR}
    return _first(chat(system, f"{user}\n\n{prompts.message(repair)}"), read)


def _first(reply: str, read: Callable[[Json], T]) -> T:
    """The first JSON object of a reply, bare or fenced, that ``read`` accepts; what was thought before is skipped.

    Objects inside of one that parses are not tried. Those inside of a broken one are, but no ``read`` here takes a part of its
    own form for the whole.
    """
    text = reply.rpartition("</think>")[2]
    wrong, start = "there is no JSON object in it", text.find("{")
    errors = []
    while start >= 0:
        end = start + 1
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair could not be written to a file
            return read(value)
        except (ValueError, RecursionError) as error:
            errors.append(str(error))
        start = text.find("{", end)
    raise _Unusable(errors[0] if errors else wrong)


def _text(record: Json, key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise _Unusable(f"{key} must be a text: {_quoted(record)}")
    return value


def _list(record: Json, key: str, least: int = 0) -> list[Any]:
    value = record.get(key)
    if not isinstance(value, list) or len(value) < least:
        raise _Unusable(f"{key} must be a list of at least {least} entries: {_quoted(record)}")
    return value


def _numbers(record: Json, key: str, most: int | None = None) -> list[int]:
    """References to numbered things, from 1."""
    values = _list(record, key)
    if not all(type(value) is int and value >= 1 and (most is None or value <= most) for value in values):
        raise _Unusable(f"{key} must be numbers from 1 to {most or 'the last'}: {_quoted(record)}")
    return values


def _mapping(value: Any, what: str) -> Json:
    if not isinstance(value, dict):
        raise _Unusable(f"{what} must be an object: {_quoted(value)}")
    return value


def _quoted(value: Any) -> str:
    return prompts.clipped(json.dumps(value), 200)


def _insight(record: Any) -> Insight:
    record = _mapping(record, "an insight")
    insight, mode, pattern = (_text(record, key) for key in ("insight", "failure_mode", "success_pattern"))
    return Insight(insight, mode, pattern, tuple(map(str, _list(record, "triggers"))))


def _insights(reply: Json) -> list[Insight]:
    return [_insight(record) for record in _list(reply, "insights", 1)]


def _edits(reply: Json) -> _Edits:
    edits = _mapping(reply.get("assertions"), "assertions")
    return _Edits(_list(edits, "add"), _numbers(edits, "remove"))


def _group(record: Any, insights: int) -> _Group:
    record = _mapping(record, "a group")
    label, numbers = _text(record, "label"), _numbers(record, "insights", insights)
    return _Group(
        label, numbers, _numbers({"representative": [record.get("representative")]}, "representative", insights)[0]
    )


def _recommendation(record: Any, insights: int) -> Json:
    record = _mapping(record, "an operation")
    if record.get("op") not in ("add", "modify", "delete"):
        raise _Unusable(f"op must be add, modify or delete: {_quoted(record)}")
    texts = {key: _text(record, key) for key in ("op", "target", "intent", "evidence")}
    return {**texts, "insights": _numbers(record, "insights", insights), "trigger": record.get("trigger", "")}


def endpoint_chat(
    base_url: str,
    model: str,
    api_key_env: str = "OPENAI_API_KEY",
    timeout: float = 60.0,
    temperature: float = 0.2,
    max_tokens: int = 4096,
) -> Chat:
    """A chat with a model behind an OpenAI-compatible endpoint; nothing is tried twice.

    Args:
        base_url: with its version, for example ``http://localhost:8000/v1``.
        model: as the endpoint calls it.
        api_key_env: environment variable with the key; a server on this machine needs none.
        timeout: seconds that the endpoint may be silent.
        temperature: of sampling.
        max_tokens: of a reply.

    Returns:
        The chat. A reply without text is an empty one. It raises :class:`ChatError` for whatever goes wrong on the way.

    Raises:
        ConfigError: no ``openai`` client, or no key for a remote endpoint.
    """
    try:
        import openai
    except ImportError as error:
        raise ConfigError("an endpoint as author needs openai: pip install 'agentic-zoo[author]'") from error
    key = os.environ.get(api_key_env) or ("none" if urlsplit(base_url).hostname in _LOOPBACK else None)
    if key is None:
        raise ConfigError(f"{base_url} wants a key: set {api_key_env} (to any text, if the server asks for none)")
    client = openai.OpenAI(base_url=base_url, api_key=key, timeout=timeout, max_retries=0)

    def chat(system: str, user: str) -> str:
        try:
            answer = client.chat.completions.create(
                model=model,
                messages=[{"role": "system", "content": system}, {"role": "user", "content": user}],
                temperature=temperature,
                max_tokens=max_tokens,
            )
        except (openai.OpenAIError, ValueError) as error:  # ValueError: a body that is announced as JSON and is none
            text = f"{base_url}: {type(error).__name__}: {error}"
            raise ChatError(prompts.clipped(text, _QUOTED)) from error
        try:
            content = answer.choices[0].message.content
        except (AttributeError, LookupError, TypeError) as error:  # the client does not check what it is sent
            raise ChatError(f"{base_url}: no chat completion but {prompts.clipped(repr(answer), 200)}") from error
        return str(content or "")

    return chat


def policy_chat(policy: CausalPolicy, max_new_tokens: int = 512, temperature: float = 0.3) -> Chat:
    """The policy itself, as it is at the time, by its chat template; a policy without one gets the bare text.

    Args:
        policy: in training; the same question gets the same answer from the same weights.
        max_new_tokens: of a reply.
        temperature: of sampling.
    """
    tokenizer = policy.tokenizer

    @torch.no_grad()
    def chat(system: str, user: str) -> str:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        text = (
            str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
            if tokenizer.chat_template
            else f"{system}\n{user}\n"
        )
        ids = tokenizer.encode(text, add_special_tokens=False)
        most = getattr(policy.model.config, "max_position_embeddings", None)
        if most is not None and len(ids) + max_new_tokens > most:
            raise ChatError(
                f"a prompt of {len(ids)} tokens and a reply of {max_new_tokens} are more than the policy's {most}"
            )
        generator = torch.Generator(policy.device).manual_seed(random.Random(text).getrandbits(60))
        engine = Engine(policy, temperature, generator)
        engine.admit([ids])
        training = policy.training
        policy.eval()
        try:
            reply = engine.generate([max_new_tokens], [[tokenizer.eos_token_id]])[0]
        finally:
            policy.train(training)
        return str(tokenizer.decode(reply.ids, skip_special_tokens=True))

    return chat


def policy_author(policy: CausalPolicy, groups: int = 8, **options: Any) -> LanguageAuthor:
    """The policy as its own author, in two calls a version; ``options`` are those of :func:`policy_chat`."""
    return LanguageAuthor(policy_chat(policy, **options), merged=True, groups=groups, workers=1)


def endpoint_author(merged: bool = False, groups: int = 30, workers: int = 16, **options: Any) -> LanguageAuthor:
    """An author behind an OpenAI-compatible endpoint; ``options`` are those of :func:`endpoint_chat`."""
    return LanguageAuthor(endpoint_chat(**options), merged, groups, workers)
