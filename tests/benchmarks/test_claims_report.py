"""What claims files may add to a report: columns, a sweep over settings, and the checks made from means of many arms."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.claims.curves import draw_sweep
from benchmarks.claims.parsing import load
from benchmarks.claims.records import Records
from benchmarks.claims.report import Result, Results, columns_table, points_of, sweep_table, verdict
from benchmarks.claims.spec import Check, Condition, Least, SpecError, Sweep, Within
from tests.benchmarks.conftest import SPEC, result, setting, write_spec


def demo(**keys: Any) -> dict[str, Any]:
    """The file with a second setting, one setting in another metric, and these top-level keys."""
    spec = copy.deepcopy(SPEC)
    spec["settings"]["large"] = {**spec["settings"]["small"], "secondary": []}
    spec["settings"]["alone"] = {
        "config": "config.yaml",
        "metric": "test/reward",
        "reference": "ours",
        "core": ["ours"],
    }
    return {**spec, "checks": [], **keys}


def sweep(**keys: Any) -> dict[str, Any]:
    return {"title": "actions", "settings": {"small": 8, "large": 2}, "arms": ["ours", "extra"], **keys}


def least(**keys: Any) -> dict[str, Any]:
    return {"setting": "small", "arm": "ours", "least": "turns", "among": 0.3, **keys}


# -- the file ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"columns": "turns"}, "columns: must be list, not 'turns'"),
        ({"columns": ["turns", "turns"]}, "columns: names something twice"),
        ({"columns": ["commit"]}, "columns: 'commit' is no test score"),
        ({"columns": ["test/turns"]}, "columns: 'test/turns' is written without its split: turns"),
        ({"checks": [least(least="turn")]}, "checks[0].least: 'turn' is none of columns: did you mean turns?"),
        ({"checks": [least()], "columns": []}, "checks[0].least: 'turns' is none of columns; known are none"),
        ({"checks": [least(arm="our")]}, "checks[0].arm: setting small has no arm 'our': did you mean ours?"),
        ({"checks": [least(among="0.3")]}, "checks[0].among: must be int or float, not '0.3'"),
        ({"checks": [{"setting": "small", "arm": "ours", "least": "turns"}]}, "checks[0].among: is missing"),
        ({"checks": [{"setting": "small", "within": "x"}]}, "checks[0].within: must be int or float, not 'x'"),
        ({"checks": [{"setting": "small", "within": -1}]}, "checks[0].within: must be at least 0, not -1"),
        ({"checks": [{"setting": "small", "arms": ["us"], "within": 1}]}, "checks[0].arms: no arm 'us'"),
        ({"checks": [{"setting": "alone", "within": 1}]}, "checks[0].arms: needs at least two arms"),
        ({"checks": [{"setting": "small", "arm": "ours", "within": 1}]}, "checks[0].arm: is no key here"),
        ({"sweep": ["small"]}, "sweep: must be dict, not ['small']"),
        ({"sweep": sweep(arm=["ours"])}, "sweep.arm: is no key here: did you mean arms?"),
        ({"sweep": sweep(arms=["our"])}, "sweep.arms: no arm 'our': did you mean ours?"),
        ({"sweep": sweep(arms=[])}, "sweep.arms: needs at least one arm"),
        ({"sweep": sweep(settings={})}, "sweep.settings: needs at least one setting"),
        ({"sweep": sweep(settings={"smal": 1})}, "sweep.settings.smal: no setting 'smal': did you mean small?"),
        ({"sweep": sweep(settings={"small": "x"})}, "sweep.settings.small: must be int or float, not 'x'"),
        ({"sweep": sweep(settings={"small": float("inf")})}, "sweep.settings.small: must be a finite number"),
        (
            {"sweep": sweep(settings={"small": 1, "large": 1.0})},
            "sweep.settings.large: must be a finite number that no",
        ),
        ({"sweep": sweep(settings={"small": 1, "alone": 2})}, "must share one metric, not test/success, test/reward"),
        ({"sweep": sweep(settings={"large": 1})}, "sweep.arms: 'extra' is in none of the settings large"),
    ],
)
def test_errors_name_file_and_key(root: Path, keys: dict[str, Any], message: str) -> None:
    write_spec(root, demo(**{"columns": ["turns"], **keys}))
    with pytest.raises(SpecError) as error:
        load("demo", root)
    assert str(error.value).startswith("benchmarks/claims/demo.yaml: ")
    assert message in str(error.value)


def test_all_of_it_is_read(root: Path) -> None:
    pair = {"arms": ["ours", "extra"], "within": 0.1}
    either = {"setting": "small", "any": [pair, {"arm": "ours", "least": "turns", "among": 0}]}
    checks = [least(claim="x"), {"setting": "small", "within": 1}, either]
    write_spec(root, demo(columns=["turns", "tokens"], sweep=sweep(), checks=checks))
    claims = load("demo", root)
    assert claims.columns == ("turns", "tokens")
    assert claims.sweep == Sweep("actions", {"large": 2.0, "small": 8.0}, ("ours", "extra"))
    assert list(claims.sweep.settings) == ["large", "small"]
    assert claims.checks == (
        Check("small", "x", (Least("ours", "turns", 0.3),)),
        Check("small", "", (Within(("theirs", "ours"), 1.0),)),
        Check("small", "", (Within(("ours", "extra"), 0.1), Least("ours", "turns", 0.0))),
    )


# -- checks -----------------------------------------------------------------------------------------


def scored(values: list[float], turns: list[float]) -> Result:
    return replace(result(values), columns={"turns": turns})


# means of the metric: a 0.5, b 0.3, c 0.2, d 0.9; of turns: a 4, b 5, c 1, d unknown
RESULTS: Results = {
    "a": scored([0.4, 0.6], [3, 5]),
    "b": scored([0.3, 0.3], [5, 5]),
    "c": scored([0.2], [1]),
}
UNKNOWN: Results = {"d": scored([0.9, 0.9], [2, float("nan")])}


def said(condition: Condition, results: Results) -> str:
    return verdict(Check("s", "", (condition,)), {"s": setting(secondary=("c", "d"))}, {"s": results})


@pytest.mark.parametrize(
    ("condition", "results", "text"),
    [
        (
            Least("a", "turns", 0.3),
            RESULTS,
            "PASS s: a has the least turns of arms with test/success >= 0.3 "
            "(is 4.000 at 0.500, 2 of 3 seeds; next is b with 5.000)",
        ),
        (Least("a", "turns", 0.2), RESULTS, "FAIL (is 4.000 at 0.500, 2 of 3 seeds; next is c with 1.000)"),
        (Least("a", "turns", 0.4), RESULTS, "PASS (is 4.000 at 0.500, 2 of 3 seeds; there is no other)"),
        (Least("b", "turns", 0.3), RESULTS, "FAIL (is 5.000 at 0.300, 2 of 3 seeds; next is a with 4.000)"),
        (Least("c", "turns", 0.3), RESULTS, "FAIL (is 1.000 at 0.200, 1 of 2 seeds; next is a with 4.000)"),
        (Least("c", "turns", 0.2), RESULTS, "PASS (is 1.000 at 0.200, 1 of 2 seeds; next is a with 4.000)"),
        (
            Least("a", "turns", 0.3),
            {**RESULTS, "b": scored([0.3], [4])},
            "FAIL (is 4.000 at 0.500, 2 of 3 seeds; next is b with 4.000)",
        ),
        (Least("d", "turns", 0.3), RESULTS, "OPEN (no runs of d)"),
        (Least("c", "turns", 0.3), {"c": RESULTS["c"]}, "OPEN (no runs of b, a)"),
        (Least("a", "turns", 0.3), RESULTS | UNKNOWN, "OPEN (no turns of d)"),
        (Least("a", "turns", 0.95), RESULTS | UNKNOWN, "FAIL (is 4.000 at 0.500, 2 of 3 seeds; there is no other)"),
        (
            Within(("a", "b", "c"), 0.3),
            RESULTS,
            "PASS s: test/success of a, b, c within 0.3 (is 0.300: a 0.500, c 0.200)",
        ),
        (Within(("b", "a", "c"), 0.29), RESULTS, "FAIL (is 0.300: a 0.500, c 0.200)"),
        (Within(("b", "a"), 0.2), RESULTS, "PASS (is 0.200: a 0.500, b 0.300)"),
        (Within(("a", "d"), 0.2), RESULTS, "OPEN (no runs of d)"),
    ],
)
def test_verdicts(condition: Condition, results: Results, text: str) -> None:
    word, numbers = text.split(" ", 1)
    found = said(condition, results)
    assert found.startswith(f"{word} s: ") and found.endswith(numbers)


# -- tables and pictures ----------------------------------------------------------------------------


def test_columns_table_text() -> None:
    scores = {"turns": [3.0, 4.0], "tokens": [1000.0, 1001.0], "odd": [0.1, float("nan")]}
    results = {"a": replace(result([0.9, 0.8]), columns=scores), "b": result([0.4])}
    assert columns_table(setting(), results, ["turns", "tokens", "odd"]).splitlines() == [
        "| arm | turns | tokens | odd |",
        "| --- | --: | --: | --: |",
        "| b | - | - | - |",
        "| **a** | 3.500 | 1000.50 | - |",
        "| c | - | - | - |",
    ]


def test_sweep_table_text() -> None:
    shown = Sweep("", {"large": 0.5, "small": 8}, ("b", "a", "c"))
    points = points_of(
        shown, {"large": {"a": result([0, 0, 0, 4])}, "small": {"a": result([0.5]), "b": result([1, 1])}}
    )
    assert sweep_table(shown, points).splitlines() == [
        "| arm | 0.5 | 8 |",
        "| --- | --: | --: |",
        "| b | - | 1.000 [1.000, 1.000] |",
        "| a | 1.000 [0.000, 3.000] | 0.500 |",  # see test_interval_golden; one seed has no interval
        "| c | - | - |",
    ]


def test_report_with_columns_and_sweep(root: Path, call: Callable[..., int]) -> None:
    (root / "README.md").write_text("<!-- claims:demo -->\n<!-- /claims:demo -->\n")
    spec = demo(readme="README.md", columns=["turns", "none"], sweep=sweep(), checks=[least(least="none")])
    del spec["settings"]["alone"]
    write_spec(root, spec)
    assert call() == 0
    text = (root / "benchmarks/claims/results/demo.md").read_text()
    rows = "| theirs | 2.000 | - |\n| **ours** | 2.000 | - |\n| extra | 2.000 | - |\n\n**large**"
    assert " 80 (2/2) |\n| extra | 1/1 | 0.500 |" in text
    assert f"320 (1/1) |\n\n| arm | turns | none |\n| --- | --: | --: |\n{rows}" in text
    assert "**actions**, test/success:\n\n| arm | 2 | 8 |\n" in text
    assert "| ours | 0.895 [0.890, 0.900] | 0.895 [0.890, 0.900] |\n| extra | - | 0.500 |\n" in text
    assert "![demo over actions](demo.sweep.png)\n\nChecks:" in text
    assert "- OPEN small: ours has the least none of arms with test/success >= 0.3 (no none of ours, extra)" in text
    assert "(benchmarks/claims/results/demo.sweep.png)" in (root / "README.md").read_text()
    assert (root / "benchmarks/claims/results/demo.sweep.png").read_bytes().startswith(b"\x89PNG")


def test_report_without_the_keys_is_as_before(root: Path, call: Callable[..., int]) -> None:
    assert call() == 0
    markdown = root / "benchmarks/claims/results/demo.md"
    before = markdown.read_text()
    assert before.count("| arm |") == 1 and "turns" not in before and "sweep" not in before
    assert not (root / "benchmarks/claims/results/demo.sweep.png").exists()
    write_spec(root, {**SPEC, "columns": ["turns"], "sweep": {"settings": {"small": 1}, "arms": ["ours"]}})
    assert call("--report-only") == 0  # the runs are those that were there
    after = markdown.read_text()
    assert "STALE" not in after and after.count("| arm |") == 3
    write_spec(root, SPEC)
    assert call("--report-only") == 0
    assert markdown.read_text() == before


@pytest.mark.parametrize("numbers", [{"small": 1, "large": 8}, {"small": 0, "large": -2.5}])
def test_sweep_is_drawn(root: Path, numbers: dict[str, float]) -> None:
    write_spec(root, demo(sweep=sweep(settings=numbers)))
    claims, path = load("demo", root), Records(root, "demo").sweep
    assert claims.sweep and not draw_sweep(claims, points_of(claims.sweep, {"small": {}, "large": {}}), "m", path)
    assert not path.exists()
    results = {"small": {"ours": result([0.1, 0.1, 0.1])}, "large": {"ours": result([0.5])}}
    assert draw_sweep(claims, points_of(claims.sweep, results), "m", path)
    assert path.read_bytes().startswith(b"\x89PNG")
