"""Household: a mini ALFWorld whose illegal moves stay typable.

The world that ACT's and ReSkill's claims need (dossiers 6.2). To judge the next action takes several hops: from the goal to
what is to be done next, to where that thing is or whether it is in hand, to whether one stands there and the place is open.
A command that is not possible is answered by ``nothing happens`` and costs a turn, so a policy can get caught in a loop.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import product
from string import printable
from typing import Any, ClassVar, Literal, get_args

import gymnasium
from gymnasium import spaces

from zoo.errors import ConfigError

Unseen = Literal["none", "layouts", "pairs", "names", "spare", "mixed"]
Errand = tuple[str, str, int]  # verb, thing, number of the place

STORAGE = ("cabinet", "drawer", "counter", "table", "shelf")
TREATMENTS = {  # by the place they need: the verb, and the mark that it leaves on the thing
    "sink": ("clean", "clean"),
    "microwave": ("heat", "hot"),
    "fridge": ("cool", "cold"),
    "lamp": ("use", "lit"),
}
PLACE_TYPES = (*STORAGE, *TREATMENTS)
CLOSED = ("cabinet", "drawer", "microwave", "fridge")  # until they are opened
HOMES = {  # where a thing mostly lies, and in which order one looks for it
    "apple": ("fridge", "table", "counter"),
    "bowl": ("shelf", "cabinet", "sink"),
    "bread": ("counter", "table", "microwave"),
    "egg": ("fridge", "counter", "microwave"),
    "mug": ("cabinet", "shelf", "sink"),
    "plate": ("cabinet", "table", "drawer"),
    "potato": ("drawer", "counter", "fridge"),
    "tomato": ("table", "fridge", "shelf"),
}
OBJECT_TYPES = tuple(HOMES)
FAMILIES = {  # and the place where the thing is treated before the goal can hold
    "place": "",
    "clean": "sink",
    "heat": "microwave",
    "cool": "fridge",
    "look": "lamp",
    "two": "",
}
RENAMED = {
    **dict(zip(STORAGE, ("safe", "locker", "bench", "rack", "crate"), strict=True)),
    **dict(zip(OBJECT_TYPES, ("lemon", "pan", "cheese", "onion", "cup", "jar", "carrot", "steak"), strict=True)),
}
# What training never asks for, of a thing and the type of place it belongs to: about a fifth of all pairs, spread so that
# every thing and every type of place keeps most of its partners.
PAIRS = tuple(product(OBJECT_TYPES, PLACE_TYPES))
HELD_OUT_PAIRS = tuple((o, p) for o, p in PAIRS if (OBJECT_TYPES.index(o) + 2 * PLACE_TYPES.index(p)) % 5 == 1)
MAX_NUMBER = 3  # of places of one type
MAX_LAYOUTS, UNSEEN_LAYOUTS = 200, 100
_HOME_SHARE = 0.75
_NOTHING = "nothing happens ."
_SPLITS = ("train", "val", "test")


class Household(gymnasium.Env[str, str]):
    """Bring a thing where it belongs, clean, hot or cold if asked for, or look at it under the lamp. Reward 1 when that holds.

    Commands: ``go P``, ``open P``, ``take O P``, ``put O P``, ``clean O P`` (a sink), ``heat O P`` (a microwave), ``cool O P``
    (a fridge), ``use P`` (a lamp, with something in hand), ``look``. All but ``go`` and ``look`` need the agent to stand at the
    place, and all but ``open`` need it to be open. One thing can be held at a time and shows the mark of its last treatment.
    Things of one type share their name. Every text ends with a full stop, which begins no command.

    ``info`` tells ``success``, the ``family`` of the task, at the start what its words stand for (``roles``: the ``target``, the
    ``destination`` and the ``station``), the ``admissible_actions`` (sorted; those that have an effect, and
    ``look``) and the ``expert_action``: what a script that knows only what has been seen so far would do now, ``""`` when the
    task is solved. Training tasks also tell its whole way as ``action_data``. 30 turns are enough for every task.

    Args:
        unseen: which kind of tasks are drawn. ``none``: training layouts and pairs of thing and place, new placements;
            ``layouts``: layouts that no training task has; ``pairs``: pairs that no training task asks for, see
            ``HELD_OUT_PAIRS``; ``names``: training layouts with other words for things and storage places, see ``RENAMED``,
            and ``cool`` wherever the others have ``heat``; ``spare``: layouts that none of these have, for warm starts;
            ``mixed``: those, half of the tasks in the other words.
        families: the families of tasks, each as likely as another; of ``place``, ``clean``, ``heat``, ``cool`` (then place),
            ``look`` (under the lamp) and ``two`` (place two of one type). All if absent.
        layouts: number of training layouts.

    Raises:
        ConfigError: an argument that is none of these.
    """

    vocabulary: ClassVar[tuple[str, ...]] = (
        *("go", "open", "take", "put", "clean", "heat", "cool", "use", "look", "find"),
        *("task", "two", "places", "at", "closed", "sees", "holding", "hot", "cold", "lit", "nothing", "happens", "."),
        *PLACE_TYPES,
        *OBJECT_TYPES,
        *RENAMED.values(),
        *(f"{station}1" for station in TREATMENTS),
        *(f"{RENAMED[kind]}{n}" for kind in STORAGE for n in range(1, MAX_NUMBER + 1)),
        *(f"{kind}{n}" for kind in STORAGE for n in range(1, MAX_NUMBER + 1)),
    )

    def __init__(self, unseen: Unseen = "none", families: Sequence[str] | None = None, layouts: int = 64) -> None:
        if unseen not in get_args(Unseen):
            raise ConfigError(f"Household: unseen must be one of {get_args(Unseen)}, not {unseen!r}")
        chosen = tuple(FAMILIES) if families is None else families
        if isinstance(chosen, str) or not chosen or not set(chosen) <= set(FAMILIES):
            raise ConfigError(f"Household: families must be a list of some of {tuple(FAMILIES)}, not {families!r}")
        if not 1 <= layouts <= MAX_LAYOUTS:
            raise ConfigError(f"Household: layouts must be 1 to {MAX_LAYOUTS}, not {layouts}")
        self.unseen, self.families, self.layouts = unseen, tuple(chosen), layouts
        self.observation_space = spaces.Text(1024, charset=printable)
        self.action_space = spaces.Text(64, charset=printable)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the task that ``seed`` names.

        Args:
            seed: the task; ``None`` draws one.
            options: ``{"split": "train" | "val" | "test"}``; ``train`` if absent.
        """
        super().reset(seed=seed)
        split = (options or {}).get("split", "train")
        if split not in _SPLITS:
            raise ConfigError(f"Household: split must be one of {_SPLITS}, not {split!r}")
        number = seed if seed is not None else int(self.np_random.integers(2**31))
        self._draw(random.Random(f"{split} {number} {self.unseen}"))
        self._look_ahead()
        info = self._info() | {"roles": self._roles()}
        if split == "train":
            info["action_data"] = self._way()
        return f"task {self.goal} places {' '.join(self.places)} {self._view()}", info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        command = " ".join(action.split())
        if command not in self._possible:
            return _NOTHING, 0.0, False, False, self._info()
        self._do(command)
        self._look_ahead()
        solved = self.solved()
        return self._view(), float(solved), solved, False, self._info()

    def solved(self) -> bool:
        """Whether the goal holds."""
        return not self._left()

    def distance(self) -> int:
        """The fewest steps from here to the goal for one who knows where everything is."""
        at, opened, steps = self.at, set(self.opened), 0

        def act(place: int) -> None:
            """Get to a place, open it, and do one thing there."""
            nonlocal at, steps
            steps += (place != at) + (place not in opened) + 1
            at = place
            opened.add(place)

        left = self._left()
        # Whatever else is held is put down where the first thing is taken: one step more, by no detour.
        steps += bool(left) and self.held is not None and self.held not in left
        for thing in sorted(left, key=lambda thing: (thing != self.held, self.where[thing] != self.at)):
            if thing != self.held:
                act(self.where[thing])
            if not self._treated(thing):
                act(self._station)
            if self.family != "look":
                act(self._destination(at, opened))
        return steps

    # -- the task --------------------------------------------------------------------------------------------------------

    def _draw(self, rng: random.Random) -> None:
        """Draw layout, goal and placement; inside, types go by their ordinary names."""
        names = RENAMED if self.unseen == "names" or (self.unseen == "mixed" and rng.random() < 0.5) else {}
        self.kinds = kinds = rng.choice(_pool(self.unseen, self.layouts))
        self.places = [f"{names.get(kind, kind)}{kinds[: n + 1].count(kind)}" for n, kind in enumerate(kinds)]
        self._ways = [f"go {place}" for place in self.places]
        self.family = rng.choice(self.families)
        if self.unseen == "names" and self.family == "heat":
            self.family = "cool"
        station = FAMILIES[self.family]
        self._mark = TREATMENTS[station][1] if station else ""
        self._station = kinds.index(station) if station else -1
        wanted, self._target = rng.choice(_pairs(self.unseen == "pairs", self.family == "look", kinds))
        adjective = "two" if self.family == "two" else self._mark
        words = ["look"] if self.family == "look" else ["put", adjective] if adjective else ["put"]
        self.goal = " ".join([*words, names.get(wanted, wanted), names.get(self._target, self._target)])
        others = [kind for kind in OBJECT_TYPES if kind != wanted]
        # By name, so that the order in which things are seen says nothing about the task.
        things = sorted([wanted] * (1 + (self.family == "two")) + rng.sample(others, rng.randint(4, 6)))
        self._wanted = [n for n, kind in enumerate(things) if kind == wanted]
        self.things = [names.get(kind, kind) for kind in things]
        self.where = [self._home(kind, self._target if kind == wanted else "", rng) for kind in things]
        self.marks = [""] * len(things)
        self.held: int | None = None
        self.opened = {n for n, kind in enumerate(kinds) if kind not in CLOSED}
        rest = len(HOMES[wanted])
        ranks = [HOMES[wanted].index(kind) if kind in HOMES[wanted] else rest for kind in kinds]
        # No thing starts where it belongs, and none lies at the lamp.
        search = [n for n, kind in enumerate(kinds) if kind not in ("lamp", self._target)]
        self._search = sorted(search, key=ranks.__getitem__)
        self.at = rng.choice([n for n in range(len(kinds)) if all(self.where[thing] != n for thing in self._wanted)])
        self.seen = {self.at} & self.opened

    def _home(self, thing: str, target: str, rng: random.Random) -> int:
        """A place for a thing, often a likely one, and never where it belongs."""
        places = [n for n, kind in enumerate(self.kinds) if kind not in ("lamp", target)]
        likely = [n for n in places if self.kinds[n] in HOMES[thing]]
        return rng.choice(likely if likely and rng.random() < _HOME_SHARE else places)

    def _left(self) -> list[int]:
        """The wanted things that are not yet as they should be."""
        return [thing for thing in self._wanted if not (self._treated(thing) and self._placed(thing))]

    def _treated(self, thing: int) -> bool:
        return not self._mark or self.marks[thing] == self._mark

    def _placed(self, thing: int) -> bool:
        return self.family == "look" or (thing != self.held and self.kinds[self.where[thing]] == self._target)

    def _roles(self) -> dict[str, str]:
        """What things and places are in this task."""
        roles = {self.things[self._wanted[0]]: "target"}
        for place, kind in zip(self.places, self.kinds, strict=True):
            if kind == FAMILIES[self.family]:
                roles[place] = "station"
            elif kind == self._target:
                roles[place] = "destination"
        return roles

    # -- the world -------------------------------------------------------------------------------------------------------

    def _do(self, command: str) -> None:
        """Carry out a possible command."""
        verb, *words = command.split()
        if verb == "go":
            self.at = self.places.index(words[0])
        elif verb == "open":
            self.opened.add(self.at)
        elif verb == "take":
            self.held = next(n for n, name in enumerate(self.things) if name == words[0] and self.where[n] == self.at)
            self.where[self.held] = -1
        elif self.held is not None and verb == "put":
            self.where[self.held], self.held = self.at, None
        elif self.held is not None and verb != "look":
            self.marks[self.held] = TREATMENTS[self.kinds[self.at]][1]
        if self.at in self.opened:
            self.seen.add(self.at)

    def _look_ahead(self) -> None:
        """Note which commands are possible, and the expert's."""
        at, here = self.at, self.places[self.at]
        possible = ["look", *self._ways[:at], *self._ways[at + 1 :]]
        if at not in self.opened:
            possible.append(f"open {here}")
        elif self.held is None:
            possible += {f"take {self.things[thing]} {here}" for thing, place in enumerate(self.where) if place == at}
        else:
            if self.kinds[at] != "lamp":
                possible.append(f"put {self.things[self.held]} {here}")
            if self.kinds[at] in TREATMENTS and self.marks[self.held] != TREATMENTS[self.kinds[at]][1]:
                possible.append(self._treatment(self.held))
        self._possible = sorted(possible)
        self._next = self._expert()

    def _treatment(self, held: int) -> str:
        """The command that treats here what is held."""
        verb, here = TREATMENTS[self.kinds[self.at]][0], self.places[self.at]
        return f"{verb} {here}" if verb == "use" else f"{verb} {self.things[held]} {here}"

    def _view(self) -> str:
        if self.at in self.opened:
            seen = [self._named(thing) for thing, place in enumerate(self.where) if place == self.at]
            state = f"open sees {' '.join(seen) or 'nothing'}"
        else:
            state = "closed"
        held = "nothing" if self.held is None else self._named(self.held)
        return f"at {self.places[self.at]} {state} holding {held} ."

    def _named(self, thing: int) -> str:
        return f"{self.things[thing]} {self.marks[thing]}".rstrip()

    def _info(self) -> dict[str, Any]:
        return {
            "success": self.solved(),
            "family": self.family,
            "admissible_actions": list(self._possible),
            "expert_action": self._next,
        }

    # -- the expert ------------------------------------------------------------------------------------------------------

    def errand(self) -> Errand | None:
        """What one does next who knows what has been seen, looks in likely places first and wastes no step on purpose."""
        if not (left := self._left()):
            return None
        if self.held is not None and self.held in left:
            thing = self.things[self.held]
            if not self._treated(self.held):
                return TREATMENTS[self.kinds[self._station]][0], thing, self._station
            return "put", thing, self._destination(self.at, self.opened)
        wanted = self.things[left[0]]
        known = [self.where[thing] for thing in left if self.where[thing] in self.seen]
        source = (self.at if self.at in known else known[0]) if known else self._unsearched()
        if self.held is not None:  # something else
            free = self.at in self.opened and self.kinds[self.at] != "lamp"
            return "put", self.things[self.held], self.at if free else source
        return ("take" if known else "find"), wanted, source

    def errands(self) -> list[Errand]:
        """Whatever could be meant to be done next by one who knows what has been seen, with or without sense."""
        if self.held is None:
            found = {("take", thing, at) for thing, at in zip(self.things, self.where, strict=True) if at in self.seen}
            wanted = self.things[self._wanted[0]]
            return sorted(found | {("find", wanted, place) for place in self._search if place not in self.seen})
        thing = self.things[self.held]
        treated = [(TREATMENTS[kind][0], thing, n) for n, kind in enumerate(self.kinds) if kind in TREATMENTS]
        return [*treated, *(("put", thing, n) for n, kind in enumerate(self.kinds) if kind != "lamp")]

    def command(self, errand: Errand) -> str:
        """The next command of an errand."""
        verb, thing, place = errand
        if towards := self._towards(place):
            return towards
        if verb == "find":
            return "look"
        return f"use {self.places[place]}" if verb == "use" else f"{verb} {thing} {self.places[place]}"

    def _expert(self) -> str:
        errand = self.errand()
        return self.command(errand) if errand else ""

    def _towards(self, place: int) -> str:
        """What is still to be done before something can be done at a place; nothing if one stands there and it is open."""
        if place != self.at:
            return self._ways[place]
        return "" if place in self.opened else f"open {self.places[place]}"

    def _unsearched(self) -> int:
        """The likeliest place not yet looked into."""
        return next(place for place in self._search if place not in self.seen)

    def _destination(self, at: int, opened: set[int]) -> int:
        """Where a thing is put: here if this will do, else at a place that is open if there is one."""
        fit = [place for place, kind in enumerate(self.kinds) if kind == self._target]
        return min(fit, key=lambda place: (place != at, place not in opened))

    def _way(self) -> list[str]:
        """The expert's actions from the start, which is then as it was."""
        start = (self.at, self.held, self.where[:], self.marks[:], set(self.opened), set(self.seen))
        way = []
        while action := self._expert():
            self._do(action)
            way.append(action)
        self.at, self.held, self.where, self.marks, self.opened, self.seen = start
        return way


@cache
def _layouts() -> tuple[tuple[str, ...], ...]:
    """Every layout, as the types of its places, in an order that was drawn once: training takes from the front.

    All have what treatments need; they differ in which storage places there are, 4 to 6 of them.
    """
    counts = [count for count in product(range(MAX_NUMBER + 1), repeat=len(STORAGE)) if 4 <= sum(count) <= 6]
    random.Random("household layouts").shuffle(counts)
    stored = [[kind for kind, n in zip(STORAGE, count, strict=True) for _ in range(n)] for count in counts]
    return tuple((*storage, *TREATMENTS) for storage in stored)


@cache
def _pool(unseen: Unseen, layouts: int) -> tuple[tuple[str, ...], ...]:
    """The layouts that tasks of a kind are drawn from."""
    if unseen == "layouts":
        return _layouts()[-UNSEEN_LAYOUTS:]
    return _layouts()[layouts:-UNSEEN_LAYOUTS] if unseen in ("spare", "mixed") else _layouts()[:layouts]


@cache
def _pairs(held_out: bool, look: bool, kinds: tuple[str, ...]) -> list[tuple[str, str]]:
    """The pairs that a task in a layout may ask for."""
    fit = [pair for pair in PAIRS if (pair[1] == "lamp") == look and pair[1] in kinds]
    return [pair for pair in fit if (pair in HELD_OUT_PAIRS) == held_out]
