"""Runs every arm of every setting with every seed, each in processes of its own."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.claims.records import (
    Key,
    Records,
    Row,
    RunFailed,
    commit,
    curve_means,
    episodes_to_level,
    learning_curve,
    scores,
    totals,
)
from benchmarks.claims.spec import Arm, Claims, Overrides, Setting, SpecError, Stage, digest, made_from, resolve

ZOO = (sys.executable, "-m", "zoo")
LOG_LINES = 15  # of a failed run that are shown


class Stopped(Exception):
    """The runner was told to stop; the run is dropped without a trace in the results."""


@dataclass(frozen=True)
class Run:
    setting: Setting
    arm: Arm
    seed: int
    fingerprint: str

    @property
    def key(self) -> Key:
        return self.setting.name, self.arm.name, self.seed

    def __str__(self) -> str:
        return f"{self.setting.name} {self.arm.name} seed {self.seed}"


def plan(claims: Claims, root: Path, seeds: int | None = None, arms: Sequence[str] | None = None) -> list[Run]:
    """All runs in the order they are made: seed by seed, and within a seed core arms before secondary ones.

    Args:
        claims: the claims file.
        root: the repository.
        seeds: at most this many seeds per arm.
        arms: only these arms.

    Raises:
        SpecError: an arm that is in no setting.
    """
    known = {arm for setting in claims.settings.values() for arm in setting.arms}
    for arm in arms or ():
        if arm not in known:
            raise SpecError(f"--arms: {claims.name} runs no arm {arm!r}; it runs {', '.join(sorted(known))}")
    runs = []
    for setting in claims.settings.values():
        for name in setting.arms:
            if arms is None or name in arms:
                fingerprint = claims.fingerprint(setting, claims.arms[name], root)
                count = min(setting.seeds_of(name), seeds or setting.seeds_of(name))
                runs += [Run(setting, claims.arms[name], seed, fingerprint) for seed in range(count)]
    return sorted(runs, key=lambda run: (run.seed, run.arm.name in run.setting.secondary))


class Runner:
    """Makes the runs that have no row yet.

    Args:
        claims: the claims file.
        root: the repository; commands run there.
        jobs: runs at the same time.
        command: what ``zoo`` is called as.
        say: where progress goes.
    """

    def __init__(
        self,
        claims: Claims,
        root: Path,
        jobs: int = 1,
        command: Sequence[str] = ZOO,
        say: Callable[[str], Any] = print,
    ) -> None:
        self.claims, self.root, self.jobs, self.command, self.say = claims, root, jobs, list(command), say
        self.records = Records(root, claims.name)
        self._writing = threading.Lock()
        self._children: set[subprocess.Popen[bytes]] = set()
        self._starting = threading.Lock()
        self._stages: dict[str, threading.Lock] = {}
        self._stopped = False

    def run(self, runs: Sequence[Run]) -> list[Run]:
        """Make the runs and return those that failed.

        Raises:
            KeyboardInterrupt: also on SIGTERM, after the running ones were ended.
            SpecError: another runner, or a run an earlier one left behind, is at work.
        """
        (self.root / self.records.runs).mkdir(parents=True, exist_ok=True)
        with (self.root / self.records.runs / "lock").open("w") as self._lock:
            self._claim(self._lock)
            before = signal.signal(signal.SIGTERM, signal.default_int_handler)
            try:
                return self._run(self._open(runs))
            finally:
                signal.signal(signal.SIGTERM, before)

    def _claim(self, lock: IO[str]) -> None:
        """Children inherit the lock, so it holds as long as any process may write into the run folders."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpecError(f"a runner of {self.claims.name}, or a run it left behind, is still at work") from None

    def _open(self, runs: Sequence[Run]) -> list[Run]:
        """Those that have no row, or one that was made under other settings."""
        done = self.records.done()
        stale = [run for run in runs if run.key in done and done[run.key]["fingerprint"] != run.fingerprint]
        for run in stale:
            self.say(f"{run}: its settings have changed since, so it is run again")
        missing = [run for run in runs if run.key not in done or run in stale]
        self.say(f"{self.claims.name}: {len(runs) - len(missing)} of {len(runs)} runs are there")
        return missing

    def _run(self, runs: Sequence[Run]) -> list[Run]:
        failed = []
        with ThreadPoolExecutor(self.jobs) as pool:
            pending = {pool.submit(self._attempt, run): run for run in runs}
            try:
                for count, future in enumerate(as_completed(pending), 1):
                    message = future.result()
                    if message:
                        failed.append(pending[future])
                    self.say(f"[{count}/{len(runs)}] {pending[future]}: {message or self._summary(pending[future])}")
            except BaseException:
                self._stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return failed

    def _attempt(self, run: Run) -> str | None:
        """Make one run; says why it failed."""
        folder = self.root / self.records.folder(run.key)
        shutil.rmtree(folder, ignore_errors=True)  # what is left of a run that did not finish
        folder.mkdir(parents=True)
        try:
            row, curve = self._make(run)
        except RunFailed as error:
            log = (folder / "log.txt").read_text(errors="replace").splitlines()[-LOG_LINES:]
            self.records.failure(run.key).write_text(f"{error}\n")
            return "\n    ".join([f"FAILED: {error}", *log])
        with self._writing:
            self.records.add(run.key, row, curve)
        return None

    def _make(self, run: Run) -> tuple[Row, list[Row]]:
        folder, code, started = self.records.folder(run.key), commit(self.root), time.perf_counter()
        setting = run.setting
        outcomes: dict[str, str] = {}
        spent: Counter[str] = Counter()
        curve: list[Row] = []
        for stage in run.arm.stages:
            outcomes[stage.name], cost = self._stage(run, stage, resolve(stage.overrides, outcomes))
            if setting.stage_curves and stage.command == "fit":
                before = int(spent["episodes"]) * (
                    "ckpt_path" not in stage.overrides
                )  # a resumed run counts on by itself
                path = self.root / Path(outcomes[stage.name]).with_name("metrics.csv")
                curve += learning_curve(path, self.claims.curves, before)
            spent.update(cost)
        overrides = resolve(setting.fit_overrides(run.arm), outcomes)
        tested = {**overrides, **setting.test_overrides}
        if setting.fit:
            cost = self._fit(run, "fit", setting.config, folder, overrides)
            curve = learning_curve(self.root / folder / "metrics.csv", self.claims.curves, int(spent["episodes"]))
            if setting.budget_episodes and cost["episodes"] < setting.budget_episodes:
                played = f"{cost['episodes']} of {setting.budget_episodes} episodes"
                raise RunFailed(f"stopped after {played}: raise trainer.max_epochs")
            spent.update(cost)
            tested["model.weights"] = str(folder / "weights")
        wall = time.perf_counter() - started
        self._zoo(run, "test", setting.config, folder, tested)
        row = scores(self.root / folder / "test_metrics.json", setting.metric) | {
            "episodes": spent["episodes"],
            "generated_tokens": spent["tokens"],
            "cpu_seconds": round(spent["cpu"], 1),
            "wall_seconds": round(wall, 1),
            "commit": code,
            "episodes_to_50": episodes_to_level(curve, setting.curve),
            "fingerprint": run.fingerprint,
        }
        return curve_means(curve, self.claims.curves) | row, curve

    def _stage(self, run: Run, stage: Stage, overrides: Overrides) -> tuple[str, dict[str, Any]]:
        """What a stage left and what it took; runs that need the same share it."""
        name = digest(made_from(self.root, stage.config, overrides, stage.command))
        folder = self.records.runs / "stages" / f"{stage.name}-{name}" / str(run.seed)
        done = self.root / folder / "cost.json"
        with self._starting:
            lock = self._stages.setdefault(str(folder), threading.Lock())
        with lock:
            if not done.is_file():
                shutil.rmtree(self.root / folder, ignore_errors=True)
                (self.root / folder).mkdir(parents=True)
                cost = self._fit(run, stage.command, stage.config, folder, overrides)
                done.write_text(json.dumps(cost))
        return str(folder / "weights" if stage.command == "fit" else folder), json.loads(done.read_text())

    def _fit(self, run: Run, command: str, config: str, folder: Path, overrides: Overrides) -> dict[str, Any]:
        """One training command, and what it took."""
        cpu = self._zoo(run, command, config, folder, overrides)
        episodes, tokens = totals(self.root / folder / "metrics.csv")
        if "ckpt_path" in overrides:  # its counters go on from those of the run that it resumes
            before = totals(self.root / Path(overrides["ckpt_path"]).parents[1] / "metrics.csv")
            episodes, tokens = episodes - before[0], tokens - before[1]
        return {"cpu": cpu, "episodes": episodes, "tokens": tokens}

    def _zoo(self, run: Run, verb: str, config: str, folder: Path, overrides: Overrides) -> float:
        """One ``zoo`` command, its output appended to the run's log; returns its CPU-seconds.

        Raises:
            RunFailed: it ended with an error.
        """
        args = [verb, f"--config={config}", f"--seed_everything={run.seed}", f"--trainer.default_root_dir={folder}"]
        args += [f"--{key}={encode(value)}" for key, value in overrides.items()]
        with (self.root / self.records.folder(run.key) / "log.txt").open("a") as log:
            print("$ zoo", *args, file=log, flush=True)
            code, cpu = self._child(args, log)
        if code:
            raise RunFailed(f"`zoo {verb} --config={config}` ended with status {code}")
        return cpu

    def _child(self, args: list[str], log: IO[str]) -> tuple[int, float]:
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        with self._starting:
            if self._stopped:
                raise Stopped
            process = subprocess.Popen(
                [*self.command, *args],
                cwd=self.root,
                env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the runner alone, which then ends whole process groups
                pass_fds=[self._lock.fileno()],
            )
            self._children.add(process)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._starting:  # only here does the process id become free for others
            self._children.remove(process)
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if self._stopped:
            raise Stopped
        return process.returncode, usage.ru_utime + usage.ru_stime

    def _stop(self) -> None:
        with self._starting:
            self._stopped = True
            for process in self._children:
                os.killpg(process.pid, signal.SIGKILL)

    def _summary(self, run: Run) -> str:
        row, metric = self.records.done()[run.key], run.setting.metric
        value = float(row[metric.split("/", 1)[1]])
        return f"{metric} {value:.3f}, {row['episodes']} episodes, {float(row['wall_seconds']):.0f} s"


def encode(value: Any) -> str:
    """An override as the command line takes it: strings as they are, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
