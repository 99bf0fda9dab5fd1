"""The page of evaluated episodes: what stands in it, what it means, and what a log must hold."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from callbacks import TrajectoryLog
from callbacks.reports import describe, spelling
from datamodules import RolloutDataModule
from tests.chat import chat_tokenizer
from tests.conftest import ARCHITECTURE, small_data
from tests.recording import quiet_trainer
from zoo import ACTGuidePolicy, viewer
from zoo.agent import AgentModule
from zoo.cli import main
from zoo.echo.module import ECHOAgent
from zoo.errors import ConfigError
from zoo.policy import word_policy
from zoo.policy.words import word_tokenizer
from zoo.rollout.memory import SelectiveMemory
from zoo.rollout.protocol import WordProtocol
from zoo.rollout.trajectory import Boundary, Job, Record, Segment, Task, Trajectory, Turn

WORDS = [
    "task",
    "select",
    "choice",
    *(f"{kind}{turn}" for kind in ("action", "finding", "seen") for turn in range(7)),
]
TOKENIZER = word_tokenizer(WORDS)
EVIL = '<script>alert(\'"&")</script>'


class Page(HTMLParser):
    """What a browser makes of a page: its elements, its text, and the class of every word among the tokens."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.text, self.tokens = "", []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append((tag, dict(attrs).get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if ("pre", "tokens") in self.open:
            self.tokens += [(word, "" if self.open[-1][0] == "pre" else self.open[-1][1]) for word in data.split()]

    def of(self, kind: str) -> list[str]:
        return [word for word, drawn in self.tokens if drawn == kind]


def words(text: str) -> list[int]:
    return list(TOKENIZER(text)["input_ids"])


def example(success: bool = True) -> Trajectory:
    """The worked example of ECHO: turns 0 1 2, then 3 4, then 5 6; the last reconstruction keeps 1 and 4."""
    segments = []
    for turns in ([0, 1, 2], [3, 4], [5, 6]):
        segment = Segment.begin(words("task"))
        for turn in turns:
            if turn:
                segment.write(words(f"finding{turn - 1}"), [-1.0], {"source": [0], "finding": [turn]})
            segment.write(words(f"action{turn}"), [-1.0], {"source": [turn + 1]})
            segment.read(words(f"seen{turn}"))
        if turns[-1] != 6:
            segment.read(words("select"))
            segment.write(words("choice"), [-1.0], {"selection": [1]})
        segments.append(segment)
    records = [Record(turn, f"action{turn}", f"finding{turn}") for turn in range(4)]
    boundaries = [
        Boundary(0, 2, records[:2], chosen=[1], kept=[1], text="choice t1"),
        Boundary(1, 4, records, chosen=[1], kept=[1], text="choice t1"),
    ]
    turns_played = [Turn(f"before{turn}", f"reply{turn}", f"action{turn}") for turn in range(7)]
    info = {"success": success}
    return Trajectory(Job(Task(17, "test")), segments, float(success), "answered", turns_played, info, boundaries)


def agent(kind: type[AgentModule] = ECHOAgent, **settings: Any) -> AgentModule:
    module = kind(architecture=dict(ARCHITECTURE), **settings)
    module.policy = word_policy(ARCHITECTURE, WORDS)
    return module


def drawn(trajectory: Trajectory, module: AgentModule) -> Page:
    return Page(viewer.render([describe(trajectory, module)]))


def episode(**changes: Any) -> dict[str, Any]:
    return {**describe(example(), agent()), **changes}


# -- credit -----------------------------------------------------------------------------------------------------------------


def test_colours_are_credit() -> None:
    page = drawn(example(), agent())
    final = ["finding4", "action5", "finding5", "action6"]
    assert page.of("pos") == ["action1", "finding1", "choice", "action4", "choice", *final]
    assert page.of("none") == ["action0", "finding0", "action2", "finding2", "action3", "finding3"]
    assert page.of("neg") == []
    assert page.of("") == [
        *("task", "seen0", "seen1", "seen2", "select", "task", "seen3", "seen4", "select", "task", "seen5", "seen6")
    ]


def test_failures_are_red_where_the_method_punishes_them() -> None:
    good = drawn(example(), agent()).of("pos")
    assert drawn(example(False), agent(sign="signed")).of("neg") == good
    positive = drawn(example(False), agent())
    assert (positive.of("neg"), positive.of("pos")) == ([], [])
    assert len(positive.of("none")) == len(positive.of("pos")) + 15
    dense = drawn(example(False), agent(AgentModule))
    assert len(dense.of("neg")) == 15
    overlong = example(False)
    overlong.finish = "overlong"
    assert drawn(overlong, agent(sign="signed")).of("neg") == []  # neither counts nor teaches


def test_magnitude_is_intensity() -> None:
    segment = {"tokens": ["a ", "b ", "c ", "d"], "written": [1] * 4, "credit": [0.25, 0.25, -4, 1]}
    spans = [dict(attrs) for tag, attrs in Page(viewer.render([episode(segments=[segment])])).elements if tag == "span"]
    tokens = [(span["class"], span["style"], span["title"]) for span in spans if "title" in span]
    assert tokens == [
        ("pos", "--w:0.25", "credit +0.25"),
        ("neg", "--w:1", "credit -4"),
        ("pos", "--w:1", "credit +1"),
    ]


def test_a_trajectory_is_described_without_being_changed() -> None:
    trajectory = example()
    trajectory.segments[0].plain_prompt = words("task task")
    segments = trajectory.segments
    described = describe(trajectory, agent(ACTGuidePolicy))
    assert trajectory.segments is segments
    assert "".join(described["segments"][0]["tokens"]).startswith(" task task action0")  # the row that is learnt
    trajectory.reward = None  # its world failed: no lesson
    assert not any(credit for segment in describe(trajectory, agent())["segments"] for credit in segment["credit"])


@pytest.mark.parametrize(
    ("tokenizer", "text"), [(TOKENIZER, " task seen0 action0"), (chat_tokenizer(), "go north\n  the lock <|im_end|>é")]
)
def test_spelled_tokens_make_the_text(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text)["input_ids"]
    spelled = [spelling(tokenizer, token) for token in ids]
    assert "".join(spelled).replace("\N{REPLACEMENT CHARACTER}" * 2, "é") == text


# -- the page ---------------------------------------------------------------------------------------------------------------


def test_memory_at_a_boundary() -> None:
    trajectory = example()
    trajectory.boundaries[1].kept = [1, 3]
    rows = drawn(trajectory, agent()).text.split("Boundary after turn 4")[1]
    assert "turns kept in view: 1, 3, 4" in rows
    assert "0action0finding0dropped1action1finding1kept: chosen by the policy2action2finding2dropped" in rows
    assert "3action3finding3kept automatically" in rows
    assert "The policy wrotechoice t1" in rows
    assert "unreadable" not in rows
    trajectory.boundaries[1].text, trajectory.boundaries[1].valid = "t1 t2", False
    assert "The policy wrote unreadablet1 t2" in drawn(trajectory, agent()).text


def test_nobody_was_asked() -> None:
    trajectory = example()
    trajectory.boundaries[1].text = ""
    rows = drawn(trajectory, agent()).text.split("Boundary after turn 4")[1]
    assert "kept: chosen by rule" in rows
    assert "The policy wrote" not in rows


def test_index_and_turns() -> None:
    trajectory = example(False)
    trajectory.turns[3].action = None
    described = describe(trajectory, agent())
    page = Page(viewer.render([described, described], "log.jsonl"))
    links = [attrs["href"] for tag, attrs in page.elements if tag == "a"]
    ids = [attrs["id"] for tag, attrs in page.elements if "id" in attrs]
    assert {link.removeprefix("#") for link in links} == set(ids) == {"top", "episode-1", "episode-2"}
    assert "2 episodes, 0 solved" in page.text
    assert "test 17failurereward 0answered7 turns3 contexts" in page.text
    assert "Context 2 of 3 2 turns · 9 tokens, 5 written, 0 with credit" in page.text
    assert "2before2reply2action2" in page.text
    assert "3before3reply3unreadable" in page.text
    dropped = viewer.card({**described, "reward": None})
    assert "dropped" in dropped
    assert "no reward" in dropped


def test_what_others_wrote_is_only_text() -> None:
    described = json.loads(json.dumps(episode(finish=EVIL, info={EVIL: EVIL}, behaviour={EVIL: EVIL})))
    described["task"] = {"seed": 1, "split": EVIL, "options": {EVIL: EVIL}}
    described["turns"] = [{"observation": EVIL, "reply": EVIL, "action": EVIL}]
    described["segments"][0]["tokens"][:3] = [EVIL] * 3
    described["boundaries"][0] |= {"text": EVIL, "records": [{"turn": 0, "action": EVIL, "finding": EVIL}]}
    html = viewer.render([described], EVIL)
    assert "<script" not in html
    page = Page(html)
    shown = Page(viewer.render([episode()]))
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in shown.elements}
    assert page.text.count(EVIL) == 2 + 2 * 4 + 3 + 3 + 3  # title and heading; card; turn; tokens; boundary
    assert not any(name in attrs for _, attrs in page.elements for name in ("src", "onclick", "onload"))
    assert not any(word in html for word in ("http:", "https:", "@import", "url("))


# -- logs -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "no JSON, Expecting property name"),
        ("", "no JSON"),
        ("[]", "the episode is list, not dict"),
        ({"reward": None, "turns": None}, "turns is NoneType, not list"),
        ({"turns": [{"observation": "", "reply": ""}]}, "turns[0] has no 'action'"),
        ({"turns": [{"observation": "", "reply": "", "action": 5}]}, "turns[0].action is int, not str or null"),
        ({"segments": [{"tokens": ["a"], "written": [], "credit": []}]}, "segments[0] has lists of different lengths"),
        (
            {"segments": [{"tokens": [], "written": [], "credit": [], "source": [1.5]}]},
            "segments[0].source[0] is float",
        ),
    ],
)
def test_a_malformed_line_is_named(line: Any, reason: str, tmp_path: Path) -> None:
    log, good = tmp_path / "log.jsonl", json.dumps(episode())
    bad = line if isinstance(line, str) else json.dumps(episode(**line))
    log.write_text(f"{good}\n{good}\n{bad}\n")
    with pytest.raises(ConfigError) as refused:
        viewer.read(log)
    assert str(refused.value).startswith(f"{log}, line 3: {reason}")


def test_a_missing_key_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"task": {}}))
    with pytest.raises(ConfigError, match="line 1: task has no 'seed'"):
        viewer.read(log)
    log.write_bytes(b'"\xff"')
    with pytest.raises(ConfigError, match="line 1: 'utf-8' codec"):
        viewer.read(log)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl: No such file or directory"),
        (["."], ".: Is a directory"),
        (["empty.jsonl"], "empty.jsonl holds no episodes"),
        (["log.jsonl", "-o", "log.jsonl"], "log.jsonl is the log itself"),
        (["log.jsonl", "-o", "nowhere/log.html"], "nowhere/log.html: No such file or directory"),
        (["log.jsonl", "-o"], "usage: zoo view FILE [-o OUT]"),
        (["--help"], "usage: zoo view FILE [-o OUT]"),
        ([], "usage: zoo view FILE [-o OUT]"),
    ],
)
def test_what_cannot_be_viewed_is_one_line(
    args: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.jsonl").touch()
    Path("log.jsonl").write_text(json.dumps(episode()))
    with pytest.raises(SystemExit) as stop:
        main(["view", *args])
    assert stop.value.code == 2
    assert [line[: 5 + len(expected)] for line in capsys.readouterr().err.splitlines()] == [f"zoo: {expected}"]
    assert json.loads(Path("log.jsonl").read_text())


def test_the_command_needs_no_torch(tmp_path: Path) -> None:
    log, other = tmp_path / "log.jsonl", tmp_path / "page.htm"
    described = episode()
    described["turns"][0]["reply"] = "\ud800"  # no text, but JSON
    log.write_text(json.dumps(described) + "\n")
    code = (
        "import sys; from zoo.cli import main; main(sys.argv[1:]);"
        "assert not {'torch', 'lightning', 'transformers'} & sys.modules.keys()"
    )
    for more, page in (([], log.with_suffix(".html")), (["-o", str(other)], other)):
        command = [sys.executable, "-c", code, "view", str(log), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(page)
        assert "Episode 1" in page.read_text(encoding="utf-8")


# -- real episodes ----------------------------------------------------------------------------------------------------------


def test_episodes_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hunt = RolloutDataModule(
        environment="zoo/PageHunt-v0",
        environment_args={"pages": 3, "facts": [1, 1], "filler": 2},
        protocol=WordProtocol(6),
        context=SelectiveMemory(max_tokens=32, boundary_tokens=200, choose=1, recent=1, selection_tokens=8),
        max_turns=9,
        test_tasks=4,
    )
    lock = log_of(ACTGuidePolicy(weights="base.clue_lock"), small_data(test_tasks=4), tmp_path / "lock")
    # A random policy that is made to act: most words end a reply, which opens pages in order.
    turns = iter(range(10**6))
    monkeypatch.setattr(WordProtocol, "parse", lambda self, reply, info: f"p{next(turns) % 9}")
    monkeypatch.setattr(WordProtocol, "stop", lambda self, tokenizer: [[token] for token in range(20, len(tokenizer))])
    hunted = log_of(ECHOAgent(architecture=dict(ARCHITECTURE)), hunt, tmp_path / "hunt")
    assert all(len(shown["segments"]) == 1 for shown in lock)
    assert any(record["action"] for shown in hunted for end in shown["boundaries"] for record in end["records"])
    for episodes in (lock, hunted):
        page = Page(viewer.render(episodes))
        spelled = [token for shown in episodes for segment in shown["segments"] for token in segment["tokens"]]
        assert [word for word, _ in page.tokens] == "".join(spelled).split()
        assert page.text.count("Boundary after turn") == sum(len(shown["boundaries"]) for shown in episodes)


def log_of(module: AgentModule, data: RolloutDataModule, folder: Path) -> list[dict[str, Any]]:
    trainer = quiet_trainer(default_root_dir=folder, callbacks=[TrajectoryLog(3)])
    trainer.test(module, datamodule=data, verbose=False)
    episodes = viewer.read(folder / "trajectories.jsonl")
    assert len(episodes) == 3
    return episodes
