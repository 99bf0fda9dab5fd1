"""Scenes for ALFWorld's engine: a room, what stands and lies in it, and a task, as the PDDL problem its translator reads.

What fits where, what can be heated, which rooms a task is done in, the goals and their wording are the package's tables. Only
what ALFRED took from its simulator is drawn here: how many receptacles of which kind a room has, and what lies where.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from datamodules.environments.alfworld_package import parts

FAMILIES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
_NEEDS = dict(zip(FAMILIES[2:5], ("Cleanable", "Heatable", "Coolable"), strict=True))
_ABILITIES = ("Cleanable", "Heatable", "Coolable", "Sliceable", "Toggleable")
_LAMP_STANDS = {"Desk", "Dresser", "SideTable", "CoffeeTable", "DiningTable", "Shelf"}
_THINGS = (8, 16)  # lie about besides those the task is about
# By room, the least and most receptacles of a kind.
ROOMS: dict[str, dict[str, tuple[int, int]]] = {
    "Kitchen": {
        "Cabinet": (2, 6),
        "CounterTop": (1, 3),
        "Drawer": (1, 4),
        "StoveBurner": (1, 4),
        "Shelf": (0, 2),
        "DiningTable": (0, 1),
        "SideTable": (0, 1),
        "CoffeeMachine": (0, 1),
        "Toaster": (0, 1),
        "Fridge": (1, 1),
        "Microwave": (1, 1),
        "SinkBasin": (1, 1),
        "GarbageCan": (1, 1),
    },
    "LivingRoom": {
        "Sofa": (1, 1),
        "ArmChair": (0, 2),
        "CoffeeTable": (0, 1),
        "SideTable": (1, 3),
        "DiningTable": (0, 1),
        "Shelf": (0, 3),
        "Drawer": (0, 3),
        "Cabinet": (0, 3),
        "Dresser": (0, 1),
        "TVStand": (0, 1),
        "Ottoman": (0, 1),
        "Safe": (0, 1),
        "GarbageCan": (1, 1),
    },
    "Bedroom": {
        "Bed": (1, 1),
        "Desk": (1, 2),
        "Dresser": (0, 1),
        "SideTable": (1, 2),
        "Drawer": (1, 5),
        "Shelf": (0, 4),
        "ArmChair": (0, 1),
        "Safe": (0, 1),
        "LaundryHamper": (0, 1),
        "GarbageCan": (1, 1),
    },
    "Bathroom": {
        "SinkBasin": (1, 2),
        "Toilet": (1, 1),
        "BathtubBasin": (0, 1),
        "Cabinet": (1, 4),
        "CounterTop": (1, 1),
        "Drawer": (0, 3),
        "Shelf": (0, 2),
        "Cart": (0, 1),
        "TowelHolder": (1, 1),
        "HandTowelHolder": (1, 2),
        "ToiletPaperHanger": (1, 1),
        "GarbageCan": (1, 1),
    },
}


class Place(NamedTuple):
    id: str
    kind: str


class Thing(NamedTuple):
    id: str
    kind: str
    place: str


@dataclass(frozen=True)
class Scene:
    """A game as its texts: the problem, the task in words, and the task's parameters as ALFRED records them."""

    problem: str
    task: str
    parameters: dict[str, Any]

    @property
    def family(self) -> str:
        return str(self.parameters["task_type"])


@cache
def layouts(room: str) -> dict[int, tuple[Place, ...]]:
    """The 30 rooms of a kind by ALFRED's scene numbers, no two with the same receptacles."""
    rng, drawn, rooms = random.Random(room), set(), {}
    for number in parts().constants.SCENE_TYPE[room]:
        while (counts := tuple(rng.randint(*span) for span in ROOMS[room].values())) in drawn:
            pass
        drawn.add(counts)
        kinds = zip(ROOMS[room], counts, strict=True)
        # A basin's name is put together from its sink's.
        rooms[number] = tuple(
            Place(f"{kind.removesuffix('Basin').lower()}_bar_{index:02d}{'_bar_basin' * kind.endswith('Basin')}", kind)
            for kind, count in kinds
            for index in range(1, count + 1)
        )
    return rooms


def draw(rng: random.Random, families: tuple[str, ...], unseen: bool) -> Scene:
    """A scene in one of the rooms that ALFRED trains in, or with ``unseen`` in one of those that it holds out."""
    tables = parts().constants
    family = rng.choice(families)
    numbers = set(tables.TEST_SCENE_NUMBERS if unseen else tables.TRAIN_SCENE_NUMBERS)
    while True:  # until the room has what the task is about
        room = rng.choice(sorted(tables.GOALS_VALID[family]))
        number = rng.choice(sorted(numbers & set(tables.SCENE_TYPE[room])))
        places = layouts(room)[number]
        if goals := _goals(family, {place.kind for place in places}):
            break
    target, parent = rng.choice(goals)
    toggle = ""
    if family == "look_at_obj_in_light":
        toggle, parent = rng.choice(sorted(tables.VAL_ACTION_OBJECTS["Toggleable"])), ""
    things = _things(
        rng, places, target, parent, toggle, 2 if family == "pick_two_obj_and_place" else rng.randint(1, 2)
    )
    words = {"obj": target, "recep": parent, "toggle": toggle}
    wording = parts().goals.gdict[family]
    goal = wording["pddl"].format(**words).replace("#", "-")
    task = rng.choice(wording["templates"]).format(**{key: word.lower() for key, word in words.items()})
    parameters = {
        "task_type": family,
        "object_target": target,
        "parent_target": parent,
        "toggle_target": toggle,
        "mrecep_target": "",
        "object_sliced": False,
        "scene_num": number,
    }
    return Scene(_problem(places, things, {target}, goal), task, parameters)


@cache
def _holds(place: str) -> list[str]:
    """What the package lets lie in a receptacle, whole and but for lamps, which no task moves."""
    tables = parts().constants
    fits = tables.VAL_RECEPTACLE_OBJECTS[place] & set(tables.OBJECTS)
    return sorted(fits - set(tables.VAL_ACTION_OBJECTS["Toggleable"]))


def _goals(family: str, kinds: set[str]) -> list[tuple[str, str]]:
    """Things and the receptacles to put them in: both fit, and the thing can lie elsewhere first."""
    able = parts().constants.VAL_ACTION_OBJECTS.get(_NEEDS.get(family, ""))
    return [
        (thing, kind)
        for kind in sorted(kinds)
        for thing in _holds(kind)
        if (able is None or thing in able) and any(thing in _holds(other) for other in kinds - {kind})
    ]


def _things(
    rng: random.Random, places: tuple[Place, ...], target: str, parent: str, toggle: str, count: int
) -> list[Thing]:
    """The task's things, none where it is to be put, the lamp, and whatever else lies about."""
    numbers: Counter[str] = Counter()
    things: list[Thing] = []

    def lay(kind: str, at: list[str]) -> None:
        numbers[kind] += 1
        things.append(Thing(f"{kind.lower()}_bar_{numbers[kind]:02d}", kind, rng.choice(at)))

    fits: dict[str, list[str]] = {}
    for place in places:
        for kind in _holds(place.kind):
            fits.setdefault(kind, []).append(place.id)
    for _ in range(count):
        lay(target, [place.id for place in places if place.id in fits[target] and place.kind != parent])
    if toggle:
        lay(toggle, [place.id for place in places if place.kind in _LAMP_STANDS])
    others = sorted(fits.keys() - {target})
    for _ in range(rng.randint(*_THINGS)):
        kind = rng.choice(others)
        lay(kind, fits[kind])
    return things


def _problem(places: tuple[Place, ...], things: list[Thing], named: set[str], goal: str) -> str:
    """The scene in PDDL; the agent begins away from every receptacle, each of which is a place of its own."""
    tables = parts().constants
    spots = {place.id: f"loc_bar_{index:02d}" for index, place in enumerate(places, 1)}
    kinds, lying = sorted({place.kind for place in places}), sorted(named | {thing.kind for thing in things})
    objects = ["agent1 - agent", "loc_bar_00 - location", *(f"{spot} - location" for spot in spots.values())]
    objects += [f"{place.id} - receptacle" for place in places] + [f"{thing.id} - object" for thing in things]
    objects += [f"{kind}Type - rtype" for kind in kinds] + [f"{kind}Type - otype" for kind in lying]
    facts = ["atLocation agent1 loc_bar_00"]
    for place in places:
        facts += [f"receptacleType {place.id} {place.kind}Type", f"receptacleAtLocation {place.id} {spots[place.id]}"]
        facts += [f"openable {place.id}"] * (place.kind in tables.OPENABLE_CLASS_SET)
    for thing in things:
        facts += [f"objectType {thing.id} {thing.kind}Type", f"inReceptacle {thing.id} {thing.place}"]
        facts += [f"objectAtLocation {thing.id} {spots[thing.place]}"]
        able = [ability for ability in _ABILITIES if thing.kind in tables.VAL_ACTION_OBJECTS[ability]]
        facts += [f"pickupable {thing.id}"] * ("Toggleable" not in able)
        facts += [f"{ability.lower()} {thing.id}" for ability in able]
    facts += [f"canContain {kind}Type {thing}Type" for kind in kinds for thing in lying if thing in _holds(kind)]
    listed = "\n    ".join(objects), "\n    ".join(f"({fact})" for fact in facts)
    return "(define (problem scene)\n  (:domain alfred)\n  (:objects\n    {}\n  )\n  (:init\n    {}\n  )\n{}".format(
        *listed, goal
    )
