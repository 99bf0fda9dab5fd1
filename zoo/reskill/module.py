"""ReSkill as a LightningModule (He et al., "ReSkill", arXiv 2606.01619)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl

from callbacks.skill_evolution import SkillEvolution
from zoo.agent import AgentModule, Facts, Group
from zoo.cards import Card, find_card, read_card
from zoo.errors import ConfigError
from zoo.registry import register_model
from zoo.reskill.authors import AdversarialAuthor, Author, NoAuthor, ScriptedAuthor, TemplateAuthor
from zoo.reskill.diagnosis import Experience
from zoo.reskill.evolution import Evolution, Rules
from zoo.reskill.language import endpoint_author, policy_author
from zoo.reskill.lexicon import ROLES, fill
from zoo.reskill.skills import Bank, Skill, SkillError, load_bank
from zoo.reskill.thompson import Memory
from zoo.rollout.context import LatestTurns
from zoo.rollout.protocol import Protocol
from zoo.rollout.trajectory import Job, Row, Trajectory, Turn

AuthorName = Literal["none", "template", "endpoint", "policy", "scripted"]


@register_model
class ReSkillCoEvolver(AgentModule):
    """GRPO whose prompts show skills, while new versions of the skills are tested inside its groups.

    Every episode of a group is played under the incumbent bank or under the version on trial, by discounted Thompson sampling;
    all of them share one baseline, so that the policy learns to use the version that does better. The same outcomes decide, after
    ``window`` steps, which bank goes on. No episode is played for the test alone. Skills are shown anew at every turn, so the
    datamodule's context must be :class:`zoo.rollout.context.LatestTurns`.

    Args:
        skills: the bank at the start: records, or a folder with ``skills.json`` or ``*/SKILL.md``. ``None``: the bank that came
            with ``weights``, or an empty one.
        cap: most skills in a bank.
        author: who writes versions: ``template`` (no language model), ``endpoint`` (any OpenAI-compatible one:
            ``author_args`` names ``base_url`` and ``model``), ``policy`` (the policy itself), ``scripted``, ``none``.
        author_args: its arguments, see ``zoo.reskill.authors`` and ``zoo.reskill.language``.
        adversarial: share of proposals whose advice is turned round (a bad author, for the claims).
        train_policy: ``False`` leaves the policy as it is and lets the bank alone evolve.
        accept: a version is adopted by its ``test``, or ``always`` without one (ablation).
        allocation: of a test's episodes: ``thompson``, or half and half (``uniform``).
        memory: discount of old outcomes: ``dynamic`` (M is estimated from finished tests), ``none``, ``last_step``, or a number M.
        window: training steps of a test, the paper's K_e.
        min_episodes: of a test; it goes on until there are as many.
        clip: least share of episodes for either version.
        draws: of the Monte Carlo estimate of ``Pr(new is better)``.
        margin: by which the new posterior mean must be higher; the paper has none.
        reservoir: training episodes that an author may see.
        min_reservoir: episodes, of both outcomes, before anything is written.
        per_task: the reservoir keeps the newest episode of each task, version and outcome alone (the paper).
        versions: how many are tried in all; ``None``: no limit.
        max_operations: of a version.
        min_trigger_rate: share of those episodes in which a new or changed skill must fire.
        **kwargs: of :class:`zoo.agent.AgentModule`.
    """

    def __init__(
        self,
        skills: str | list[dict[str, Any]] | None = None,
        cap: int = 8,
        author: AuthorName = "template",
        author_args: dict[str, Any] | None = None,
        adversarial: float = 0.0,
        train_policy: bool = True,
        accept: Literal["test", "always"] = "test",
        allocation: Literal["thompson", "uniform"] = "thompson",
        memory: Memory = "dynamic",
        window: int = 5,
        min_episodes: int = 50,
        clip: float = 0.15,
        draws: int = 10_000,
        margin: float = 0.0,
        reservoir: int = 200,
        min_reservoir: int = 100,
        per_task: bool = True,
        versions: int | None = None,
        max_operations: int = 3,
        min_trigger_rate: float = 0.5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        rules = Rules(**{field.name: self.hparams[field.name] for field in fields(Rules)})
        self.evolution = Evolution(self._starting_bank(), rules)

    def _starting_bank(self) -> Bank:
        """The bank that ``skills`` or the weights' card names."""
        given, weights, cap = self.hparams.skills, self.hparams.weights, self.hparams.cap
        try:
            if isinstance(given, str):
                return load_bank(Path(given).expanduser(), cap)
            if given is None and weights is not None and find_card(weights) is not None:
                given = read_card(weights).hparams.get("skills")
            return Bank.from_records(given or [], cap)
        except SkillError as error:
            raise ConfigError(f"model.skills: {error}") from error

    def configure_model(self) -> None:
        super().configure_model()
        if self._trainer is None:
            return
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data.context, LatestTurns):
            raise ConfigError("data.context must be a LatestTurns: skills are chosen anew for every prompt")
        if getattr(data.protocol, "notes", "after") != "after":
            raise ConfigError("data.protocol must have notes: after, since skills stand behind the state")
        self.evolution.readable = partial(self.require_known_words, data.protocol)
        try:
            self.evolution.readable(self.evolution.bank.skills)
        except SkillError as error:
            raise ConfigError(f"model.skills: {error}") from error

    def require_known_words(self, protocol: Protocol, skills: Sequence[Skill]) -> None:
        """Refuse skills that a word-level policy cannot read.

        Raises:
            SkillError: names the skill and the words.
        """
        known = self.policy.tokenizer.get_vocab() if self.policy.word_level else None
        for skill in skills:
            text = render([skill], protocol, dict(zip(ROLES, ROLES, strict=True)))
            unknown = sorted(set(text.split()) - known.keys() - set(ROLES)) if known is not None else []
            if unknown:
                raise SkillError(f"the policy does not know {', '.join(unknown)} in skill {skill.name}")

    def sampler(self) -> pl.Callback:
        return SkillEvolution()

    def make_author(self) -> Author:
        """Who writes versions; override it for an author of your own.

        Raises:
            ConfigError: arguments that the author does not take.
        """
        kinds: dict[str, Callable[..., Author]] = {
            "none": NoAuthor,
            "template": partial(TemplateAuthor, least_rate=self.hparams.min_trigger_rate),
            "endpoint": endpoint_author,
            "policy": partial(policy_author, self.policy),
            "scripted": ScriptedAuthor,
        }
        try:
            author = kinds[self.hparams.author](**(self.hparams.author_args or {}))
        except (TypeError, SkillError) as error:
            raise ConfigError(f"model.author_args: {error}") from error
        return AdversarialAuthor(author, self.hparams.adversarial) if self.hparams.adversarial else author

    def notes(self, job: Job, turns: Sequence[Turn], info: dict[str, Any]) -> str:
        """The skills whose trigger is true; in evaluation those of the incumbent."""
        bank, roles = self.evolution.shown(job.behaviour.get("version", "old")), info.get("roles", {})
        shown = bank.shown([turn.action for turn in turns], roles)
        return render(shown, self.trainer.datamodule.protocol, roles)  # type: ignore[attr-defined]

    def experience(self, trajectory: Trajectory, protocol: Protocol) -> Experience:
        """An episode as authors see it: what was parsed from replies, what the world said, and which skills were shown."""
        actions = [turn.action for turn in trajectory.turns]
        bank, roles = self.evolution.shown(trajectory.job.behaviour["version"]), trajectory.info.get("roles", {})
        shown = [[skill.name for skill in bank.shown(actions[:turn], roles)] for turn in range(len(actions))]
        thoughts = [protocol.thought(turn.reply) for turn in trajectory.turns[-2:]]
        return Experience.of(trajectory, shown, thoughts)

    def credit(self, groups: Sequence[Group]) -> tuple[list[Row], Facts]:
        rows, facts = super().credit(groups)
        return (rows if self.hparams.train_policy else []), facts

    def save_pretrained(self, folder: str | Path, name: str | None = None, **described: Any) -> Card:
        """As everywhere; the incumbent bank goes into the card, so that it travels with the weights."""
        self.hparams["skills"] = self.evolution.bank.records()
        return super().save_pretrained(folder, name, **described)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["evolution"] = self.evolution.state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.evolution.load_state(checkpoint["evolution"])


def render(skills: Sequence[Skill], protocol: Protocol, roles: Mapping[str, str]) -> str:
    """The skills' section of a prompt, with the task's words in their slots."""
    phrases = protocol.phrases
    if not skills:
        return phrases.no_skills
    texts = [
        phrases.skill.format(
            name=skill.name,
            when_to_use=skill.when_to_use,
            action=fill(skill.action, roles),
            examples="\n".join(skill.examples),
        ).strip()
        for skill in skills
    ]
    return phrases.skills.format(skills="\n".join(texts))
