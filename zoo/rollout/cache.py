"""A KV cache with room to grow: a new token is written behind the old ones, where the cache of transformers copies itself."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer


class RoomyLayer(DynamicLayer):
    """A layer whose ``keys`` and ``values`` ``[rows, heads, cells, size]`` are the first cells of wider buffers."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.device = key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append the states of new tokens and return all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys, self.values = _appended(self.keys, key_states), _appended(self.values, value_states)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, and the room behind them."""
        self.keys, self.values = _selected(self.keys, indices), _selected(self.values, indices)


def roomy_cache(config: PreTrainedConfig) -> DynamicCache:
    """The model's cache; layers of another kind than plain attention are left as they are."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def stacked(upper: Tensor, lower: Tensor) -> Tensor:
    """The rows of two tensors ``[rows, heads, cells, size]``, the shorter one padded on the left with 0."""
    cells = max(upper.shape[2], lower.shape[2])
    whole = upper.new_zeros(len(upper) + len(lower), upper.shape[1], _roomy(cells), upper.shape[3])[:, :, :cells]
    whole[: len(upper), :, cells - upper.shape[2] :] = upper
    whole[len(upper) :, :, cells - lower.shape[2] :] = lower
    return whole


def _roomy(cells: int) -> int:
    return cells + cells // 4 + 16


def _whole(tensor: Tensor) -> Tensor:
    """The buffer of which the tensor is the first cells: how many it has stands in the stride from head to head."""
    rows, heads, _, size = tensor.shape
    return tensor.as_strided((rows, heads, tensor.stride(1) // size, size), tensor.stride())


def _selected(tensor: Tensor, rows: Tensor) -> Tensor:
    heads, cells, size = tensor.shape[1:]
    buffer = tensor.new_empty(len(rows), heads, tensor.stride(1) // size, size)[:, :, :cells]
    return torch.index_select(tensor, 0, rows, out=buffer)  # what it would make by itself has no room behind


def _appended(old: Tensor, new: Tensor) -> Tensor:
    cells = old.shape[2] + new.shape[2]
    if old.shape[2] and cells * old.shape[3] <= old.stride(1):
        buffer = _whole(old)
    else:
        buffer = old.new_empty(*old.shape[:2], _roomy(cells), old.shape[3])
        buffer[:, :, : old.shape[2]] = old
    buffer[:, :, old.shape[2] : cells] = new
    return buffer[:, :, :cells]
