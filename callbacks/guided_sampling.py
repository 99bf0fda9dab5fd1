"""Sampling with fallback guidance: ActGuide-RL's rollout phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from callbacks.online_sampling import OnlineSampler, by_group
from zoo.rollout.trajectory import Job, Trajectory

if TYPE_CHECKING:
    from zoo.actguide.guidance import StrengthSearch
    from zoo.actguide.module import ACTGuidePolicy
    from zoo.agent import Facts


class GuidedSampler(OnlineSampler):
    """Rolls out unguided first; where a whole group failed, finds the smallest sufficient guidance and rolls out again.

    A failed group is *replaced*, so that a group is either all unguided or all guided. Probes are thrown away, but counted.
    """

    def collect(  # type: ignore[override]
        self, module: ACTGuidePolicy, jobs: Sequence[Job], generator: torch.Generator
    ) -> tuple[list[list[Trajectory]], Facts]:
        facts: Facts = defaultdict(list)
        mode = module.hparams.guidance
        groups = [] if mode == "always" else by_group(self.play(module, jobs, generator))
        facts["success_first"] += [float(trajectory.success) for group in groups for trajectory in group]
        helped = self._known_actions(module, jobs, groups)
        firsts = _firsts(jobs)
        facts["trigger_rate"] += [float(group in helped) for group in firsts]
        searches = {group: module.search(actions) for group, actions in helped.items()}
        self._bisect(module, jobs, helped, searches, generator)
        facts["mean_k"] += [float(searches[group].strength) if group in searches else 0.0 for group in firsts]
        guided = [_guide(job, helped[job.group][: searches[job.group].strength]) for job in jobs if job.group in helped]
        final = {group[0].job.group: group for group in groups}
        if guided:
            final |= {group[0].job.group: group for group in by_group(self.play(module, guided, generator))}
        return [final[group] for group in firsts if group in final], facts

    def _known_actions(
        self, module: ACTGuidePolicy, jobs: Sequence[Job], groups: Sequence[Sequence[Trajectory]]
    ) -> dict[int, list[str]]:
        """The action data of the groups that are to be guided."""
        mode = module.hparams.guidance
        if mode == "never":
            return {}
        if mode == "fallback":
            known = {
                t[0].job.group: module.action_data(t[0].job.task, t[0].info) for t in groups if module.failed(list(t))
            }
        else:
            data = module.trainer.datamodule  # type: ignore[attr-defined]
            known = {g: module.action_data(job.task, data.task_info(job.task)) for g, job in _firsts(jobs).items()}
        return {group: actions for group, actions in known.items() if actions}

    def _bisect(
        self,
        module: ACTGuidePolicy,
        jobs: Sequence[Job],
        helped: dict[int, list[str]],
        searches: dict[int, StrengthSearch],
        generator: torch.Generator,
    ) -> None:
        """Advance all searches together, one batch of probes per step."""
        first = _firsts(jobs)
        while True:
            asked = {group: search.probe for group, search in searches.items() if search.probe is not None}
            if not asked:
                return
            probes = [
                _guide(first[group], helped[group][:strength])
                for group, strength in asked.items()
                for _ in range(module.hparams.probes)
            ]
            for tried in by_group(self.play(module, probes, generator)):
                searches[tried[0].job.group].report(any((t.reward or 0.0) > module.hparams.threshold for t in tried))


def _guide(job: Job, actions: list[str]) -> Job:
    """The job under guidance; with no action there is nothing to show and the job stays as it is."""
    return replace(job, behaviour={**job.behaviour, "guidance": actions}) if actions else job


def _firsts(jobs: Sequence[Job]) -> dict[int, Job]:
    """One job of every group, in order."""
    firsts: dict[int, Job] = {}
    for job in jobs:
        firsts.setdefault(job.group, job)
    return firsts
