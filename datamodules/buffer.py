"""The rollout buffer: ragged training rows in, token-budget micro-batches out."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from zoo.errors import ConfigError
from zoo.rollout.trajectory import Row

Batch = dict[str, Tensor]
_WIDER_THAN_BUDGET = (
    "a row of {length} tokens does not fit into micro_batch_tokens={budget}: raise data.micro_batch_tokens"
)


class RolloutBuffer:
    """Rows of one iteration, dealt out as ``epochs * minibatches`` minibatches, one optimiser step each.

    A minibatch is a list of micro-batches that fit the token budget. Every rank holds all rows and takes its share of the
    micro-batches, so normalisers need no communication, the ranks do equally many passes, and any rank's checkpoint is whole.
    Iteration resumes where it stopped: the position is part of the state.

    Args:
        minibatches: optimiser steps per pass over the rows.
        epochs: passes over the rows.
        micro_batch_tokens: cap of rows x longest row in one micro-batch.
        seed: of the order of the rows.
    """

    def __init__(self, minibatches: int = 1, epochs: int = 1, micro_batch_tokens: int = 16384, seed: int = 0) -> None:
        for name, value in {
            "minibatches": minibatches,
            "epochs": epochs,
            "micro_batch_tokens": micro_batch_tokens,
        }.items():
            if value < 1:
                raise ValueError(f"data.{name} must be at least 1, not {value}")
        self.minibatches, self.epochs, self.micro_batch_tokens, self.seed = (
            minibatches,
            epochs,
            micro_batch_tokens,
            seed,
        )
        self.rank, self.world_size = 0, 1
        self.prefixes = False  # whether rows that begin alike cost little more than one: then they go together
        self.rows: list[Row] = []
        self.fills = 0
        self.position = 0

    def fill(self, rows: Sequence[Row]) -> None:
        """Replace the rows by those of a new iteration; rows without a trained token teach nothing and are left out.

        Raises:
            ConfigError: a row longer than the token budget.
            ValueError: tensors of a row that differ in length.
        """
        # A prompt that filled the context leaves such a row; a trajectory of only these would be divided by 0 tokens.
        rows = [row for row in rows if bool(row["mask"].any())]
        for row in rows:
            length = len(row["ids"])
            if length > self.micro_batch_tokens:
                raise ConfigError(_WIDER_THAN_BUDGET.format(length=length, budget=self.micro_batch_tokens))
            odd = {name for name, value in _tensors(row).items() if value.dim() and len(value) != length}
            if odd:
                raise ValueError(f"row tensors {sorted(odd)} are not as long as its ids ({length})")
        self.rows = rows
        self.fills += 1
        self.position = 0

    def __len__(self) -> int:
        return self.epochs * self.minibatches

    def __iter__(self) -> Iterator[list[Batch]]:
        while self.position < len(self):
            index = self.position
            self.position += 1
            yield self.minibatch(index)

    def minibatch(self, index: int) -> list[Batch]:
        """This rank's micro-batches of one minibatch; empty where the iteration left nothing to learn from."""
        epoch, part = divmod(index, self.minibatches)
        order = list(dict.fromkeys(int(row["trajectory"]) for row in self.rows))
        random.Random(f"{self.seed} {self.fills} {epoch}").shuffle(order)
        chosen = set(order[part :: self.minibatches])
        rows = [row for row in self.rows if int(row["trajectory"]) in chosen]
        if not rows:
            return []
        written: Counter[int] = Counter()
        for row in rows:
            written[int(row["trajectory"])] += int(row["mask"].sum())
        # Rows that pull nowhere cost no pass, but their tokens count in the means over the minibatch.
        packed = self._pack([row for row in rows if bool(row["advantages"].any()) or "reference_logprobs" in row])
        while len(packed) % self.world_size:
            packed.append([_silent(rows[0])])
        return [collate(micro, written) for micro in packed[self.rank :: self.world_size]]

    def _pack(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Rows sorted, cut where the next would burst the budget or a rank's even share.

        Those that begin alike stand together where that saves work; otherwise long ones, and none is padded to twice its length.
        """
        if self.prefixes:
            rows = sorted(rows, key=lambda row: row["ids"].tolist())
        else:
            rows = sorted(rows, key=lambda row: len(row["ids"]), reverse=True)
        share = math.ceil(sum(len(row["ids"]) for row in rows) / self.world_size)
        packed: list[list[Row]] = []
        longest = 0
        for row in rows:
            length = len(row["ids"])
            full = not packed or max(longest, length) * (len(packed[-1]) + 1) > min(self.micro_batch_tokens, share)
            if full or not (self.prefixes or 2 * length > longest):
                packed.append([row])
                longest = length
            else:
                packed[-1].append(row)
                longest = max(longest, length)
        return packed

    def state_dict(self) -> dict[str, Any]:
        rows = self.rows if self.position < len(self) else []  # nobody asks for them again
        return {"rows": [dict(row) for row in rows], "fills": self.fills, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.fills, self.position = state["rows"], state["fills"], state["position"]


def collate(rows: Sequence[Row], written: Mapping[int, int]) -> Batch:
    """Pad rows on the right into one batch.

    Args:
        rows: the rows of a micro-batch.
        written: trained tokens of every trajectory of the whole minibatch, over all ranks.

    Returns:
        The rows' tensors, ``[rows, longest]`` or ``[rows]``, with ``attention`` and what means over the whole minibatch divide
        by: ``minibatch_tokens``, ``minibatch_sequences`` (trajectories), and per row ``sequence_tokens`` (of its trajectory).
    """
    batch: Batch = {}
    for name in rows[0]:
        values = [_tensors(row)[name] for row in rows]
        padded = values[0].dim() == 1
        batch[name] = torch.nn.utils.rnn.pad_sequence(values, batch_first=True) if padded else torch.stack(values)
    lengths = torch.tensor([len(row["ids"]) for row in rows])
    batch["attention"] = torch.arange(int(lengths.max()))[None] < lengths[:, None]
    batch["minibatch_tokens"] = torch.tensor(sum(written.values()))
    batch["minibatch_sequences"] = torch.tensor(len(written))
    batch["sequence_tokens"] = torch.tensor([written[int(row["trajectory"])] for row in rows])
    return batch


def _silent(row: Row) -> Row:
    """A row nothing is learnt from: it keeps ranks in step where one has no micro-batch left."""
    return {**row, "mask": torch.zeros_like(row["mask"]), "advantages": torch.zeros_like(row["advantages"])}  # type: ignore[typeddict-item]


def _tensors(row: Row) -> dict[str, Tensor]:
    return cast(dict[str, Tensor], row)
