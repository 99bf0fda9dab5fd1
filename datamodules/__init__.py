"""Data for agents: rollout tasks and buffers, demonstrations, environments."""

from datamodules.buffer import RolloutBuffer
from datamodules.demonstrations import DemonstrationDataModule
from datamodules.rollouts import RolloutDataModule

__all__ = ["DemonstrationDataModule", "RolloutBuffer", "RolloutDataModule"]
