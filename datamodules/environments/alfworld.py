"""ALFWorld (Shridhar et al., arXiv 2010.03768): household tasks in text, in rooms drawn here or in those of its data set."""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from string import printable
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import gymnasium
from gymnasium import spaces

from datamodules.environments.alfworld_engine import Play, ground
from datamodules.environments.alfworld_expert import Handcoded, Planner
from datamodules.environments.alfworld_package import parts
from datamodules.environments.alfworld_scenes import FAMILIES, draw
from datamodules.environments.textworld_express import words
from zoo.errors import ConfigError

WORDS = Path(__file__).with_name("alfworld.words.txt")
Expert = Literal["handcoded", "planner"]
_FOLDS = {"test": (0,), "val": (1,), "train": (2, 3, 4, 5, 6, 7)}
_FOLDERS = {"train": ("train", "train"), "val": ("valid_seen", "valid_unseen"), "test": ("valid_seen", "valid_unseen")}
_GAME = "*/*/game.tw-pddl"
_STATIONS = {
    "pick_clean_then_place_in_recep": "sinkbasin",
    "pick_heat_then_place_in_recep": "microwave",
    "pick_cool_then_place_in_recep": "fridge",
}
_NUMBERS = 50  # things of a kind that words can tell apart


class Texts(NamedTuple):
    """All that a game is."""

    domain: str
    grammar: str
    problem: str
    parameters: str  # of the task, in JSON


class ALFWorld(gymnasium.Env[str, str]):
    """A household task. Reward 1 when it is done, nothing before.

    Rules, texts, experts and tables are the package's. Without ``data`` the rooms are drawn: 30 kitchens, living rooms,
    bedrooms and bathrooms each, by ALFRED's scene numbers, no two alike in how many receptacles they have of which kind; the 6
    of each that ALFRED holds out are held out here too. Things, their places and the task are drawn for every game, and no game
    of one split is one of another. Results are then on "ALFWorld's engine, generated scenes", not on its data set.

    Observations and actions are in lower case with punctuation apart, without the engine's banner. Admissible actions are listed
    in an order that is drawn anew at every step. What is not admissible is answered ``nothing happens .`` and costs a step. At the
    start ``info`` tells what the words of the task stand for (``roles``).

    Args:
        families: the kinds of task, of ALFRED's six.
        unseen: validation and test games are played in held-out rooms (``valid_unseen``) instead of those trained in
            (``valid_seen``); training games never are.
        data: the data set's folder, the one with ``train``, ``valid_seen`` and ``valid_unseen``, as ``alfworld-download`` makes
            it; its games are taken in the order of their names. Validation and test are the same games then.
        expert: who advises in ``info["expert_action"]``: ``handcoded`` searches as a player must, ``planner`` knows where
            everything is and takes half a second per game and 20 ms per step more.
        max_steps: steps after which the episode is cut.

    Raises:
        ConfigError: an argument that cannot be, a folder without games, or a missing package.
    """

    vocabulary: ClassVar[tuple[str, ...]] = tuple(WORDS.read_text().split()) if WORDS.exists() else ()

    def __init__(
        self,
        families: Sequence[str] = FAMILIES,
        unseen: bool = False,
        data: str | None = None,
        expert: Expert = "handcoded",
        max_steps: int = 50,
    ) -> None:
        unknown = sorted(set(families) - set(FAMILIES))
        if unknown or not families or isinstance(families, str):
            raise ConfigError(f"ALFWorld: families must be some of {list(FAMILIES)}, not {families!r}")
        if expert not in get_args(Expert):
            raise ConfigError(f"ALFWorld: expert must be one of {list(get_args(Expert))}, not {expert!r}")
        if max_steps < 1:
            raise ConfigError(f"ALFWorld: max_steps must be at least 1, not {max_steps}")
        parts()
        self.families, self.unseen, self.data = tuple(families), unseen, data
        self.expert: Expert = expert
        self.max_steps = max_steps
        self.observation_space = spaces.Text(8192, charset=printable)
        self.action_space = spaces.Text(256, charset=printable)
        self._start: tuple[int, dict[str, Any] | None] | None = None
        self._actions: list[str] = []
        self._folders = {split: Path(data or "").expanduser() / folders[unseen] for split, folders in _FOLDERS.items()}
        for folder in self._folders.values() if data is not None else ():
            _expect_games(folder, self.families)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a game.

        Args:
            seed: which game of the split; with ``data`` taken modulo their number.
            options: ``{"split": "train" | "val" | "test"}``; ``train`` if absent.

        Raises:
            ConfigError: a split that is not one, or a broken game file.
        """
        super().reset(seed=seed)
        split = (options or {}).get("split", "train")
        if split not in _FOLDS:
            raise ConfigError(f"ALFWorld: split must be one of {sorted(_FOLDS)}, not {split!r}")
        number = seed if seed is not None else int(self.np_random.integers(2**31))
        self._start, self._actions = (number, options), []
        texts = self._texts(split, number)
        parameters = json.loads(texts.parameters)
        self._family: str = parameters["task_type"]
        self._play = Play(ground(*texts[:3]))
        self._adviser = _adviser(self._play, texts, self.expert)
        self._order = random.Random(f"{split} {number}")
        info = self._info("look", self._play.intro) | {"roles": _roles(parameters)}
        if split == "train":
            info["action_data"] = list(map(words, _way(texts, self.expert)))
        return words(self._play.intro.split("\n", 1)[1]), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._actions.append(action)
        command = self._spelling.get(action, action)
        answer, won = self._play.step(command), self._play.won
        truncated = len(self._actions) >= self.max_steps and not won
        return words(answer), float(won), won, truncated, self._info(command, answer)

    def _info(self, command: str, answer: str) -> dict[str, Any]:
        self._spelling = {words(offered): offered for offered in self._play.commands}
        won, admissible = self._play.won, list(self._spelling)
        self._order.shuffle(admissible)
        advice = None if won else self._adviser.advise(command, answer)
        return {
            "success": won,
            "family": self._family,
            "admissible_actions": admissible,
            "expert_action": advice and words(advice),
        }

    def _texts(self, split: str, number: int) -> Texts:
        if self.data is not None:
            files = _games(self._folders[split], self.families)
            return _read(files[number % len(files)])
        rng, fold, rules = random.Random(f"{split} {number}"), -1, _rules()
        while fold not in _FOLDS[split]:
            scene = draw(rng, self.families, self.unseen and split != "train")
            fold = zlib.crc32(scene.problem.encode()) % 8
        return Texts(
            rules[0], rules[1].replace("UNKNOWN GOAL", scene.task), scene.problem, json.dumps(scene.parameters)
        )

    def __getstate__(self) -> dict[str, Any]:
        arguments = (self.families, self.unseen, self.data, self.expert, self.max_steps)
        return {"args": arguments, "start": self._start, "actions": self._actions}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A game is its seed and what was done since: play it again."""
        self.__init__(*state["args"])  # type: ignore[misc]
        if state["start"] is not None:
            self.reset(seed=state["start"][0], options=state["start"][1])
            for action in state["actions"]:
                self.step(action)


def _roles(parameters: dict[str, Any]) -> dict[str, str]:
    """What the words of a task stand for, by its parameters."""
    station = _STATIONS.get(parameters["task_type"], parameters.get("toggle_target", ""))
    named = {
        parameters["object_target"]: "target",
        parameters.get("parent_target", ""): "destination",
        station: "station",
    }
    return {word.lower(): role for word, role in named.items() if word}


def _adviser(play: Play, texts: Texts, expert: Expert) -> Handcoded | Planner:
    if expert == "planner":
        return Planner(play, texts.domain, texts.problem)
    return Handcoded(play, json.loads(texts.parameters), texts.problem)


@lru_cache(maxsize=1024)
def _way(texts: Texts, expert: Expert) -> tuple[str, ...]:
    """What the expert does from the start on; nothing if it does not get there."""
    play = Play(ground(*texts[:3]))
    adviser, way = _adviser(play, texts, expert), []
    answer, action = play.intro, "look"
    while not play.won:
        advice = adviser.advise(action, answer)
        if advice is None:
            return ()
        action, answer = advice, play.step(advice)
        way.append(action)
    return tuple(way)


@lru_cache(maxsize=1)
def _rules() -> tuple[str, str]:
    """The package's domain and grammar."""
    paths = parts().paths
    return Path(paths.ALFRED_PDDL_PATH).read_text(), Path(paths.ALFRED_TWL2_PATH).read_text()


@lru_cache(maxsize=16)
def _expect_games(folder: Path, families: tuple[str, ...]) -> None:
    """Refuse a folder that cannot be the data set's before any episode is played."""
    if not any(next(folder.glob(f"{family}-{_GAME}"), None) for family in families):
        fix = "give the folder with `train`, `valid_seen` and `valid_unseen` that `alfworld-download` made, or none"
        raise ConfigError(f"ALFWorld: data={str(folder.parent)!r} has no games of {list(families)} in {folder}; {fix}")


@lru_cache(maxsize=16)
def _games(folder: Path, families: tuple[str, ...]) -> tuple[Path, ...]:
    """The games that the package would play: of the families, solvable, nothing sliced."""
    found = sorted(file for family in families for file in folder.glob(f"{family}-{_GAME}"))
    games = tuple(file for file in found if "Sliced" not in file.parent.parent.name and _json(file).get("solvable"))
    if not games:
        raise ConfigError(f"ALFWorld: no game in {folder} is marked as solvable; fetch the data set again")
    return games


def _read(file: Path) -> Texts:
    game, record = _json(file), _json(file.with_name("traj_data.json"))
    try:
        parameters = {**record["pddl_params"], "task_type": record["task_type"]}
        return Texts(game["pddl_domain"], game["grammar"], game["pddl_problem"], json.dumps(parameters))
    except KeyError as error:
        raise ConfigError(f"ALFWorld: {file.parent} has no {error}: it is not a game of ALFWorld's data set") from error


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"ALFWorld: {file} cannot be read ({error}); fetch the data set again") from error
    return content if isinstance(content, dict) else {}


def _collect_words() -> set[str]:
    """Every word that the package's grammar, commands, goals and tables can say, and numbers."""
    package, (_, grammar) = parts(), _rules()
    texts = re.findall(r'"rhs": "(.*)"', grammar) + re.findall(r'template :: "(.*)"', grammar)
    texts += [template for family in FAMILIES for template in package.goals.gdict[family]["templates"]]
    plain = (re.sub(r"\[?\{[^}]*\}+\]?|#[^#]*#|\\n", " ", text) for text in texts)
    things = " ".join(package.constants.OBJECTS_SET | package.constants.RECEPTACLES)
    return set(
        words(f"nothing happens. a, {things} {' '.join(plain)} {' '.join(map(str, range(1, _NUMBERS + 1)))}").split()
    )


if __name__ == "__main__":
    WORDS.write_text("\n".join(sorted(_collect_words())) + "\n")
    print(f"{len(WORDS.read_text().split())} words written to {WORDS.name}")
