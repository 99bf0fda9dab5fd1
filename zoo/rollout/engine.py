"""Batched generation whose KV cache outlives a turn.

A row of the engine is one running episode. Its cache holds every token it has read and written, so a new turn costs only
its new tokens. Rows of different length share one rectangular cache; the unused cells ("holes") are masked, and positions
are counted per row, so a row's numbers do not depend on its neighbours.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from zoo.policy.causal import CausalPolicy
from zoo.policy.decoding import feed, feeds
from zoo.rollout.cache import RoomyLayer, roomy_cache, stacked


@dataclass
class Reply:
    """Tokens sampled for one row: the ids as sampled, their log-probabilities, and whether a stop sequence ended them."""

    ids: list[int]
    logprobs: list[float]
    stopped: bool


class Engine:
    """Samples from a policy for many episodes at once.

    Args:
        policy: the causal language model.
        temperature: 0 decodes greedily (log-probabilities are then those at temperature 1).
        generator: the source of all randomness; global random state is neither read nor changed.
    """

    def __init__(self, policy: CausalPolicy, temperature: float, generator: torch.Generator | None = None) -> None:
        if temperature > 0 and generator is None:
            raise ValueError("sampling at a temperature above 0 needs a torch.Generator of its own")
        self.policy, self.temperature, self.generator = policy, temperature, generator
        self.device, self.direct = policy.device, feeds(policy.model)
        # Whether rows can forget: windows of attention and recurrent states hold no past to go back to.
        self.forgets = all(isinstance(layer, RoomyLayer) for layer in roomy_cache(policy.model.config).layers)
        self.cache: DynamicCache | None = None
        self.attention = torch.zeros(0, 0, dtype=torch.bool, device=self.device)  # [rows, cells] false on holes
        self.lengths = torch.zeros(0, dtype=torch.long, device=self.device)  # [rows] real tokens in the cache
        self.logits = torch.zeros(0, 0, device=self.device)  # [rows, vocabulary] after the last token fed

    def admit(self, prompts: Sequence[list[int]]) -> None:
        """Start one row per prompt, behind the rows that are running. Equal prompts are computed once.

        Raises:
            ValueError: an empty prompt.
        """
        if any(not prompt for prompt in prompts):
            raise ValueError("a prompt must hold at least one token")
        unique: dict[tuple[int, ...], int] = {}
        owner = [unique.setdefault(tuple(prompt), len(unique)) for prompt in prompts]
        fresh = copy.copy(self)
        fresh.logits = torch.zeros(0, 0, device=self.device)
        fresh.attention = torch.zeros(len(unique), 0, dtype=torch.bool, device=self.device)
        fresh.lengths = torch.zeros(len(unique), dtype=torch.long, device=self.device)
        fresh.cache = roomy_cache(self.policy.model.config)
        fresh.feed([list(prompt) for prompt in unique])
        fresh.keep(owner)
        self._join(fresh)

    def feed(self, tokens: Sequence[list[int]]) -> None:
        """Append tokens to every row; an empty list leaves the row as it is."""
        width = max(map(len, tokens), default=0)
        if width == 0:
            return
        # Padded on the left, so that the last column holds every row's last token and one column of logits is enough.
        ids = torch.tensor([[0] * (width - len(row)) + row for row in tokens], device=self.device)
        real = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in tokens], device=self.device)
        self._forward(ids, real)

    def generate(self, max_new_tokens: Sequence[int], stop: Sequence[Sequence[int]]) -> list[Reply]:
        """Sample a reply for every row.

        Args:
            max_new_tokens: the cap of each row.
            stop: token sequences that end a reply; they stay in it.

        Returns:
            One reply per row. The last token of a reply is not in the cache yet: it belongs to what :meth:`feed` gets next,
            so an episode that ends here costs no further forward pass.
        """
        caps = torch.tensor(list(max_new_tokens), device=self.device)
        endings = [torch.tensor(list(ending), device=self.device) for ending in stop]
        stopped = caps < 0  # all false
        sampled: list[Tensor] = []
        scores: list[Tensor] = []
        lengths = torch.zeros_like(caps)
        while True:
            running = ~stopped & (lengths < caps)
            if not bool(running.any()):
                break
            if sampled:
                self._forward(sampled[-1][:, None], running[:, None])
            token, logprob = self._sample(running)
            sampled.append(token)
            scores.append(logprob)
            lengths += running
            stopped |= running & self._ended(sampled, lengths, endings)
        if not sampled:
            return [Reply([], [], False) for _ in max_new_tokens]
        ids, logprobs = torch.stack(sampled, 1).tolist(), torch.stack(scores, 1).tolist()
        return [
            Reply(row[:length], score[:length], ended)
            for row, score, length, ended in zip(ids, logprobs, lengths.tolist(), stopped.tolist(), strict=True)
        ]

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order (a row may be named more than once); the others leave the batch."""
        if list(rows) == list(range(len(self.lengths))):
            return
        index = torch.tensor(list(rows), dtype=torch.long, device=self.device)
        self.attention, self.lengths, self.logits = self.attention[index], self.lengths[index], self.logits[index]
        if self.cache is not None:
            self.cache.batch_select_indices(index)
            self._compact()

    def forget(self, kept: Sequence[int | None]) -> None:
        """Keep the first ``kept`` tokens of every row (``None``: all); a row that loses some must be fed before it speaks."""
        if all(count is None for count in kept):
            return
        most = self.attention.shape[1]
        limit = torch.tensor([most if count is None else count for count in kept], device=self.device)
        self.attention &= self.attention.cumsum(1) <= limit[:, None]
        self.lengths = self.lengths.minimum(limit)
        self._compact()

    def _compact(self) -> None:
        """Close the holes where they make up more than a third of the cache, as after the longest rows have left."""
        width, longest = self.attention.shape[1], int(self.lengths.max()) if len(self.lengths) else 0
        if 2 * width <= 3 * longest or longest == 0:
            return
        assert self.cache is not None
        # A stable sort brings every row's real cells to the right end, in their order.
        cells = self.attention.long().argsort(dim=1, stable=True)[:, width - longest :]
        self.attention = self.attention.gather(1, cells)
        for layer in self.cache.layers:
            place = cells[:, None, :, None].expand(-1, layer.keys.shape[1], -1, layer.keys.shape[3])
            layer.keys, layer.values = layer.keys.gather(2, place), layer.values.gather(2, place)

    def _sample(self, running: Tensor) -> tuple[Tensor, Tensor]:
        """One token per row and its log-probability; rows that are done get token 0."""
        logprobs = (self.logits if self.temperature == 0 else self.logits / self.temperature).log_softmax(-1)
        if self.temperature == 0:
            token = logprobs.argmax(-1, keepdim=True)
        else:  # where the running sum of probabilities passes a random share of all: one draw per row, not one per word
            below = logprobs.exp().cumsum(-1, dtype=torch.float64)
            share = torch.rand(len(below), 1, dtype=torch.float64, device=self.device, generator=self.generator)
            token = torch.searchsorted(below, share * below[:, -1:], right=True)
        return token.squeeze(-1) * running, logprobs.gather(-1, token).squeeze(-1) * running

    def _ended(self, sampled: list[Tensor], lengths: Tensor, endings: list[Tensor]) -> Tensor:
        ended = torch.zeros_like(lengths, dtype=torch.bool)
        for ending in endings:
            if len(sampled) >= len(ending):
                recent = torch.stack(sampled[-len(ending) :], 1)
                ended |= (recent == ending).all(1) & (lengths >= len(ending))
        return ended

    def _forward(self, ids: Tensor, real: Tensor) -> None:
        """Feed ``ids`` [rows, width] where ``real``; rows with no real token in it keep their logits."""
        positions = (self.lengths[:, None] + real.cumsum(1) - 1).clamp(min=0)
        self.attention = torch.cat([self.attention, real], 1)
        if self.direct and not torch.is_autocast_enabled(self.device.type):
            assert self.cache is not None
            logits = feed(self.policy.model, ids, positions, real, self.attention, self.cache)
        else:
            output = self.policy.model(
                input_ids=ids,
                attention_mask=self.attention.long(),
                position_ids=positions,
                cache=self.cache,
                use_cache=True,
                logits_to_keep=1,
            )
            logits = output.logits[:, -1]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        keep_old = ~real[:, -1]
        self.logits = torch.where(keep_old[:, None], self.logits, logits) if self.logits.numel() else logits
        self.lengths = self.lengths + real.sum(1)

    def _join(self, other: Engine) -> None:
        """Append the rows of another engine, the shorter cache padded with holes on the left."""
        if self.cache is None or len(self.lengths) == 0:
            self.cache, self.attention, self.lengths, self.logits = (
                other.cache,
                other.attention,
                other.lengths,
                other.logits,
            )
            return
        width = max(self.attention.shape[1], other.attention.shape[1])
        self.attention = torch.cat([_pad_left(part.attention, width) for part in (self, other)])
        self.lengths = torch.cat([self.lengths, other.lengths])
        self.logits = torch.cat([self.logits, other.logits])
        assert other.cache is not None
        for mine, theirs in zip(self.cache.layers, other.cache.layers, strict=True):
            mine.keys, mine.values = stacked(mine.keys, theirs.keys), stacked(mine.values, theirs.values)


def _pad_left(attention: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(attention, (width - attention.shape[1], 0))
