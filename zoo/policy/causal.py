"""A causal language model seen as a policy over tokens."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase


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

        Args:
            ids: ``[rows, length]`` token ids, padded on the right.
            temperature: the sampling temperature; the same scaling must be used here and in the sampler, or the first
                importance ratio is not 1.
            wanted: ``[rows, length]`` true where the log-probability is needed; the others cost no logits and are 0.

        Returns:
            ``[rows, length]`` in fp32 (fp64 for fp64 models); column 0, which nothing precedes, is 0.
        """
        wanted = torch.ones_like(ids, dtype=torch.bool) if wanted is None else wanted.bool()
        wanted = wanted & (torch.arange(ids.shape[1], device=ids.device) > 0)
        before = wanted[:, 1:]

        def narrow(head: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
            return (inputs[0][:, :-1][before][None],)

        hook = self.model.get_output_embeddings().register_forward_pre_hook(narrow)
        try:
            # Padding stands behind everything that is scored, so causality masks it, and faster than a mask would.
            logits = self.model(input_ids=ids, use_cache=False).logits[0]
        finally:
            hook.remove()
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        chosen = logits.gather(-1, ids[wanted][:, None]).squeeze(-1) - logits.logsumexp(-1)
        return torch.zeros(ids.shape, dtype=chosen.dtype, device=ids.device).masked_scatter(wanted, chosen)

    def architecture(self) -> dict[str, Any]:
        """The transformers config as plain data, enough to build the same network again."""
        if self.uses_adapter:
            raise ValueError("a LoRA policy has no architecture of its own: call merge_adapter() before saving it.")
        return {key: value for key, value in self.model.config.to_diff_dict().items() if key != "transformers_version"}

    def merge_adapter(self) -> None:
        """Fold a LoRA adapter into the weights it adapts, so that the policy is an ordinary model again."""
        if self.uses_adapter:
            self.model = self.model.merge_and_unload()
