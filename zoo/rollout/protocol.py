"""How an environment's text becomes tokens, and how a reply becomes an action.

A protocol renders each piece once, at the moment the policy is shown it. What was rendered or sampled is never encoded again,
so a chat template that would rewrite earlier turns cannot make training see other tokens than the sampler did.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from zoo.errors import ConfigError
from zoo.policy.words import END
from zoo.reskill.lexicon import AVOID, OTHER, TRY
from zoo.rollout.phrases import PROSE, WORDS, Phrases

Info = dict[str, Any]
_ACT = "do"  # stands between a thought and the action
_NUMBERS = 32  # turns a word-level vocabulary can number


class Protocol(ABC):
    """Text in, tokens out, and back.

    Args:
        max_new_tokens: cap of one reply; a reply that hits it ends the episode as ``generation_cut``.
    """

    correction = "this was not an action"
    phrases: Phrases = WORDS  # how it talks about memory

    def __init__(self, max_new_tokens: int) -> None:
        if max_new_tokens < 1:
            raise ValueError(f"protocol.max_new_tokens must be at least 1, not {max_new_tokens}")
        self.max_new_tokens = max_new_tokens

    @property
    def words(self) -> tuple[str, ...]:
        """Words a word-level vocabulary needs besides those of the environment."""
        return ()

    @abstractmethod
    def prompt(self, tokenizer: PreTrainedTokenizerBase, observation: str, info: Info, notes: str = "") -> list[int]:
        """Ids of the first message: the first observation, then the method's ``notes`` (guidance, skills ...)."""

    @abstractmethod
    def observation(self, tokenizer: PreTrainedTokenizerBase, text: str, info: Info) -> list[int]:
        """Ids that follow a reply: the next observation up to where the next reply begins."""

    @abstractmethod
    def action(self, tokenizer: PreTrainedTokenizerBase, text: str, info: Info, before: str = "") -> list[int]:
        """Ids of a demonstrated reply: ``before``, then the action ``text``, either may be empty; end of turn included."""

    @abstractmethod
    def stop(self, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        """Token sequences that end a reply."""

    @abstractmethod
    def parse(self, reply: str, info: Info) -> str | None:
        """The action in a reply's text, or ``None`` where there is none."""

    def thought(self, reply: str) -> str:
        """What a reply's text says before its action; such as ``action`` puts there."""
        return ""

    @abstractmethod
    def guidance(self, plan: Sequence[tuple[int, str]]) -> str:
        """Suggested actions with their turns, as text for ``notes`` (ActGuide-RL's plan-style reference)."""


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    backend = getattr(tokenizer, "backend_tokenizer", None)  # half the time of what transformers wraps around it
    return (
        backend.encode(text, add_special_tokens=False).ids
        if backend
        else tokenizer.encode(text, add_special_tokens=False)
    )


class WordProtocol(Protocol):
    """For word-level policies: observations and actions as they are, every reply closed by ``<end>``.

    Args:
        max_new_tokens: cap of one reply, thoughts included.
        thoughts: ``none``: a reply is an action; ``free``: whatever the policy says before the word ``do`` is thought;
            ``skipped``: the prompt says ``do`` itself, so that a policy which learnt to think first acts at once.
        notes: where a method's notes stand: ``before`` the observation, so that the last token before a reply is of the same
            kind at every turn; or ``after`` it, where each turn has a prompt and notes of its own.
    """

    def __init__(
        self,
        max_new_tokens: int = 8,
        thoughts: Literal["none", "free", "skipped"] = "none",
        notes: Literal["before", "after"] = "before",
    ) -> None:
        super().__init__(max_new_tokens)
        self.thoughts, self.notes = thoughts, notes

    @property
    def words(self) -> tuple[str, ...]:
        mark = () if self.thoughts == "none" else (_ACT,)
        skills = (
            ()
            if self.notes == "before"
            else (*(w for w in self.phrases.skills.split() if "{" not in w), TRY, AVOID, OTHER)
        )
        return ("hint", *(str(number) for number in range(1, _NUMBERS + 1)), *self.correction.split(), *mark, *skills)

    def prompt(self, tokenizer: PreTrainedTokenizerBase, observation: str, info: Info, notes: str = "") -> list[int]:
        if self.notes == "after":
            return _ids(tokenizer, self._shown(f"{observation} {notes}", info))
        return _ids(tokenizer, f"{notes} {self._shown(observation, info)}")

    def observation(self, tokenizer: PreTrainedTokenizerBase, text: str, info: Info) -> list[int]:
        return _ids(tokenizer, self._shown(text, info))

    def _shown(self, observation: str, info: Info) -> str:
        return f"{observation} {_ACT}" if self.thoughts == "skipped" else observation

    def action(self, tokenizer: PreTrainedTokenizerBase, text: str, info: Info, before: str = "") -> list[int]:
        mark = _ACT if self.thoughts == "free" else ""
        return _ids(tokenizer, f"{before} {mark} {text} {END}")

    def stop(self, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        return [_ids(tokenizer, END)]

    def parse(self, reply: str, info: Info) -> str | None:
        said = f" {reply.replace(END, '')} "
        if self.thoughts == "free":
            said = said.rpartition(f" {_ACT} ")[2] if f" {_ACT} " in said else ""
        return said.strip() or None

    def thought(self, reply: str) -> str:
        return reply.rpartition(f" {_ACT} ")[0].strip() if self.thoughts == "free" else ""

    def guidance(self, plan: Sequence[tuple[int, str]]) -> str:
        if any(number > _NUMBERS for number, _ in plan):
            raise ConfigError(f"WordProtocol numbers actions up to {_NUMBERS}; this plan has turn {max(plan)[0]}")
        return " ".join(["hint", *(f"{number} {action}" for number, action in plan)])


class ChoiceProtocol(WordProtocol):
    """The admissible actions are listed and the reply is one token, the label of one of them.

    Args:
        labels: how many labels there are; a world that offers more actions than that is an error, never a shorter list.
    """

    def __init__(self, labels: int = 30) -> None:
        super().__init__(max_new_tokens=1)
        self.labels = tuple(f"[{number}]" for number in range(1, labels + 1))

    @property
    def words(self) -> tuple[str, ...]:
        return (*super().words, *self.labels)

    def action(self, tokenizer: PreTrainedTokenizerBase, text: str, info: Info, before: str = "") -> list[int]:
        if before:
            raise ConfigError(
                "ChoiceProtocol's replies are one label: a memory that the policy writes needs another protocol"
            )
        actions = info["admissible_actions"]
        if text not in actions:
            raise ValueError(f"the demonstrated action {text!r} is not among the admissible ones: {actions}")
        return _ids(tokenizer, self.labels[actions.index(text)])

    def stop(self, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        return [_ids(tokenizer, label) for label in self.labels]

    def parse(self, reply: str, info: Info) -> str | None:
        chosen = reply.strip()
        if chosen not in self.labels:
            return None
        index = self.labels.index(chosen)
        return info["admissible_actions"][index] if index < len(info["admissible_actions"]) else None

    def _shown(self, observation: str, info: Info) -> str:
        actions = info.get("admissible_actions")
        if actions is None:
            raise ConfigError("ChoiceProtocol needs an environment that reports info['admissible_actions']")
        if len(actions) > len(self.labels):
            raise ConfigError(f"{len(actions)} admissible actions but {len(self.labels)} labels: raise protocol.labels")
        # A label stands behind its action, so that a causal model has read the action when it reads the label.
        return " ".join(
            [*(f"{action} {label}" for action, label in zip(actions, self.labels, strict=False)), observation]
        )


class ChatProtocol(Protocol):
    """For instruction-tuned models: the tokenizer's chat template, the action between ``<action>`` tags.

    Args:
        system: the system message; it must tell the model to end its reply with ``<action>...</action>``.
        max_new_tokens: cap of one reply, reasoning included.
        list_actions: append the admissible actions to each observation where the environment reports them.
    """

    correction = "No action was found. Reply with one action between <action> and </action>."
    phrases = PROSE
    _mark = "ZOOREPLYMARK"

    def __init__(
        self,
        system: str = "You act in a text world. Think first if you like, then give exactly one action: <action>...</action>",
        max_new_tokens: int = 256,
        list_actions: bool = True,
    ) -> None:
        super().__init__(max_new_tokens)
        self.system, self.list_actions = system, list_actions

    def prompt(self, tokenizer: PreTrainedTokenizerBase, observation: str, info: Info, notes: str = "") -> list[int]:
        user = "\n\n".join(part for part in (self._listed(observation, info), notes) if part)
        messages = [{"role": "system", "content": self.system}, {"role": "user", "content": user}]
        return _ids(tokenizer, self._render(tokenizer, messages, True))

    def observation(self, tokenizer: PreTrainedTokenizerBase, text: str, info: Info) -> list[int]:
        # Only what the template puts between one reply and the next: earlier turns are never rendered again.
        messages = [
            {"role": "user", "content": "-"},
            {"role": "assistant", "content": self._mark},
            {"role": "user", "content": self._listed(text, info)},
        ]
        after = self._render(tokenizer, messages, True).split(self._mark, 1)[1]
        end = self._end(tokenizer)
        return _ids(tokenizer, after.removeprefix(end))

    def action(self, tokenizer: PreTrainedTokenizerBase, text: str, info: Info, before: str = "") -> list[int]:
        said = "\n".join(part for part in (before, f"<action>{text}</action>" if text else "") if part)
        return _ids(tokenizer, f"{said}{self._end(tokenizer)}")

    def stop(self, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
        endings = [_ids(tokenizer, self._end(tokenizer))]
        if tokenizer.eos_token_id is not None:
            endings.append([int(tokenizer.eos_token_id)])
        return endings

    def parse(self, reply: str, info: Info) -> str | None:
        found = re.findall(r"<action>((?:(?!<action>).)*?)</action>", reply, flags=re.DOTALL)
        return found[-1].strip() or None if found else None

    def thought(self, reply: str) -> str:
        return reply.rpartition("<action>")[0].strip()

    def guidance(self, plan: Sequence[tuple[int, str]]) -> str:
        listed = "\n".join(f"{number}. {action}" for number, action in plan)
        return f"A partial plan to follow; it may be incomplete, so further actions may be needed:\n{listed}"

    def _listed(self, observation: str, info: Info) -> str:
        actions = info.get("admissible_actions") if self.list_actions else None
        return f"{observation}\nAdmissible actions: {', '.join(actions)}" if actions else observation

    def _render(self, tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], reply_next: bool) -> str:
        if tokenizer.chat_template is None:
            raise ConfigError("ChatProtocol needs a tokenizer with a chat template; use WordProtocol or ChoiceProtocol")
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=reply_next))

    def _end(self, tokenizer: PreTrainedTokenizerBase) -> str:
        """What the template writes right after a reply, up to the end-of-turn token (``<|im_end|>`` and the like)."""
        messages = [{"role": "user", "content": "-"}, {"role": "assistant", "content": self._mark}]
        after = self._render(tokenizer, messages, False).split(self._mark)[-1]
        special = [token for token in tokenizer.all_special_tokens if token in after]
        if not special:
            raise ConfigError("the chat template closes a reply with no special token, so a reply's end cannot be seen")
        first = min(special, key=after.index)
        return after[: after.index(first) + len(first)]
