"""The claims runner: file format, running and resuming, numbers, tables, checks, pictures."""

from __future__ import annotations

import copy
import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.claims.__main__ import main
from benchmarks.claims.curves import draw, on_one_grid
from benchmarks.claims.parsing import load
from benchmarks.claims.records import Records, commit, curve_means, episodes_to_level, read
from benchmarks.claims.report import inject, results_of, table, verdict
from benchmarks.claims.runner import Runner, encode, plan
from benchmarks.claims.spec import Above, Bound, Check, Slower, SpecError
from benchmarks.claims.stats import interval, paired, reached, sign_flip_p
from tests.benchmarks.conftest import SPEC, calls, changed, fake, result, setting, write_spec

REPOSITORY = Path(__file__).parents[2]


# -- the file ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("settings/small/config", "none.yaml", "settings.small.config: there is no file none.yaml"),
        ("settings/small/config", ..., "settings.small.config: is missing"),
        ("settings/small/seed", 3, "settings.small.seed: is no key here: did you mean seeds?"),
        ("settings/small/seeds", 0, "settings.small.seeds: must be at least 1 and at most 20, not 0"),
        ("settings/small/seeds", True, "settings.small.seeds: must be int, not True"),
        ("settings/small/seeds", 21, "settings.small.seeds: must be at least 1 and at most 20, not 21"),
        ("settings/small/metric", "success", "settings.small.metric: must be split/name"),
        ("settings/small/reference", "extra", "settings.small.reference: 'extra' must be one of the core arms"),
        ("settings/small/core", ["ours", "their"], "settings.small.core: no arm 'their': did you mean theirs?"),
        ("settings/small/core", ["ours", "ours"], "settings.small.core: names something twice"),
        ("settings/small/secondary", ["ours"], "settings.small.secondary: ours are core arms already"),
        ("settings/small/overrides/seed_everything", 1, "overrides: seed_everything is set by the runner"),
        ("settings/small/overrides/data.episode_budget", 1, "overrides: data.episode_budget is set by the runner"),
        ("settings/small/test_overrides/model.weights", "x", "test_overrides: model.weights is set by the runner"),
        ("arms/ours/override", {}, "arms.ours.override: is no key here: did you mean overrides?"),
        (
            "arms/extra/overrides/model.weights",
            "{stf}",
            "overrides of extra: there is no stage 'stf': did you mean sft?",
        ),
        ("stages/sft/overrides/model.weights", "{more}", "overrides of stage sft: stage 'more' would need itself"),
        ("stages/pairs/command", "test", "stages.pairs.command: must be fit or predict, not 'test'"),
        ("settings/small/fit", False, "settings.small.fit: is false, so arm 'theirs' must say"),
        ("arms/a b", {}, "arms: 'a b' must consist of letters"),
        ("checks/0/setting", "smal", "checks[0].setting: no setting 'smal': did you mean small?"),
        ("checks/0/arm", "other", "checks[0].arm: setting small has no arm 'other'"),
        ("checks/0/op", ">", "checks[0].op: must be '>=' or '<='"),
        ("checks/0/op", ..., "checks[0].arm: give 'op' and 'value'"),
        ("checks/0/any", [], "checks[0].any: needs at least one condition"),
        ("checks/0/by", 1, "checks[0].by: is no key here"),
        ("readme", "README.md", "readme: there is no file README.md"),
        ("arms", [1], "arms: must be dict, not [1]"),
    ],
)
def test_errors_name_file_and_key(root: Path, path: str, value: Any, message: str) -> None:
    write_spec(root, changed(path, value))
    with pytest.raises(SpecError) as error:
        load("demo", root)
    assert str(error.value).startswith("benchmarks/claims/demo.yaml: ")
    assert message in str(error.value)


def test_unknown_and_broken_files(root: Path) -> None:
    with pytest.raises(SpecError, match=r"there is no benchmarks/claims/dmo\.yaml; there are demo"):
        load("dmo", root)
    (root / "benchmarks/claims/demo.yaml").write_text("arms: {a: 1\n")
    with pytest.raises(SpecError, match=r"demo\.yaml: .*line"):
        load("demo", root)


def test_shipped_claims_files_are_valid() -> None:
    names = [path.stem for path in (REPOSITORY / "benchmarks/claims").glob("*.yaml")]
    assert "actguide" in names
    for name in names:
        assert plan(load(name, REPOSITORY), REPOSITORY)


def test_order_is_seed_by_seed_core_before_secondary(root: Path) -> None:
    order = [(run.seed, run.arm.name) for run in plan(load("demo", root), root)]
    assert order == [(0, "theirs"), (0, "ours"), (0, "extra"), (1, "theirs"), (1, "ours")]
    assert len(plan(load("demo", root), root, seeds=1)) == 3
    assert {run.arm.name for run in plan(load("demo", root), root, arms=["ours"])} == {"ours"}
    with pytest.raises(SpecError, match="runs no arm 'us'"):
        plan(load("demo", root), root, arms=["us"])


def test_fingerprint_follows_what_a_run_is_made_from(root: Path) -> None:
    def prints() -> dict[str, str]:
        return {run.arm.name: run.fingerprint for run in plan(load("demo", root), root, seeds=1)}

    before = prints()
    write_spec(root, changed("arms/ours/description", "in other words"))
    assert prints() == before
    write_spec(root, changed("stages/sft/overrides/model.weights", "base2"))
    after = prints()
    assert after["extra"] != before["extra"] and after["ours"] == before["ours"]
    (root / "config.yaml").write_text("# a comment\nmodel: {class_path: X}\n")
    assert prints() == after
    (root / "config.yaml").write_text("model: {class_path: Y}\n")
    assert not set(prints().values()) & set(after.values())


# -- running ----------------------------------------------------------------------------------------


def test_commands_of_a_run(root: Path, call: Callable[..., int]) -> None:
    assert call("--arms", "ours", "--seeds", "1", "--jobs", "1") == 0
    folder = "runs/claims/demo/small/ours/0"
    common = {
        "config": "config.yaml",
        "seed_everything": "0",
        "trainer.default_root_dir": folder,
        "data.episode_budget": "100",
        "data.environment_args": '{"steps": 2}',
        "model.lora": "null",
        "model.flag": "true",
        "model.skill": "0.9",
    }
    tested = {**common, "data.test_tasks": "7", "model.weights": f"{folder}/weights"}
    assert calls(root) == [("fit", common), ("test", tested)]
    assert json.loads((root / "calls.jsonl").read_text().splitlines()[0])[3] == "PASSIVE"


def test_threads_are_shared_between_jobs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    for jobs, threads in (("3", "2"), ("7", "1")):
        main(["demo", "--arms", "ours", "--seeds", "1", "--jobs", jobs], root, fake(root))
        assert json.loads((root / "calls.jsonl").read_text().splitlines()[-1])[2] == threads
        (root / "benchmarks/claims/results/demo.csv").unlink()


def test_rows_and_curves(root: Path, call: Callable[..., int]) -> None:
    assert call("--jobs", "2") == 0
    with (root / "benchmarks/claims/results/demo.csv").open() as file:
        rows = {(row["arm"], row["seed"]): row for row in csv.DictReader(file)}
    assert len(rows) == 5
    row = rows["ours", "1"]
    assert float(row["success"]) == pytest.approx(0.89) and row["turns"] == "2.0" and row["split"] == "test"
    assert (row["episodes"], row["generated_tokens"], row["episodes_to_50"]) == ("120", "1200", "80")
    assert row["commit"] == "unknown"
    assert rows["theirs", "0"]["episodes_to_50"] == ""
    points = [row for row in read(root / "benchmarks/claims/results/demo.curves.csv") if row["arm"] == "ours"]
    assert len(points) == 6
    assert [point["val/success"] for point in points[:3]] == ["", "0.9", ""]
    assert [point["train/mean_k"] for point in points[:3]] == ["3", "2", "1"]
    assert [point["episodes"] for point in points[:3]] == ["40", "80", "120"]


def test_seconds_are_those_of_training(root: Path, call: Callable[..., int]) -> None:
    write_spec(root, changed("settings/small/overrides/model.burn", 0.4))  # in `fit` and in `test`
    assert call("--arms", "ours", "--seeds", "1") == 0
    (row,) = read(root / "benchmarks/claims/results/demo.csv")
    assert 0.4 <= float(row["cpu_seconds"]) < 0.8 and float(row["wall_seconds"]) >= 0.4


def test_commit_says_whether_the_code_was_changed(root: Path) -> None:
    def git(*args: str) -> None:
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *args], cwd=root, check=True)

    assert commit(root) == "unknown"
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "x")
    clean = commit(root)
    assert 7 <= len(clean) <= 12
    (root / "benchmarks/claims/results").mkdir()
    (root / "benchmarks/claims/results/demo.csv").write_text("a row")
    assert commit(root) == clean
    (root / "config.yaml").write_text("changed: 1\n")
    assert commit(root) == f"{clean}-dirty"


def test_stages_feed_each_other_and_count(root: Path, call: Callable[..., int]) -> None:
    assert call("--arms", "extra") == 0
    folder = "runs/claims/demo/small/extra/0"
    made = [(verb, given["trainer.default_root_dir"]) for verb, given in calls(root)]
    assert [(verb, path.split("-")[0]) for verb, path in made] == [
        ("fit", "runs/claims/demo/stages/sft"),
        ("fit", "runs/claims/demo/stages/more"),
        ("predict", "runs/claims/demo/stages/pairs"),
        ("fit", folder),
        ("test", folder),
    ]
    given = [arguments for _, arguments in calls(root)]
    sft, more, pairs = (path for _, path in made[:3])
    assert [one.get("model.weights") for one in given[:2]] == ["base", f"{sft}/weights"]
    assert (given[3]["model.weights"], given[3]["model.pairs"]) == (f"{more}/weights", f"{pairs}/pairs")
    assert "data.episode_budget" not in given[0]
    (row,) = read(root / "benchmarks/claims/results/demo.csv")
    assert (row["episodes"], row["generated_tokens"], row["episodes_to_50"]) == ("360", "3600", "320")


def test_stages_are_made_once_for_all_that_need_them(root: Path, call: Callable[..., int]) -> None:
    """Two settings that only test, and arms of which one goes on from the other; a stage that was cut short starts anew."""
    spec = copy.deepcopy(SPEC)
    spec["arms"] |= {name: {"overrides": {"model.weights": f"{{{name}}}"}} for name in ("sft", "more")}
    small = {"config": "config.yaml", "reference": "sft", "core": ["sft", "more"], "seeds": 2, "fit": False}
    spec["settings"] = {"small": small, "large": {**small, "overrides": {"model.size": 3}}}
    spec["checks"] = []
    write_spec(root, spec)
    assert call("--jobs", "4") == 0
    fits = Counter(given["trainer.default_root_dir"] for verb, given in calls(root) if verb == "fit")
    assert len(fits) == 4 and set(fits.values()) == {1}
    tests = [given for verb, given in calls(root) if verb == "test"]
    assert len(tests) == 8 and sum(given.get("model.size") == "3" for given in tests) == 4
    rows = read(root / "benchmarks/claims/results/demo.csv")
    assert {(row["arm"], row["episodes"]) for row in rows} == {("sft", "120"), ("more", "240")}
    spec["stages"]["more"]["overrides"]["model.skill"] = 0.7
    write_spec(root, spec)
    assert call() == 0
    assert sum(verb == "fit" for verb, _ in calls(root)) == 6
    (root / next(path for path in fits if "/sft" in path) / "cost.json").unlink()
    (root / "benchmarks/claims/results/demo.csv").unlink()
    assert call() == 0
    assert sum(verb == "fit" for verb, _ in calls(root)) == 7


def test_finished_runs_are_kept_and_unfinished_ones_start_anew(root: Path, call: Callable[..., int]) -> None:
    call("--arms", "ours", "--seeds", "1")
    rubbish = root / "runs/claims/demo/small/ours/1/weights"
    rubbish.mkdir(parents=True)  # the fake zoo refuses to write weights twice
    assert call("--arms", "ours") == 0
    assert [given["seed_everything"] for verb, given in calls(root) if verb == "fit"] == ["0", "1"]
    assert call("--arms", "ours") == 0
    assert len(calls(root)) == 4


def test_changed_settings_run_again(root: Path, call: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    call("--seeds", "1")
    write_spec(root, changed("arms/ours/overrides/model.skill", 0.75))
    capsys.readouterr()
    assert call("--report-only") == 0
    assert "STALE small ours seed 0" in capsys.readouterr().out
    before = len(calls(root))
    assert call("--seeds", "1") == 0
    assert "ours seed 0: its settings have changed since" in capsys.readouterr().out
    assert len(calls(root)) == before + 2
    rows = [row for row in read(root / "benchmarks/claims/results/demo.csv") if row["arm"] == "ours"]
    assert [row["success"] for row in rows] == ["0.75"]
    curve = [row for row in read(root / "benchmarks/claims/results/demo.curves.csv") if row["arm"] == "ours"]
    assert len(curve) == 3


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("arms/theirs/overrides/model.fail", "fit", "`zoo fit --config=config.yaml` ended with status 1"),
        ("arms/theirs/overrides/model.fail", "test", "`zoo test --config=config.yaml` ended with status 1"),
        ("settings/small/budget_episodes", 121, "stopped after 120 of 121 episodes: raise trainer.max_epochs"),
        ("settings/small/metric", "test/reward", "has no finite test/reward; it has test/success, test/turns"),
        ("arms/theirs/overrides/model.skill", math.nan, "has no finite test/success"),
    ],
)
def test_failures_are_reported_and_stop_nothing(
    root: Path, call: Callable[..., int], capsys: pytest.CaptureFixture[str], key: str, value: Any, message: str
) -> None:
    write_spec(root, changed(key, value))
    assert call("--seeds", "1", "--arms", "theirs,ours", "--jobs", "1") == 1
    output = capsys.readouterr()
    assert message in output.out and "claims: failed: small theirs seed 0" in output.err
    if value in ("fit", "test"):
        assert "the disk is on fire" in output.out
    done = Records(root, "demo").done()
    assert ("small", "theirs", 0) not in done
    assert ("small", "ours", 0) in done or key.startswith("settings")
    text = (root / "benchmarks/claims/results/demo.md").read_text()
    assert "- FAILED small theirs seed 0:" in text and message in text
    write_spec(root, SPEC)
    assert call("--seeds", "1", "--arms", "theirs") == 0
    assert "FAILED small theirs" not in (root / "benchmarks/claims/results/demo.md").read_text()


def test_sigterm_ends_children_and_loses_only_them(root: Path) -> None:
    spec = changed("arms/theirs/overrides/model.sleep", 60)
    spec["settings"]["small"]["core"] = ["ours", "theirs"]
    write_spec(root, spec)
    code = "import sys; from pathlib import Path; from benchmarks.claims.__main__ import main;"
    code += f"sys.exit(main(['demo', '--jobs', '1'], Path({str(root)!r}), {fake(root)!r}))"
    runner = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    until(lambda: len(calls(root)) == 3)  # ours was fitted and tested, theirs is being fitted
    claims = load("demo", root)
    with pytest.raises(SpecError, match="still at work"):
        Runner(claims, root, command=fake(root)).run(plan(claims, root))
    runner.send_signal(signal.SIGTERM)
    assert "interrupted" in runner.communicate(timeout=20)[1]
    assert runner.returncode == 130
    assert list(Records(root, "demo").done()) == [("small", "ours", 0)]
    assert Runner(claims, root, command=fake(root)).run([]) == []  # nobody holds the lock: the child is gone


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_encode() -> None:
    assert [encode(value) for value in ("a b", 0.5, False, None, [1, "x"])] == [
        "a b",
        "0.5",
        "false",
        "null",
        '[1, "x"]',
    ]


# -- numbers ----------------------------------------------------------------------------------------


def test_interval_golden() -> None:
    assert interval([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)
    # means of 4 draws from {0, 0, 0, 4} are binomial: P(4) = 1/256 < 2.5 %, P(>= 3) = 13/256 > 2.5 %, P(0) = 81/256
    assert interval([0, 0, 0, 4]) == (1.0, 0.0, 3.0)
    # of 3 draws from {0, 0, 3}: P(3) = 1/27 > 2.5 %
    assert interval([3, 0, 0]) == (1.0, 0.0, 3.0)
    mean, low, high = interval([0.7])
    assert mean == 0.7 and math.isnan(low) and math.isnan(high)
    with pytest.raises(ValueError, match="no values"):
        interval([])


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1, 2, 3], 2 / 8),  # only +++ and --- reach |6|
        ([1, 2, -3], 1.0),  # the observed sum is 0
        ([2, 2, -1], 4 / 8),  # |sum| >= 3: ++-, ++ +, and their mirrors
        ([0.1, 0.2, 0.3, 0.1, 0.2], 2 / 32),
        ([0, 0, 0], 1.0),
        ([0.5], 1.0),
    ],
)
def test_sign_flips_golden(differences: list[float], p: float) -> None:
    assert sign_flip_p(differences) == p


def test_paired_uses_common_seeds_only() -> None:
    comparison = paired({0: 1.0, 1: 0.5, 2: 9.0}, {0: 0.5, 1: 0.0, 3: 7.0})
    assert comparison is not None
    assert comparison.difference == (0.5, 0.5, 0.5)
    assert (comparison.p, comparison.seeds) == (0.5, 2)
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_reached_is_a_median_with_never_as_infinity() -> None:
    assert reached([100, math.inf, 300]) == 300
    assert reached([100, math.inf]) == math.inf
    assert math.isnan(reached([]))
    curve = [{"episodes": 10, "v": ""}, {"episodes": 20, "v": "0.49"}, {"episodes": 30, "v": "0.5"}]
    assert episodes_to_level(curve, "v") == 30
    assert episodes_to_level(curve[:2], "v") == ""


# -- tables, checks, readme, pictures ---------------------------------------------------------------


def test_table_text() -> None:
    results = {"a": result([0.9, 0.9, 0.9], [100, 300, math.inf]), "b": result([0.4, 0.5])}
    assert table(setting(), results).splitlines() == [
        "| arm | seeds | test/success | 95 % | minus a | 95 % | p | episodes | tokens | CPU-s | episodes to 50 % |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
        "| b | 2/3 | 0.450 | 0.400 to 0.500 | -0.450 | -0.500 to -0.400 | 0.500 | 1000 | 50000 | 12 | never (0/2) |",
        "| **a** | 3/3 | 0.900 | 0.900 to 0.900 | - | - | - | 1000 | 50000 | 12 | 300 (2/3) |",
        "| c | 0/2 | - | - | - | - | - | - | - | - | - |",
    ]


def test_results_are_kept_apart(root: Path, call: Callable[..., int]) -> None:
    call()
    claims, rows = load("demo", root), read(root / "benchmarks/claims/results/demo.csv")
    results = results_of(claims, claims.settings["small"], rows)
    assert results["ours"].values == pytest.approx({0: 0.9, 1: 0.89})
    assert results["theirs"].to_level == [math.inf, math.inf]
    assert not results_of(claims, setting(core=("ours",)), rows)


@pytest.mark.parametrize(
    ("conditions", "word"),
    [
        ([Bound("a", ">=", 0.9)], "PASS"),
        ([Bound("a", "<=", 0.9)], "PASS"),
        ([Bound("a", ">=", 0.91)], "FAIL"),
        ([Bound("b", "<=", 0.44)], "FAIL"),
        ([Bound("c", "<=", 1.0)], "OPEN"),
        ([Above("a", "b", 0.45)], "PASS"),
        ([Above("a", "b", 0.46)], "FAIL"),
        ([Above("a", "b", None)], "PASS"),
        ([Above("b", "a", None)], "FAIL"),
        ([Above("a", "d", None)], "FAIL"),  # its interval holds 0
        ([Above("a", "c", 0.1)], "OPEN"),
        ([Slower("b", "a", 2.0)], "PASS"),  # never against 300
        ([Slower("a", "d", 3.0)], "PASS"),  # 300 against 100
        ([Slower("a", "d", 3.1)], "FAIL"),
        ([Slower("a", "b", 2.0)], "FAIL"),  # nothing is slower than never
        ([Bound("a", ">=", 1.0), Slower("a", "d", 3.0)], "PASS"),
        ([Bound("a", ">=", 1.0), Bound("b", ">=", 1.0)], "FAIL"),
        ([Bound("a", ">=", 1.0), Bound("c", ">=", 1.0)], "OPEN"),
    ],
)
def test_checks(conditions: list[Any], word: str) -> None:
    results = {
        "a": result([0.9, 0.9, 0.9], [100, 300, math.inf]),
        "b": result([0.4, 0.5]),
        "d": result([0.8, 1.0, 0.7], [100, 100, 100]),
    }
    text = verdict(Check("s", "so it is said", tuple(conditions)), {"s": setting()}, {"s": results})
    assert text.startswith(f"{word} s: so it is said: ")


def test_check_text_gives_the_numbers() -> None:
    check = Check("s", "", (Above("a", "b", 0.2), Slower("b", "a", 2.0)))
    results = {"a": result([0.9, 0.9], [100, 300]), "b": result([0.4, 0.5])}
    assert verdict(check, {"s": setting()}, {"s": results}) == (
        "PASS s: a above b by 0.2 (is +0.450 [0.400 to 0.500], 2 common seeds) "
        "or b needs 2 times the episodes of a to 50 % (never (0/2) against 200 (2/2))"
    )


def test_all_forms_of_checks_are_read(root: Path) -> None:
    forms = [
        {"arm": "ours", "above": "theirs", "by": 0.2},
        {"arm": "ours", "above": "theirs", "by": "interval"},
        {"arm": "theirs", "slower_than": "ours", "factor": 2},
    ]
    write_spec(root, changed("checks", [{"setting": "small", "claim": "x", "any": forms}]))
    (check,) = load("demo", root).checks
    expected = (Above("ours", "theirs", 0.2), Above("ours", "theirs", None), Slower("theirs", "ours", 2.0))
    assert check == Check("small", "x", expected)


def test_report_is_printed_written_and_injected_twice_the_same(
    root: Path, call: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    readme = root / "docs/README.md"
    readme.parent.mkdir()
    readme.write_text("before\n<!-- claims:demo -->\nold\n<!-- /claims:demo -->\nafter\n")
    write_spec(root, {**SPEC, "readme": "docs/README.md"})
    assert call() == 0
    printed, first = capsys.readouterr().out, readme.read_text()
    text = (root / "benchmarks/claims/results/demo.md").read_text()
    assert text.startswith("# A title\n\n**small** (`config.yaml`, 100 episodes for every arm)\n\n| arm |")
    assert "- PASS small: ours test/success >= 0.8 (is 0.895, 2 of 2 seeds)" in text
    assert "![learning curves of demo](demo.png)" in text and "- ours: the method" in text
    assert text.removeprefix("# A title\n\n") in printed
    assert first.startswith("before\n<!-- claims:demo -->\n\n**small**")
    assert first.endswith("<!-- /claims:demo -->\nafter\n") and "old" not in first
    assert "(../benchmarks/claims/results/demo.png)" in first
    assert call("--report-only") == 0
    assert readme.read_text() == first


@pytest.mark.parametrize("content", ["", "<!-- claims:n -->", "<!-- /claims:n --><!-- claims:n -->"])
def test_readme_without_markers(tmp_path: Path, content: str) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(content)
    with pytest.raises(SpecError, match=r"README\.md: needs the lines <!-- claims:n --> and"):
        inject(readme, "n", "text")
    assert readme.read_text() == content


def test_curves_are_drawn(root: Path, call: Callable[..., int]) -> None:
    write_spec(root, {**SPEC, "extra_curves": ["train/mean_k"]})
    claims = load("demo", root)
    assert not draw(claims, Records(root, "demo"))
    assert call() == 0
    picture = root / "benchmarks/claims/results/demo.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    one_row = len(picture.read_bytes())
    write_spec(root, SPEC)
    call("--report-only")
    assert len(picture.read_bytes()) < one_row


def test_curves_meet_on_one_grid() -> None:
    grid, values = on_one_grid(
        [(np.array([0.0, 10.0, 20.0]), np.array([0.0, 1.0, 1.0])), (np.array([5.0, 15.0]), np.array([0.2, 0.4]))]
    )
    assert grid.tolist() == [5.0, 10.0, 15.0]
    assert np.allclose(values, [[0.5, 1.0, 1.0], [0.2, 0.3, 0.4]])


def test_command_line_errors(root: Path, call: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--arms", "nobody") == 2
    assert "claims: --arms: demo runs no arm 'nobody'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        call("--seeds", "0")


def test_a_stage_may_go_on_from_a_checkpoint(root: Path, call: Callable[..., int]) -> None:
    """Its counters go on as well, so what it resumed is not counted twice; the stages' learning curves are kept if asked for."""
    spec = copy.deepcopy(SPEC)
    checkpoint = "{half}/../checkpoints/last.ckpt"
    spec["stages"] = {"half": {"config": "config.yaml"}}
    spec["stages"]["whole"] = {"config": "config.yaml", "overrides": {"ckpt_path": checkpoint}}
    spec["arms"] = {name: {"overrides": {"model.weights": f"{{{name}}}"}} for name in ("half", "whole")}
    setting = {"config": "config.yaml", "reference": "half", "core": ["half", "whole"], "seeds": 1, "fit": False}
    spec["settings"] = {"small": {**setting, "stage_curves": True}}
    spec["checks"] = []
    write_spec(root, spec)
    assert call() == 0
    rows = {row["arm"]: row for row in read(root / "benchmarks/claims/results/demo.csv")}
    assert [rows[arm]["episodes"] for arm in ("half", "whole")] == ["120", "120"]
    curve = [row for row in read(root / "benchmarks/claims/results/demo.curves.csv") if row["arm"] == "whole"]
    assert [row["episodes"] for row in curve] == ["40", "80", "120"] * 2  # the stand-in's counters do not go on
    given = next(given for verb, given in calls(root) if verb == "fit" and "ckpt_path" in given)
    assert (root / given["ckpt_path"]).parents[1].joinpath("metrics.csv").exists()


def test_means_over_a_learning_curve() -> None:
    curve = [
        {"train/mean_k": "3", "val/success": "0.5"},
        {"train/mean_k": "", "val/success": ""},
        {"train/mean_k": "1", "val/success": ""},
    ]
    assert curve_means(curve, ("train/mean_k", "val/success")) == {"mean_mean_k": 2.0}
    assert curve_means([{"train/mean_k": ""}], ("train/mean_k",)) == {}
