"""TextWorldExpress games (Jansen and Cote, arXiv 2208.01174): real text games by others, behind one shared Java process."""

from __future__ import annotations

import json
import random
import re
import shutil
from functools import cache
from pathlib import Path
from string import printable
from typing import Any, ClassVar

import gymnasium
from gymnasium import spaces

from zoo.errors import ConfigError

WORDS = Path(__file__).with_name("textworld_express.words.txt")
_BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
_FOLDS = {"train": "train", "val": "dev", "test": "test"}


class WorldMissing(ConfigError):
    """The game engine cannot be started; the message says what to install."""


class TextWorldExpress(gymnasium.Env[str, str]):
    """One game of TextWorldExpress. Reward 1 when the task is solved, nothing before.

    The engine's own folds keep training, validation and test apart (``dev`` is called ``val`` here). Admissible actions are
    listed in an order that is drawn anew at every step, so that their place says nothing.

    Args:
        game: a game of the engine: ``coin``, ``twc``, ``cookingworld`` ...
        game_params: its parameters as the engine writes them, ``numLocations=1,numItemsToPutAway=2``; empty for its defaults.
        max_steps: steps after which the episode is cut.
        least_actions: games that are solved by fewer actions are left out; to know them, all of a fold are solved once,
            which takes some ten seconds.

    Raises:
        WorldMissing: Java or the package is not there.
        ValueError: the engine does not know the game or its parameters.
    """

    vocabulary: ClassVar[tuple[str, ...]] = tuple(WORDS.read_text().split()) if WORDS.exists() else ()

    def __init__(self, game: str = "twc", game_params: str = "", max_steps: int = 10, least_actions: int = 1) -> None:
        self.game, self.game_params, self.max_steps, self.least_actions = game, game_params, max_steps, least_actions
        self.observation_space, self.action_space = (
            spaces.Text(4096, charset=printable),
            spaces.Text(256, charset=printable),
        )
        self._start: tuple[int, dict[str, Any] | None] | None = None
        self._actions: list[str] = []
        self._plan: list[str] = []
        self._connect()

    def _connect(self) -> None:
        self._server = _engine()()
        refusal = self._server.load(self.game, self.game_params)
        if refusal:
            raise ValueError(
                f"TextWorldExpress does not take game={self.game!r}, game_params={self.game_params!r}: {refusal}"
            )
        self._folds = {
            "train": list(self._server.getSeedsTrain()),
            "val": list(self._server.getSeedsDev()),
            "test": list(self._server.getSeedsTest()),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a game.

        Args:
            seed: which game of the fold; taken modulo the fold's size.
            options: ``{"split": "train" | "val" | "test"}``; ``train`` if absent.
        """
        super().reset(seed=seed)
        split = (options or {}).get("split", "train")
        if split not in _FOLDS:
            raise ValueError(f"TextWorldExpress: split must be one of {sorted(_FOLDS)}, not {split!r}")
        number = seed if seed is not None else int(self.np_random.integers(2**31))
        self._start, self._actions = (number, options), []
        game = self._game(split, number)
        self._plan = self._solution(game, _FOLDS[split])
        state = json.loads(self._server.generateNewGameJSON(game, _FOLDS[split], False))
        self._order = random.Random(f"{split} {game}")
        info = self._info(state)
        if split == "train":
            info["action_data"] = list(self._plan)
        return f"{words(self._server.getTaskDescription())} {self._text(state)}", info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._actions.append(action)
        # The engine is given its own spelling; what it does not know costs a step and is answered in words.
        state = json.loads(self._server.stepJSON(self._spelling.get(action, action)))
        won, lost = bool(state["tasksuccess"]), bool(state["taskfailure"])
        truncated = len(self._actions) >= self.max_steps and not (won or lost)
        return self._text(state), float(won), won or lost, truncated, self._info(state)

    def _game(self, split: str, number: int) -> int:
        """The game of a task, among those of the fold that are hard enough."""
        fold = self._folds[split]
        if self.least_actions > 1:
            key = (self.game, self.game_params, split, self.least_actions)
            if key not in _hard:
                _hard[key] = [game for game in fold if len(self._solution(game, _FOLDS[split])) >= self.least_actions]
            fold = _hard[key]
        if not fold:
            raise ValueError(f"{self.game!r} with {self.game_params!r} has no game of {self.least_actions} actions")
        return int(fold[number % len(fold)])

    def _solution(self, game: int, fold: str) -> list[str]:
        """The engine's solution; in ``coin``, where the engine's is a search that differs from call to call, a shortest one."""
        key = (self.game, self.game_params, fold, game)
        if key not in _solutions:
            state = json.loads(self._server.generateNewGameJSON(game, fold, self.game != "coin"))
            plan = self._way(state) if self.game == "coin" else list(self._server.getGoldActionSequence())
            _solutions[key] = [words(action) for action in plan if action != "look around"]
        return list(_solutions[key])

    def _way(self, start: dict[str, Any]) -> list[str]:
        """The shortest way to the coin and taking it, found by walking through every room."""
        ways: dict[str, dict[str, list[str]]] = {}  # by room: where one gets from there, and how
        goal = ""

        def visit(here: str, state: dict[str, Any]) -> None:
            nonlocal goal
            ways[here], possible = {}, sorted(state["validActions"])
            if "take coin" in possible:
                goal = here
            for action in possible:
                if action.startswith("move "):
                    towards = action.removeprefix("move ")
                    door = f"open door to {towards}"
                    way = [door, action] if door in possible else [action]
                    after = [json.loads(self._server.stepJSON(step)) for step in way][-1]
                    if (there := _room(after)) == here:
                        continue
                    ways[here][there] = way
                    if there not in ways:
                        visit(there, after)
                    self._server.stepJSON(f"move {_BACK[towards]}")

        visit(_room(start), start)
        plans: dict[str, list[str]] = {_room(start): []}
        for here in (rooms := [_room(start)]):  # grows while it is gone through
            for there, way in ways[here].items():
                if there not in plans:
                    plans[there] = [*plans[here], *way]
                    rooms.append(there)
        return [*plans[goal], "take coin"]

    def _text(self, state: dict[str, Any]) -> str:
        return f"{words(state['observation'])} turn {len(self._actions) + 1}"

    def _info(self, state: dict[str, Any]) -> dict[str, Any]:
        self._spelling = {words(action): action for action in state["validActions"]}
        admissible = sorted(self._spelling)
        self._order.shuffle(admissible)
        followed = self._actions == self._plan[: len(self._actions)] and len(self._actions) < len(self._plan)
        return {
            "success": bool(state["tasksuccess"]),
            "score": float(state["score"]),
            "admissible_actions": admissible,
            "expert_action": self._plan[len(self._actions)] if followed else None,
        }

    def __getstate__(self) -> dict[str, Any]:
        arguments = (self.game, self.game_params, self.max_steps, self.least_actions)
        return {"args": arguments, "start": self._start, "actions": self._actions}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A game is its seed and what was done since: play it again."""
        self.__init__(*state["args"])  # type: ignore[misc]
        if state["start"] is not None:
            self.reset(seed=state["start"][0], options=state["start"][1])
            for action in state["actions"]:
                self.step(action)


def _room(state: dict[str, Any]) -> str:
    """Where the player is: the first sentence of the room's description."""
    return str(state["look"]).split(".")[0]


def words(text: str) -> str:
    """Lower case, words and punctuation apart by single spaces; nothing is left out."""
    return " ".join(re.findall(r"[\w'-]+|[^\w\s]", text.lower()))


@cache
def _engine() -> Any:
    """The Java class that plays games; one process serves all environments and ends with the interpreter."""
    if shutil.which("java") is None:
        raise WorldMissing("TextWorldExpress needs Java 8 or newer: install a Java runtime and put `java` on the PATH")
    try:
        from textworld_express import TextWorldExpressEnv
    except ImportError as error:
        raise WorldMissing("TextWorldExpress is missing: pip install 'agentic-zoo[worlds]'") from error
    env = TextWorldExpressEnv()
    interface = env._gateway.jvm.textworldexpress.runtime.PythonInterface
    _alive.append(env)  # its end would end the Java process
    return interface


_alive: list[Any] = []
_solutions: dict[tuple[str, str, str, int], list[str]] = {}
_hard: dict[tuple[str, str, str, int], list[int]] = {}


def _collect_words() -> set[str]:
    """Every word met in many games of the games the zoo has configs for, played at random and by their gold paths."""
    found: set[str] = set()
    for game, params in (
        ("twc", "numLocations=1,numItemsToPutAway=3,includeDoors=0"),
        ("twc", "numLocations=3,numItemsToPutAway=3,includeDoors=1"),
        ("coin", "numLocations=11,numDistractorItems=10,includeDoors=1"),
    ):
        env, rng = TextWorldExpress(game, params, max_steps=40), random.Random(0)
        for split in _FOLDS:
            for seed in range(1000):
                observation, info = env.reset(seed=seed, options={"split": split})
                found.update(observation.split())
                plan = list(env._plan) if seed % 2 else []
                for step in range(30):
                    found.update(word for action in info["admissible_actions"] for word in action.split())
                    action = plan[step] if step < len(plan) else rng.choice(info["admissible_actions"])
                    observation, _, terminated, truncated, info = env.step(action)
                    found.update(observation.split())
                    if terminated or truncated:
                        break
    return found


if __name__ == "__main__":
    WORDS.write_text("\n".join(sorted(_collect_words())) + "\n")
    print(f"{len(WORDS.read_text().split())} words written to {WORDS.name}")
