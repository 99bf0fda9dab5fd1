"""Lightning callbacks: online sampling and what people look at afterwards."""

from callbacks.action_pairs import ActionPairWriter
from callbacks.guided_sampling import GuidedSampler
from callbacks.online_sampling import OnlineSampler
from callbacks.reports import LearningCurves, TrajectoryLog
from callbacks.skill_evolution import SkillEvolution

__all__ = ["ActionPairWriter", "GuidedSampler", "LearningCurves", "OnlineSampler", "SkillEvolution", "TrajectoryLog"]
