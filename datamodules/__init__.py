"""Data for agents: rollout tasks and buffers, demonstrations, environments."""

from datamodules.action_pairs import ActionPairDataModule
from datamodules.buffer import RolloutBuffer
from datamodules.demonstrations import DemonstrationDataModule
from datamodules.drills import ErrandDrills
from datamodules.rollouts import RolloutDataModule

__all__ = ["ActionPairDataModule", "DemonstrationDataModule", "ErrandDrills", "RolloutBuffer", "RolloutDataModule"]
