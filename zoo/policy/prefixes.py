"""Rows that begin alike, computed once: a batch as one packed row of its distinct tokens.

The rows of a group share a prompt, those of an episode a task, and padding belongs to nobody. Laid out as a prefix tree, every
distinct token goes through the linear layers once; only attention sees the rows side by side again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sdpa_over_prefixes"
_LAYERS = {"full_attention", "sliding_attention"}


class PrefixTree(NamedTuple):
    """Distinct prefixes of the rows of a batch, numbered.

    Attributes:
        ids: ``[nodes]`` the last token of each prefix.
        depth: ``[nodes]`` its position.
        nodes: ``[rows, longest]`` the prefix that ends at each place of each row, 0 behind a row's end.
        owners: ``[nodes]`` the first place, in ``nodes.flatten()``, where each prefix ends.
    """

    ids: Tensor
    depth: Tensor
    nodes: Tensor
    owners: Tensor

    @classmethod
    def of(cls, ids: Tensor, lengths: Tensor) -> PrefixTree:
        """Lay out the first ``lengths`` ``[rows]``, at least 1 each, of the tokens ``ids`` ``[rows, width]``."""
        sizes, device = lengths.tolist(), ids.device
        rows = [row[:size] for row, size in zip(ids.tolist(), sizes, strict=True)]
        # In this order a row shares most with the one before it.
        order = torch.tensor(sorted(range(len(rows)), key=rows.__getitem__), device=device)
        ids, lengths = ids[order, : max(sizes)], lengths[order]
        places = torch.arange(ids.shape[1], device=device)
        real = places < lengths[:, None]
        same = (ids[1:] == ids[:-1]) & real[1:] & real[:-1]
        fresh = real.clone()
        fresh[1:] &= ~same.cumprod(1).bool()
        # A place that is not fresh ends the prefix that the nearest fresh place above it ends.
        number = (fresh.flatten().cumsum(0) - 1).view(fresh.shape) * fresh
        nodes = number.cummax(0).values * real
        back = order.argsort()
        owners = (order[:, None] * len(places) + places)[fresh]
        return cls(ids[fresh], places.expand_as(ids)[fresh], nodes[back], owners)

    def inputs(self) -> dict[str, Any]:
        """What a model that :func:`takes_prefixes` is called with; its outputs are ``[1, nodes, ...]``."""
        # A mask of four dimensions is handed through to attention as it is.
        return {
            "input_ids": self.ids[None],
            "position_ids": self.depth[None],
            "attention_mask": self.nodes[None, None],
            "owners": self.owners,
        }


def takes_prefixes(model: PreTrainedModel) -> bool:
    """Let the model's attention read a :class:`PrefixTree`, where nothing but attention looks at other tokens.

    Calls without one are answered by the ordinary SDPA attention.
    """
    layers = set(getattr(model.config, "layer_types", None) or _LAYERS)
    if model.config._attn_implementation != "sdpa" or not model._supports_attention_backend:
        return model.config._attn_implementation == NAME
    if layers <= _LAYERS:
        model.config._attn_implementation = NAME
    return layers <= _LAYERS


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """SDPA; with ``owners``, over the rows of a prefix tree: states ``[1, heads, nodes, size]`` in, the same nodes out."""
    owners: Tensor | None = kwargs.pop("owners", None)
    if owners is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    assert attention_mask is not None
    nodes, mask = attention_mask[0, 0], None
    if (window := kwargs.get("sliding_window")) and window < nodes.shape[1]:
        places = torch.arange(nodes.shape[1], device=nodes.device)
        distance = places[:, None] - places
        mask = ((distance >= 0) & (distance < window))[None, None]

    def rows(states: Tensor) -> Tensor:
        return states[0].transpose(0, 1).index_select(0, nodes.flatten()).unflatten(0, nodes.shape).transpose(1, 2)

    causal = {**kwargs, "is_causal": mask is None}
    attended, _ = sdpa_attention_forward(module, rows(query), rows(key), rows(value), mask, **causal)
    return attended.flatten(0, 1).index_select(0, owners)[None], None


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
