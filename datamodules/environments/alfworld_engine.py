"""ALFWorld's text engine without its waiting time: the package's parts, each run once where ``PddlEnv`` runs it at every step.

``textworld.envs.PddlEnv`` translates a game four times to start it, parses its grammar again for every command it offers, and
copies the state for every word it writes. Here the same translator grounds a game once, the same grammar is parsed once per
process, and both are then only looked up. What is said, what may be said and what wins are the same to the letter; a test
plays both side by side. Expressions in a grammar are interpreted, never run as code: game files may come from anywhere.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from datamodules.environments.alfworld_package import parts, translating
from zoo.errors import ConfigError

Fact = tuple[str, ...]  # a predicate and the ids it holds of
Bound = dict[str, str]  # ids by variable
Query = tuple[Fact, ...]  # predicates of variables, all to be true
Writer = Callable[["Play", Bound], str]
_GOAL, _UNKNOWN = re.compile(r"(?<=Your task is to: )[^\"]*?(?=\.\")"), "UNKNOWN GOAL"
_GAMES = 128  # ground games kept per process, some 1.5 MiB each


class Condition(NamedTuple):
    """Facts that must hold and facts that must not."""

    needs: frozenset[Fact]
    forbids: frozenset[Fact]


ALWAYS = Condition(frozenset(), frozenset())


class Effect(NamedTuple):
    fact: Fact
    holds: bool
    when: Condition


@dataclass
class Move:
    """A ground action."""

    action: str
    bound: Bound
    effects: tuple[Effect, ...]
    command: str = ""  # written when it is first offered


@dataclass(frozen=True, eq=False)
class Game:
    """A game before its first step; plays share it."""

    start: frozenset[Fact]
    fixed: dict[str, list[tuple[str, ...]]]  # by predicate that no move changes, what it holds of
    moves: dict[Condition, list[Move]]
    goal: Condition
    derived: dict[Fact, list[Condition]]  # facts that follow from others, each by any of its conditions
    names: dict[str, str]
    answers: dict[str, str]  # by action, the rule of what comes of it
    rules: dict[str, list[tuple[Query, list[Writer]]]]
    goal_text: str


class Play:
    """A game in progress."""

    def __init__(self, game: Game) -> None:
        self.game, self.facts = game, set(game.start)
        self.last: Move | None = None  # what was done last, if anything
        self.offered = self._offered()

    @property
    def intro(self) -> str:
        return self.text("intro", {}).replace(_UNKNOWN, self.game.goal_text)

    @property
    def commands(self) -> list[str]:
        return sorted(self.offered)

    @property
    def won(self) -> bool:
        return self._true(self.game.goal)

    def step(self, command: str) -> str:
        """Do what is said and tell what comes of it."""
        self.last = move = self.offered.get(command.strip())
        if move is None:
            return "Nothing happens."
        due = [effect for effect in move.effects if self._true(effect.when)]
        for fact, holds, _ in sorted(due, key=lambda effect: effect.holds):  # what is made true outlasts what is undone
            denied = (f"not_{fact[0]}", *fact[1:])
            self.facts.discard(denied if holds else fact)
            self.facts.add(fact if holds else denied)
        self.offered = self._offered()
        return self.text(self.game.answers[move.action], move.bound)

    def _offered(self) -> dict[str, Move]:
        offered: dict[str, Move] = {}
        for condition, moves in self.game.moves.items():
            if self._true(condition):
                for move in moves:
                    if not move.command:
                        move.command = self.text(f"{move.action}.command", move.bound)
                    offered.setdefault(move.command, move)
        return offered

    def _true(self, condition: Condition) -> bool:
        needs, forbids = condition
        if not needs <= self.facts and not all(map(self._follows, needs - self.facts)):
            return False
        return forbids.isdisjoint(self.facts) and not any(map(self._follows, forbids))

    def _follows(self, fact: Fact) -> bool:
        return any(map(self._true, self.game.derived.get(fact, ())))

    def text(self, rule: str, bound: Bound) -> str:
        """The first version of a rule whose condition is met, written out."""
        for query, pieces in self.game.rules[rule]:
            if next(self.matches(query, bound), None) is not None:
                return "".join(piece(self, bound) for piece in pieces)
        raise KeyError(rule)

    def matches(self, query: Query, bound: Bound) -> Iterator[Bound]:
        """Every way to bind the query's variables, in the order of the ids; different variables are different things."""
        if not query:
            yield bound
            return
        (predicate, *variables), *others = query
        known = self.game.fixed.get(predicate)
        if known is None:
            known = sorted(fact[1:] for fact in self.facts if fact[0] == predicate)
        for ids in known:
            found, taken = dict(bound), set(bound.values())
            for variable, thing in zip(variables, ids, strict=True):
                if found.get(variable, None if thing in taken else thing) != thing:
                    break
                found[variable] = thing
                taken.add(thing)
            else:
                yield from self.matches(tuple(others), found)


# --- the grammar -------------------------------------------------------------------------------------------------------------


def _query(text: str) -> Query:
    """``opened(r:receptacle) & ...``; a type follows from the predicate."""
    return tuple((name, *re.findall(r"(\w+)\s*:", of)) for name, of in re.findall(r"(\w+)\(([^)]*)\)", text or ""))


def _value(expression: str) -> Writer:
    """A sum of names and strings, ``o.indefinite + ' ' + o.name``."""

    def write(node: ast.expr, play: Play, bound: Bound) -> str:
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.Name(id=variable) | ast.Attribute(value=ast.Name(id=variable), attr="name"):
                return play.game.names[bound[variable]]
            case ast.Attribute(value=ast.Name(id=variable), attr="id"):
                return bound[variable]
            case ast.Attribute(value=ast.Name(), attr="indefinite"):
                return "a"
            case ast.Attribute(value=ast.Name(), attr="definite"):
                return "the"
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return write(left, play, bound) + write(right, play, bound)
            case ast.BoolOp(op=ast.Or(), values=values):
                return next(filter(None, (write(value, play, bound) for value in values)), "")
        raise ConfigError(f"the game's grammar has an expression that is not understood: {expression!r}")

    tree = ast.parse(expression.strip(), mode="eval").body
    return lambda play, bound: write(tree, play, bound)


def _writer(symbol: Any) -> Writer:
    """What writes a symbol of the package's grammar."""
    kind = type(symbol).__name__
    if kind == "TerminalSymbol":
        return lambda play, bound: symbol.symbol
    if kind == "NonterminalSymbol":
        return lambda play, bound: play.text(symbol.symbol, bound)
    if kind == "EvalSymbol":
        return _value(symbol.expression)
    inner = symbol.symbol if kind == "ListSymbol" else symbol
    item, query = _writer(inner.expression), _query(inner.given)

    def write(play: Play, bound: Bound) -> str:
        items = [item(play, found) for found in play.matches(query, bound)]
        if kind != "ListSymbol":
            return "".join(items)
        if not items:
            return play.text("list_empty", bound)
        last = play.text("list_last_separator", bound) + items.pop() if items[1:] else ""
        return play.text("list_separator", bound).join(items) + last

    return write


@lru_cache(maxsize=8)
def _grammar(text: str) -> tuple[dict[str, str], dict[str, list[tuple[Query, list[Writer]]]]]:
    """By action the rule of its answer, and the rules; all games of a data set share them but for their goal."""
    package = parts()
    logic = package.logic.GameLogic(domain="", grammar=text)
    rules: dict[str, list[tuple[Query, list[Writer]]]] = {
        name: [(_query(version.condition), list(map(_writer, version.rhs))) for version in versions]
        for name, versions in logic.grammar._rules.items()
    }
    answers: dict[str, str] = {}
    for name, action in logic.actions.items():
        template = package.textgen.ContextSensitiveGrammar.parse(json.dumps({"command": [{"rhs": action.template}]}))
        rules[f"{name}.command"] = [((), list(map(_writer, template._rules["command"][0].rhs)))]
        answers[name] = action.feedback_rule.strip("#")
    return answers, rules


# --- the rules of the world --------------------------------------------------------------------------------------------------


def _facts(literals: Sequence[Any]) -> Condition:
    if not literals:
        return ALWAYS
    yes, no = ([(each.predicate, *each.args) for each in literals if each.negated == side] for side in (False, True))
    return Condition(frozenset(yes), frozenset(no))


def _effects(action: Any) -> tuple[Condition, tuple[Effect, ...]]:
    """Condition and effects of a ground action; what it would leave as it is, is not an effect."""
    condition = _facts(action.precondition)
    effects = []
    for holds, pairs in ((True, action.add_effects), (False, action.del_effects)):
        for when, literal in pairs:
            effect = Effect((literal.predicate, *literal.args), holds, _facts(when))
            known = condition if effect.when is ALWAYS else effect.when
            if effect.fact not in (known.needs if holds else known.forbids):
                effects.append(effect)
    return condition, tuple(effects)


@lru_cache(maxsize=_GAMES)
def ground(domain: str, grammar: str, problem: str) -> Game:
    """A game out of its three texts.

    Args:
        domain: the rules, in PDDL.
        grammar: how they are told, in textworld's TWL2.
        problem: the scene and the goal, in PDDL.

    Raises:
        ConfigError: the goal cannot be reached, or the grammar is not one that ALFWorld writes.
    """
    package = parts()
    with translating():
        parsed = (package.lisp.parse_nested_list(text.split("\n")) for text in (domain, problem))
        task = package.parsing.parse_task(*parsed)
        package.normalize.normalize(task)
        reachable, _, actions, axioms, _ = package.instantiate.explore(task)
    if not reachable:
        raise ConfigError("the game cannot be won: its goal is out of reach")
    start = {(atom.predicate, *atom.args) for atom in task.init if hasattr(atom, "predicate")}
    changing = {effect.literal.predicate for action in task.actions for effect in action.effects}
    changing |= {f"not_{predicate}" for predicate in changing}
    variables = {
        action.name: [parameter.name.strip("?") for parameter in action.parameters[: action.num_external_parameters]]
        for action in task.actions
    }
    moves: dict[Condition, list[Move]] = {}
    for action in sorted(actions, key=lambda action: action.name):
        condition, effects = _effects(action)
        if effects:
            name, *ids = action.name.strip("()").split()
            moves.setdefault(condition, []).append(Move(name, dict(zip(variables[name], ids, strict=True)), effects))
    derived: dict[Fact, list[Condition]] = {}
    for axiom in axioms:
        derived.setdefault((axiom.effect.predicate, *axiom.effect.args), []).append(_facts(axiom.condition))
    told = _GOAL.search(grammar)
    answers, rules = _grammar(_GOAL.sub(_UNKNOWN, grammar))
    return Game(
        start=frozenset(fact for fact in start if fact[0] in changing),
        fixed={
            predicate: sorted(fact[1:] for fact in start if fact[0] == predicate)
            for predicate in {fact[0] for fact in start} - changing
        },
        moves=moves,
        goal=_facts(getattr(task.goal, "parts", None) or [task.goal]),
        derived=derived,
        names=_names({thing.name for thing in task.objects}),
        answers=answers,
        rules=rules,
        goal_text=told[0] if told else "",
    )


def _names(ids: set[str]) -> dict[str, str]:
    """What things are called, by the package's own numbering."""
    naming = parts().names.Demangler(game_infos={thing: SimpleNamespace(id=thing) for thing in ids})
    return {thing: naming.demangle_alfred_name(thing).strip() for thing in ids}
