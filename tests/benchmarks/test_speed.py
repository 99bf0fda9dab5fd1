"""The speed harness: sides take turns, steps are whole, and a slower result is noticed."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.speed.__main__ import table
from benchmarks.speed.compare import changes
from benchmarks.speed.worker import Paced


def test_a_paced_loop_makes_one_step_a_call() -> None:
    made: list[int] = []

    def fit(pace: Paced) -> None:
        for step in range(3):
            pace.pause()
            made.append(step)
        pace.pause()

    step = Paced(fit)
    assert made == []
    for count in range(1, 4):
        step()
        assert len(made) == count


def row(ratio: float, memory: float = 0.5) -> dict[str, Any]:
    side = {"cpu": 1.0, "peak": 900.0, "extra": 1.0}
    return {"variant": "5M", "threads": 1, "ours": side, "peer": side, "ratio": ratio, "memory": memory}


@pytest.mark.parametrize(("now", "names"), [(0.41, []), (0.43, ["ratio"]), (0.37, ["ratio"])])
def test_changes_beyond_five_per_cent_are_told(now: float, names: list[str]) -> None:
    found = changes({"rows": [row(0.4)]}, {"rows": [row(now), {**row(9.0), "variant": "new"}]})
    assert [name.split(": ")[1] for name, _ in found] == names
    assert all(change == pytest.approx(now / 0.4) for _, change in found)


def test_the_table_shows_what_was_measured() -> None:
    alone = {"variant": "x", "threads": 2, "ours": {"cpu": 0.25, "peak": 400.0, "extra": 0.0}}
    lines = table([row(0.4), alone], "a peer").splitlines()
    assert lines[4] == "| 5M | 1 | 1 | 1 | 0.4 | 900 (1) | 900 (1) | - | - |"
    assert lines[5] == "| x | 2 | 0.25 | - | - | 400 (0) | - | - | - |"
