"""A causal language model seen as a policy over tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from zoo.policy.prefixes import PrefixTree, takes_prefixes

LOGITS = 2**24  # at a time: 64 MiB in fp32
PIECE = 2**17


class CausalPolicy(nn.Module):
    """A transformers causal language model together with the tokenizer it was trained with.

    Args:
        model: any ``AutoModelForCausalLM`` architecture, plain or wrapped by peft.
        tokenizer: its tokenizer; ids are taken from it once and never re-encoded afterwards.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.takes_prefixes = takes_prefixes(model)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def uses_adapter(self) -> bool:
        return hasattr(self.model, "disable_adapter")

    @property
    def word_level(self) -> bool:
        """Whether one token is one word, so that the vocabulary is the whole tokenizer."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return type(getattr(backend, "model", None)).__name__ == "WordLevel"

    def without_adapter(self) -> AbstractContextManager[Any]:
        """The policy before training, where training touches only a LoRA adapter."""
        return self.model.disable_adapter() if self.uses_adapter else nullcontext()

    def logprobs(self, ids: Tensor, temperature: float = 1.0, wanted: Tensor | None = None) -> Tensor:
        """Log-probability of every token given the tokens before it.

        Tokens behind a row's last wanted one, and those that another row begins with as well, are computed once or not at all
        (:mod:`zoo.policy.prefixes`), and of a large vocabulary no more logits exist at a time than ``LOGITS``.

        Args:
            ids: ``[rows, length]`` token ids, padded on the right.
            temperature: the sampling temperature; the same scaling must be used here and in the sampler, or the first
                importance ratio is not 1.
            wanted: ``[rows, length]`` true where the log-probability is needed; the others cost no logits and are 0.

        Returns:
            ``[rows, length]`` in fp32 (fp64 for fp64 models); column 0, which nothing precedes, is 0.
        """
        wanted = torch.ones_like(ids, dtype=torch.bool) if wanted is None else wanted.bool()
        position = torch.arange(ids.shape[1], device=ids.device)
        wanted = wanted & (position > 0)
        before, tokens = wanted[:, 1:], ids[wanted]
        if self.takes_prefixes:
            tree = PrefixTree.of(ids, (wanted * position).amax(1).clamp(min=1))
            inputs, places = tree.inputs(), tree.nodes
        else:  # padding stands behind everything that is scored, so causality masks it
            inputs, places = {"input_ids": ids}, torch.arange(ids.numel(), device=ids.device).view(ids.shape)
        width = min(places.shape[1], before.shape[1])
        places = places[:, :width][before[:, :width]]
        chosen = self._score(inputs, places, tokens, temperature)
        return torch.zeros(ids.shape, dtype=chosen.dtype, device=ids.device).masked_scatter(wanted, chosen)

    def _score(self, inputs: dict[str, Any], places: Tensor, tokens: Tensor, temperature: float) -> Tensor:
        """Log-probabilities ``[wanted]`` of ``tokens`` where they follow ``places`` of the model's flattened input."""
        head, size = self.model.get_output_embeddings(), self.model.config.get_text_config().vocab_size
        whole = len(tokens) * size <= LOGITS or not self._bare_head
        hidden: list[Tensor] = []

        def narrow(head: nn.Module, states: tuple[Tensor]) -> tuple[Tensor]:
            hidden.append(states[0].flatten(0, 1).index_select(0, places))
            return (hidden[0][None] if whole else hidden[0][None, :1],)

        hook = head.register_forward_pre_hook(narrow)
        try:
            logits = self.model(**inputs, use_cache=False).logits[0]
        finally:
            hook.remove()
        if whole:
            return _LogProb.apply(logits, tokens, temperature)
        part = max(1, LOGITS // size)
        return torch.cat(
            [
                checkpoint(
                    lambda states, ids: _LogProb.apply(head(states), ids, temperature), *pair, use_reentrant=False
                )
                for pair in zip(hidden[0].split(part), tokens.split(part), strict=True)
            ]
        )

    @cached_property
    def _bare_head(self) -> bool:
        """Whether the model's logits are what its head gives, not scaled or capped behind it."""
        head, seen = self.model.get_output_embeddings(), []
        with torch.no_grad(), head.register_forward_hook(lambda head, states, logits: seen.append(logits)):
            two = torch.arange(2, device=self.device)[None]  # one of them may be padding, whose logits are 0
            logits = self.model(input_ids=two).logits
        return torch.equal(logits, seen[0])

    def architecture(self) -> dict[str, Any]:
        """The transformers config as plain data, enough to build the same network again."""
        if self.uses_adapter:
            raise ValueError("a LoRA policy has no architecture of its own: call merge_adapter() before saving it.")
        return {key: value for key, value in self.model.config.to_diff_dict().items() if key != "transformers_version"}

    def merge_adapter(self) -> None:
        """Fold a LoRA adapter into the weights it adapts, so that the policy is an ordinary model again."""
        if self.uses_adapter:
            self.model = self.model.merge_and_unload()


class _LogProb(torch.autograd.Function):
    """Log-softmax of ``logits`` ``[wanted, vocabulary]`` at ``tokens``, in pieces that stay in a CPU's cache.

    The gradient is ``(1[token] - softmax) / temperature``, made in one buffer where autograd would fill eight.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
        ctx.temperature, exact = temperature, torch.promote_types(logits.dtype, torch.float32)
        totals = torch.cat([(part.to(exact) / temperature).logsumexp(-1) for (part,) in _pieces(logits)])
        ctx.save_for_backward(logits, tokens, totals)
        return logits.gather(-1, tokens[:, None]).squeeze(-1).to(exact) / temperature - totals

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        logits, tokens, totals = ctx.saved_tensors
        upstream = upstream / ctx.temperature
        gradient = torch.empty_like(logits)
        for part, filled, total, share in _pieces(logits, gradient, totals[:, None], upstream[:, None]):
            softmax = (part.to(totals.dtype) / ctx.temperature).sub_(total).exp_()
            filled.copy_(softmax.mul_(-share))
        return gradient.scatter_add_(-1, tokens[:, None], upstream[:, None].to(gradient.dtype)), None, None


def _pieces(logits: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    rows = max(1, PIECE // max(1, logits.shape[1]))
    return zip(*(tensor.split(rows) for tensor in (logits, *others)), strict=True)
