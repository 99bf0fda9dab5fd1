"""Two ranks are one (contract 3): the same step, the same rows, the same metrics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import ddp_worker

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What one rank left, then what each of two ranks left."""
    folder, root = tmp_path_factory.mktemp("ddp"), Path(__file__).parent.parent
    command = [sys.executable, "-m", "tests.ddp_worker", "2", str(folder / "2")]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as worker:
        ddp_worker.main(1, str(folder / "1"))
        output, _ = worker.communicate(timeout=100)
    assert worker.returncode == 0, output[-4000:]
    return [torch.load(folder / name, weights_only=True) for name in ("1.0", "2.0", "2.1")]


def test_the_step_on_fixed_rows_is_that_of_one_rank(left: list[dict[str, Any]]) -> None:
    single, *ranks = left
    assert single["gradient"].norm() > 1e-2
    for rank in ranks:
        assert float((rank["gradient"] - single["gradient"]).norm() / single["gradient"].norm()) < 1e-5
        for name, value in single["step"].items():
            assert torch.allclose(rank["step"][name], value, atol=1e-5), name
        (expected,), (measured,) = single["step_measures"], rank["step_measures"]
        assert measured == pytest.approx(expected, rel=1e-5)


def test_ranks_stay_together_and_hold_all_rows(left: list[dict[str, Any]]) -> None:
    _, first, second = left
    assert len(first["measures"]) == 6  # no rank skipped a step
    assert first["measures"] == second["measures"]
    assert all(torch.equal(value, second["weights"][name]) for name, value in first["weights"].items())
    assert len(first["rows"]) == len(second["rows"]) == first["metrics"]["train/rows"]
    for one, other in zip(first["rows"], second["rows"], strict=True):
        assert all(torch.equal(value, other[name]) for name, value in one.items())
    owners = [int(row["trajectory"]) for row in first["rows"]]
    assert len(set(owners)) == len(owners)  # the ranks' trajectories do not share numbers


def test_metrics_are_over_all_ranks(left: list[dict[str, Any]]) -> None:
    single, first, second = left
    assert first["metrics"]["train/episodes"] == single["metrics"]["train/episodes"] == 32
    for name, value in first["metrics"].items():
        if name != "tokens/s":
            assert second["metrics"][name] == value, name
    assert first["metrics"].keys() >= {"val/success", "train/success", "train/groups_mixed"}
