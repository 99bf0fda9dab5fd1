"""How a module gets its policy and gives it away: zoo weights, Lightning checkpoints, the hub."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from datamodules.rollouts import RolloutDataModule
from zoo import hub
from zoo.cards import Card, read_card, shorten, weights_folders
from zoo.errors import ConfigError
from zoo.policy.causal import CausalPolicy
from zoo.policy.loading import load_policy, policy_from_card, tokenizer_card, with_lora, word_policy
from zoo.policy.words import tokenizer_words

if TYPE_CHECKING:
    import lightning.pytorch as pl

    _Base = pl.LightningModule
else:
    _Base = object


_NOT_IN_CARD = ("weights", "architecture", "lora", "_instantiator", "_class_path")  # where it started, not what it is


class PretrainedMixin(_Base):
    """``from_pretrained``, ``save_pretrained``, ``push_to_hub`` and the policy's part of a Lightning checkpoint.

    Attributes:
        policy: the trained policy; absent until the trainer has told the vocabulary where only an architecture was given.
        reference: the frozen policy training started from, if a KL penalty needs one and no adapter can be switched off.
    """

    policy: CausalPolicy
    reference: CausalPolicy | None
    hparams: Any  # type: ignore[assignment]

    def init_policy(self) -> None:
        """Load the policy that ``weights`` names.

        Raises:
            ConfigError: both or neither of ``weights`` and ``architecture`` are given.
        """
        if (self.hparams.weights is None) == (self.hparams.architecture is None):
            raise ConfigError("give either model.weights (where to start) or model.architecture (a random policy)")
        if self.hparams.weights is not None:
            self._set_policy(load_policy(self.hparams.weights, self.hparams.lora))

    def configure_model(self) -> None:
        """Build a random policy over the world's vocabulary, where no weights were given.

        Raises:
            ConfigError: a word-level policy that does not know words of the world.
        """
        if self._trainer is None:  # then a checkpoint tells the words
            return
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not hasattr(self, "policy"):
            self._set_policy(with_lora(word_policy(self.hparams.architecture, data.vocabulary), self.hparams.lora))
        elif self.policy.word_level and isinstance(data, RolloutDataModule):
            known = self.policy.tokenizer.get_vocab()
            if unknown := [word for word in data.vocabulary if word not in known]:
                raise ConfigError(
                    f"the policy does not know {len(unknown)} words of this world and protocol ({shorten(unknown)}): "
                    "start from weights made for them"
                )

    def _set_policy(self, policy: CausalPolicy) -> None:
        self.policy = policy
        needed = self.hparams.kl_coef and not policy.uses_adapter
        self.reference = copy.deepcopy(policy).requires_grad_(False) if needed else None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["zoo_class"] = type(self).__name__
        if self.policy.word_level:
            checkpoint["zoo_words"] = tokenizer_words(self.policy.tokenizer)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint is one of this class, and build the policy if only its architecture is known.

        Raises:
            ConfigError: a checkpoint of another class.
        """
        made_by = checkpoint.get("zoo_class", "another program")
        if made_by != type(self).__name__:
            raise ConfigError(f"the checkpoint was made by {made_by}, not by {type(self).__name__}: use that class")
        if not hasattr(self, "policy"):
            self._set_policy(
                with_lora(word_policy(self.hparams.architecture, checkpoint["zoo_words"]), self.hparams.lora)
            )

    @classmethod
    def from_card(cls, source: str | Path, pretrained: bool = True, **overrides: Any) -> Self:
        """A module with the hyper-parameters of a card; ``pretrained=False`` draws new weights for the same network."""
        source = str(source)
        card = read_card(source)
        module = cls(**{**card.hparams, "architecture": None, **overrides, "weights": source})
        if not pretrained:
            module._set_policy(with_lora(policy_from_card(card, source), module.hparams.lora))
        return module

    @classmethod
    def from_pretrained(cls, name_or_dir: str | Path, **overrides: Any) -> Self:
        """The trained module of a zoo name, a folder or a hub id.

        Raises:
            WeightsError: a checkpoint of another class, or one that fails verification.
        """
        source = hub.resolve(name_or_dir)
        hub.require_class(read_card(source), cls.__name__)
        return cls.from_card(source, **overrides)

    def save_pretrained(self, folder: str | Path, name: str | None = None, **fields: Any) -> Card:
        """Write weights and card; see :func:`zoo.hub.save`.

        Args:
            folder: where to; made if absent. A weights folder takes word-level policies only.
            name: of the checkpoint, ``<class>.local`` if absent.
            fields: further fields of the card (summary, task, metric, training, source ...).

        Raises:
            ConfigError: tokenizer files would lie among the cards of a weights folder.
        """
        folder = Path(folder).expanduser()
        if not self.policy.word_level and folder.resolve() in weights_folders():
            raise ConfigError(f"{folder}: this policy brings tokenizer files: save it into a folder of its own")
        policy = copy.deepcopy(self.policy) if self.policy.uses_adapter else self.policy
        policy.merge_adapter()
        hparams = {key: value for key, value in self.hparams.items() if key not in _NOT_IN_CARD}
        described: dict[str, Any] = {
            "name": name or f"{type(self).__name__}.local",
            "class": type(self).__name__,
            "summary": (type(self).__doc__ or "").strip().split("\n")[0],
            "task": "",
            "licence": "Apache-2.0",
            "metric": {},
            "architecture": policy.architecture(),
            "tokenizer": tokenizer_card(policy),
            "hparams": hparams,
            "training": {"weights": self.hparams.weights},
            "source": "",
        }
        if not policy.word_level:
            policy.tokenizer.save_pretrained(folder)
        return hub.save(folder, policy.model.state_dict(), described | fields)

    def push_to_hub(self, repo_id: str, **fields: Any) -> str:
        """Publish on the Hugging Face hub; returns the address."""
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, **fields)
            return hub.push_to_hub(folder, repo_id)
