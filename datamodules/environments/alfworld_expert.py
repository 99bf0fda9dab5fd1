"""The experts of the ALFWorld package, who advise whoever plays: one searches as a player must, one plans and sees everything."""

from __future__ import annotations

import random
import re
import weakref
from types import SimpleNamespace
from typing import Any

from datamodules.environments.alfworld_engine import Play
from datamodules.environments.alfworld_package import parts, translating

_PATIENCE = 200  # steps after which the package's expert gives up
_idle: list[Any] = []  # copies of the planner's library whose game is over


class Handcoded:
    """The hand-coded expert, which searches where things usually are and follows from what the player does.

    Two things differ from the package's own wrapper. Its first advice is already about the task, where the wrapper always says
    ``look``. And it is spoken to in its own words: it says ``move``, but its memory of what it holds still listens to ``put``;
    unaware of having put anything down, it seldom brings a second object. Older data sets, which say ``put``, work as well.

    Args:
        play: the game, before its first step.
        parameters: what the task is about, as ALFRED records it.
        seed: of the expert's own draws, of two things of a kind for instance.
    """

    def __init__(self, play: Play, parameters: dict[str, Any], seed: str) -> None:
        self.play, self._state = play, random.Random(seed).getstate()
        self._agent = parts().expert.HandCodedTWAgent(max_steps=_PATIENCE)
        known = parts().constants.OBJECTS_SET
        told = {key: value.lower() if value in known else value for key, value in parameters.items()}
        self._agent.policy = self._agent.get_task_policy(told)(told, max_steps=_PATIENCE)

    def advise(self, command: str, answer: str) -> str | None:
        """What to do next.

        Args:
            command: what was done last, ``look`` at the start.
            answer: what came of it.

        Returns:
            An admissible command, ``look`` where it knows none, or ``None`` where it has lost the thread.
        """
        names, facts = self.play.game.names, sorted(self.play.facts)
        spoken = {re.sub(r"^put (.+) in/on ", r"move \1 to ", offered): offered for offered in self.play.commands}
        state = {
            "feedback": answer,
            "facts": [
                SimpleNamespace(name=fact[0], names=[names.get(thing, thing) for thing in fact[1:]]) for fact in facts
            ],
            "admissible_commands": list(spoken),
        }
        others = random.getstate()  # it draws from the interpreter's generator, which is not its own
        random.setstate(self._state)
        try:
            told = re.sub(r"^move (.+) to ", r"put \1 in/on ", command)
            advice = self._agent.act(state, 0, False, told)
        except (NameError, LookupError):  # its own ways to give up are NameErrors
            return None
        finally:
            self._state = random.getstate()
            random.setstate(others)
        return spoken.get(advice, "look")


class Planner:
    """Fast Downward, which sees everything: the first step of a plan from where the player stands.

    Args:
        play: the game, before its first step.
        domain: its rules in PDDL.
        problem: its scene and goal in PDDL.
    """

    def __init__(self, play: Play, domain: str, problem: str) -> None:
        self.play, downward = play, parts().downward
        # A copy of the library holds one game at a time, and a process that has unloaded one crashes when it ends.
        self._library = library = _idle.pop() if _idle else downward.load_lib()
        weakref.finalize(self, _idle.append, library)
        with translating():
            _, rules = downward.pddl2sas(domain, problem)
            _, search = downward.pddl2sas(domain, problem, optimize=True)
        library.load_sas(rules.encode())
        library.load_sas_replan(search.encode())

    def advise(self, command: str, answer: str) -> str | None:
        """What to do next; ``None`` if no plan was found. The arguments are those of :meth:`Handcoded.advise`."""
        downward, library = parts().downward, self._library
        if (done := self.play.last) is not None:
            operators = (downward.Operator * library.get_applicable_operators_count())()
            library.get_applicable_operators(operators)
            operator = next(op for op in operators if op.name.split() == [done.action, *done.bound.values()])
            library.apply_operator(operator.id, (downward.Atom * operator.nb_effect_atoms)())
        if not library.replan(False) or not (length := library.get_last_plan_length()):
            return None
        plan = (downward.Operator * length)()
        library.get_last_plan(plan)
        wanted = plan[0].name.split()
        moves = self.play.offered.items()
        return next((name for name, move in moves if [move.action, *move.bound.values()] == wanted), None)
