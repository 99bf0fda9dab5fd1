"""Agentic reinforcement learning, six methods short enough to read next to their papers.

Importing this package loads neither torch nor Lightning; the classes are imported when first used.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "ACTCritic": "zoo.act.module",
    "ACTGuidePolicy": "zoo.actguide.module",
    "AgentModule": "zoo.agent",
    "ECHOAgent": "zoo.echo.module",
    "ImitationPolicy": "zoo.imitation.module",
    "PreferencePolicy": "zoo.imitation.preferences",
    "ReSkillCoEvolver": "zoo.reskill.module",
    "create_model": "zoo.registry",
    "list_models": "zoo.registry",
    "register_model": "zoo.registry",
}
__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'zoo' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _refuse_shadows() -> None:
    """``callbacks`` and ``datamodules`` are common names: make sure that ours are the ones Python finds."""
    home = Path(__file__).resolve().parent.parent
    for package in ("callbacks", "datamodules"):
        spec = importlib.util.find_spec(package)
        found = Path(spec.origin).resolve() if spec and spec.origin else None
        if found is None or found.parent.parent != home:
            raise ImportError(
                f"the zoo needs its own package '{package}' in {home}, but Python finds {found or 'none'}: "
                "move that one out of sys.path, or install agentic-zoo into an environment of its own"
            )


_refuse_shadows()
