"""Every world is a gymnasium environment by gymnasium's own checker."""

from __future__ import annotations

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import datamodules.environments  # noqa: F401 - registers them
from zoo.errors import ConfigError


@pytest.mark.parametrize("name", sorted(name for name in gymnasium.registry if name.startswith("zoo/")))
def test_gymnasium_finds_nothing_wrong(name: str) -> None:
    try:
        env = gymnasium.make(name).unwrapped
    except ConfigError as error:
        pytest.skip(str(error))
    check_env(env, skip_render_check=True)
