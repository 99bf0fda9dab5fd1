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


class Part(NamedTuple):
    """Nodes that look, at nodes of their rows.

    Attributes:
        queries: ``[rows, height]`` who looks.
        keys: ``[rows, reach]`` each row from its beginning.
        places: ``[rows, height]`` where in its row a query stands; ``None`` if all of the row looks.
    """

    queries: Tensor
    keys: Tensor
    places: Tensor | None


class Looks(NamedTuple):
    """A :class:`PrefixTree` as attention reads it; ``back`` ``[nodes]`` is where in all parts' flat queries a node looks."""

    parts: list[Part]
    back: Tensor


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
            "looks": self.looks(),
        }

    def looks(self) -> Looks:
        """Who looks at whom: every row's fresh end at the row, rows whose ends are about as long side by side."""
        width, device = self.nodes.shape[1], self.nodes.device
        owner, place = self.owners // width, self.owners % width
        first = torch.full(self.nodes.shape[:1], width, device=device).scatter_reduce(0, owner, place, "amin")
        fresh = torch.zeros_like(first).index_add(0, owner, torch.ones_like(owner))
        # Where most of a row is fresh, all of it looks: whole rows need no mask.
        whole = 2 * fresh >= first + fresh
        first, fresh = first.where(~whole, 0), fresh.where(~whole, first + fresh)
        sizes = list(zip(whole.tolist(), fresh.tolist(), strict=True))
        blocks: list[list[int]] = []
        for row in sorted((row for row, (_, size) in enumerate(sizes) if size), key=sizes.__getitem__, reverse=True):
            longest = sizes[blocks[-1][0]] if blocks else (True, 0)
            if blocks and longest[0] == sizes[row][0] and 2 * sizes[row][1] > longest[1]:
                blocks[-1].append(row)
            else:
                blocks.append([row])
        base, done, parts = torch.zeros_like(first), 0, []
        for block in blocks:
            rows = torch.tensor(block, device=device)
            height, reach = sizes[block[0]][1], int((first + fresh)[rows].max())
            places = (first[rows][:, None] + torch.arange(height, device=device)).clamp(max=reach - 1)
            keys = self.nodes[rows, :reach]
            parts.append(Part(keys.gather(1, places), keys, None if sizes[block[0]][0] else places))
            base[rows] = done + height * torch.arange(len(block), device=device)
            done += height * len(block)
        return Looks(parts, base[owner] + place - first[owner])


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
    """SDPA; with ``looks``, over the rows of a prefix tree: states ``[1, heads, nodes, size]`` in, the same nodes out."""
    looks: Looks | None = kwargs.pop("looks", None)
    if looks is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    window, attended = kwargs.get("sliding_window"), []

    def rows(states: Tensor, nodes: Tensor) -> Tensor:
        return states[0].transpose(0, 1).index_select(0, nodes.flatten()).unflatten(0, nodes.shape).transpose(1, 2)

    for queries, keys, places in looks.parts:
        mask, reach = None, torch.arange(keys.shape[1], device=keys.device)
        if places is not None or (window and window < keys.shape[1]):
            distance = (reach if places is None else places)[..., None] - reach
            mask = ((distance >= 0) & (distance < (window or len(reach)))).view(-1, 1, queries.shape[1], len(reach))
        causal = {**kwargs, "is_causal": mask is None}
        seen, _ = sdpa_attention_forward(
            module, rows(query, queries), rows(key, keys), rows(value, keys), mask, **causal
        )
        attended.append(seen.flatten(0, 1))
    return torch.cat(attended).index_select(0, looks.back)[None], None


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
