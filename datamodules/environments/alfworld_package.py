"""The parts of the ALFWorld package and its engine that are used, imported when first needed."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import sys
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace

from datamodules.environments.textworld_express import WorldMissing


@contextlib.contextmanager
def translating() -> Iterator[None]:
    """The translator reads options from the command line and reports on stdout; neither is its own here.

    It makes so many small objects that the collector would walk through all that the process holds again and again, which
    took as long as the translation: it waits.
    """
    arguments, collecting = sys.argv, gc.isenabled()
    sys.argv = ["translate", "domain", "task"]
    gc.disable()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        sys.argv = arguments
        if collecting:
            gc.enable()


@cache
def parts() -> SimpleNamespace:
    """The modules of the package that are used.

    Raises:
        WorldMissing: the package is not installed.
    """
    names = {
        "constants": "alfworld.gen.constants",
        "goals": "alfworld.gen.goal_library",
        "paths": "alfworld.info",
        "names": "alfworld.agents.utils.misc",
        "expert": "alfworld.agents.expert",
        "logic": "textworld.envs.pddl.logic",
        "textgen": "textworld.envs.pddl.textgen",
        "downward": "fast_downward",
        "normalize": "fast_downward.translate.normalize",
        "instantiate": "fast_downward.translate.instantiate",
        "lisp": "fast_downward.translate.pddl_parser.lisp_parser",
        "parsing": "fast_downward.translate.pddl_parser.parsing_functions",
    }
    try:
        with translating():
            return SimpleNamespace(**{short: importlib.import_module(name) for short, name in names.items()})
    except ImportError as error:
        raise WorldMissing(f"ALFWorld needs {error.name}: pip install 'agentic-zoo[alfworld]'") from error
