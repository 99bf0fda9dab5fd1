"""Language models as authors: stages, repair, feedback, and endpoints that fail."""

from __future__ import annotations

import builtins
import json
import logging
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.chat import chat_tokenizer
from tests.conftest import ARCHITECTURE
from zoo.errors import ConfigError
from zoo.policy.causal import CausalPolicy
from zoo.reskill import prompts
from zoo.reskill.diagnosis import MAX_ASSERTIONS, Assertion, Experience
from zoo.reskill.evolution import Decision, Evolution, Rules
from zoo.reskill.language import Chat, ChatError, LanguageAuthor, endpoint_chat, policy_author, policy_chat
from zoo.reskill.skills import Add, Bank, Bundle, Delete, Skill

STAGES = {
    prompts.CONTRAST: "contrast",
    prompts.DIAGNOSE: "diagnose",
    prompts.RECOMMEND: "recommend",
    prompts.WRITE: "write",
    prompts.CONTRAST_ALL: "contrast all",
    prompts.MERGED: "merged",
}
LOOK: dict[str, Any] = {"name": "look-inside", "when_to_use": "after opening", "action": "take what is inside"}
LOOK |= {"trigger": "action_pattern", "pattern": r"^open\b"}
RARE = LOOK | {"pattern": "^sing"}
INSIGHT = {
    "insight": "Open it, then take.",
    "failure_mode": "never opened",
    "success_pattern": "open",
    "triggers": ["^go"],
}
EDITS = {"add": [{"check": "action_exists", "pattern": "^take"}, {"check": "no such check"}], "remove": [1]}
OPERATION = {"op": "add", "target": "look-inside", "intent": "take at once", "evidence": "5 of 5", "insights": [2]}
SCRIPT: dict[str, Any] = {
    "contrast": INSIGHT,
    "diagnose": {
        "diagnosis": "Half of the episodes never open the box.",
        "groups": [{"label": "unopened", "insights": [1, 2], "representative": 2}],
        "assertions": EDITS,
    },
    "recommend": {"operations": [OPERATION]},
    "write": {"operations": [{"op": "add", "skill": LOOK | {"version": "3.0", "created_at": "today"}}]},
    "contrast all": {"insights": [INSIGHT]},
    "merged": {"diagnosis": "", "assertions": EDITS, "operations": [{"op": "add", "skill": LOOK}]},
}


class FakeChat:
    """Answers every stage with what its script says: data, a text, an error, or a list of such for one call after the other."""

    def __init__(self, **changes: Any) -> None:
        self.script = {stage: list(v) if isinstance(v, list) else v for stage, v in (SCRIPT | changes).items()}
        self.calls: list[tuple[str, str]] = []

    def __call__(self, system: str, user: str) -> str:
        self.calls.append((STAGES[system], user))
        answer = self.script[STAGES[system]]
        answer = answer.pop(0) if isinstance(answer, list) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, str) else json.dumps(answer)

    @property
    def stages(self) -> list[str]:
        return [stage for stage, _ in self.calls]

    def users(self, stage: str) -> list[str]:
        return [user for name, user in self.calls if name == stage]


def episode(task: int, success: bool, **changes: Any) -> Experience:
    actions = ("go to box 1", "open box 1", "take coin 1") if success else ("go to box 1", "open bag 1", None)
    fields: dict[str, Any] = {"condition": "old", "actions": actions, "observations": ("you see a box",) * 3}
    fields |= {"shown": ((), ("be-brief",), ("be-brief",)), "thoughts": ("far away", "x" * 500)}
    return Experience(task=f"find coin {task}", success=success, **{**fields, **changes})


@pytest.fixture
def evolution() -> Evolution:
    """Three tasks, each solved once and failed once; a bank of one skill."""
    evolution = Evolution(Bank((Skill("be-brief", "always", "say little"),)), Rules(min_reservoir=1))
    evolution.reservoir.add(episode(task, success) for task in range(3) for success in (True, False))
    evolution.assertions[:] = [Assertion("no_consecutive_repeat"), Assertion("action_exists", "^open")]
    return evolution


def propose(author: LanguageAuthor, evolution: Evolution) -> Bundle | None:
    return evolution.write(author, 1, random.Random(0))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_cycle_goes_through_the_stages_and_gives_a_checked_bundle(evolution: Evolution) -> None:
    chat = FakeChat()
    bundle = propose(LanguageAuthor(chat), evolution)
    assert bundle == (Add(Skill(**LOOK)),)  # version and date are not the model's to say
    assert chat.stages == ["contrast"] * 3 + ["diagnose", "recommend", "write"]
    assert evolution.assertions == [Assertion("action_exists", "^open"), Assertion("action_exists", "^take")]
    evolution.begin(bundle, 1)
    assert evolution.candidate is not None and len(evolution.candidate) == 2


def test_each_stage_is_told_what_it_needs(evolution: Evolution) -> None:
    step = Decision(1, 6, False, 0.25, 0.5, (Add(Skill("sing-first", "at once", "sing")), Delete("be-brief")))
    evolution.history.append(step)
    chat = FakeChat()
    propose(LanguageAuthor(chat), evolution)
    (contrast, *_), (diagnose,), (recommend,), (write,) = map(
        chat.users, ("contrast", "diagnose", "recommend", "write")
    )
    for part in (
        "find coin",
        "version old, solved, 3 actions",
        "2. open box 1",
        "(no action)",
        "skills shown: be-brief",
    ):
        assert part in contrast
    assert "x" * 397 + "..." in contrast and "x" * 398 not in contrast
    for part in ("3. [never opened] Open it, then take.", "holds in 100% of solved and 100% of failed episodes"):
        assert part in diagnose
    for part in (
        "Half of the episodes never",
        "unopened: 2 insights, such as 2. Open it",
        "rejected (new 0.25, old 0.50)",
    ):
        assert part in recommend
    assert "fires in 100% of episodes; there from the start" in recommend and "add sing-first" in recommend
    assert (
        "- open: followed by a turn in 100% of episodes, for example: open b" in recommend
        and "- take: followed by a turn in 0%" in recommend
    )
    assert (
        '"intent": "take at once"' in write
        and "2. Open it, then take. Solved by: open" in write
        and "3. Open" not in write
    )
    assert all("parsed actions" in system and "searched in one parsed action" in system for system in STAGES)


def test_merged_takes_two_calls(evolution: Evolution) -> None:
    chat = FakeChat()
    assert propose(LanguageAuthor(chat, merged=True), evolution) == (Add(Skill(**LOOK)),)
    assert chat.stages == ["contrast all", "merged"]
    assert all(f"find coin {task}" in chat.users("contrast all")[0] for task in range(3))
    assert evolution.assertions[-1] == Assertion("action_exists", "^take")


def test_no_more_tasks_than_asked_for(evolution: Evolution) -> None:
    chat = FakeChat(diagnose="?", recommend={"operations": [OPERATION | {"insights": [1]}]})
    assert propose(LanguageAuthor(chat, groups=1), evolution)
    assert chat.stages.count("contrast") == 1


def test_why_a_version_was_refused_reaches_the_next_attempt(evolution: Evolution) -> None:
    rare = {"operations": [{"op": "add", "skill": RARE}]}
    chat = FakeChat(write=[rare, {"operations": []}, SCRIPT["write"]])
    assert propose(LanguageAuthor(chat), evolution)
    first, second, third = chat.users("write")
    assert "refused" not in first
    assert "skill look-inside fires in 0% of 6 episodes; at least 50%" in second and "^sing" in second
    assert "a version has 1 to 3 operations, not 0" in third and "^sing" not in third


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "(" * 3000 + ")" * 3000])
def test_after_three_refused_attempts_there_is_no_version(
    evolution: Evolution, caplog: pytest.LogCaptureFixture, pattern: str
) -> None:
    chat = FakeChat(write={"operations": [{"op": "add", "skill": LOOK | {"pattern": pattern}}]})
    assert propose(LanguageAuthor(chat), evolution) is None
    assert chat.stages.count("write") == 3
    (line,) = warnings(caplog)
    assert "refused 3 times, at last because skill look-inside: " in line and len(line) < 400


def test_merged_has_one_attempt(evolution: Evolution, caplog: pytest.LogCaptureFixture) -> None:
    chat = FakeChat(merged=SCRIPT["merged"] | {"operations": [{"op": "delete", "name": "nobody"}]})
    assert propose(LanguageAuthor(chat, merged=True), evolution) is None
    assert chat.stages == ["contrast all", "merged"]
    assert "nobody" in warnings(caplog)[0] and len(warnings(caplog)) == 1


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("I would rather not.", "there is no JSON object"),
        (json.dumps(SCRIPT["write"])[:-2], "delimiter"),
        ('{"operations": {}}', "operations must be a list"),
        ('{"operations": ["\\ud800"]}', "surrogates"),
        ('{"a": ' * 2000, "recursion"),
    ],
)
def test_a_reply_is_repaired_once_and_told_what_was_wrong(evolution: Evolution, broken: str, told: str) -> None:
    chat = FakeChat(write=[broken, SCRIPT["write"]])
    assert propose(LanguageAuthor(chat), evolution)
    first, repair = chat.users("write")
    assert repair.startswith(first) and told in repair.removeprefix(first) and broken[:40] in repair
    chat = FakeChat(write=[broken, broken, SCRIPT["write"]])
    assert propose(LanguageAuthor(chat), evolution) is None
    assert chat.stages.count("write") == 2


@pytest.mark.parametrize(
    "wrapped",
    [
        "Here you are:\n```json\n{}\n```\nGood luck!",
        "<think>{}, or {{rather}} not</think>{}",
        "A set {{a, b}}; {} and {{}}",
    ],
)
def test_the_first_object_that_fits_is_taken(evolution: Evolution, wrapped: str) -> None:
    draft, final = json.dumps({"operations": []}), json.dumps(SCRIPT["write"])
    text = wrapped.format(draft, final) if wrapped.startswith("<think>") else wrapped.format(final)
    chat = FakeChat(write=text)
    assert propose(LanguageAuthor(chat), evolution)
    assert chat.stages.count("write") == 1


def test_unreadable_insights_are_made_by_rule(evolution: Evolution) -> None:
    chat = FakeChat(contrast="?")
    assert propose(LanguageAuthor(chat, workers=1), evolution)
    assert chat.stages.count("contrast") == 6
    assert "1 of 2 episodes solved it; more often there: take other after open" in chat.users("diagnose")[0]
    chat = FakeChat(**{"contrast all": "?"})
    assert propose(LanguageAuthor(chat, merged=True), evolution)
    assert chat.stages == ["contrast all", "contrast all", "merged"]
    assert "1 of 2 episodes solved it" in chat.users("merged")[0]
    assert prompts.by_rule([episode(0, False)]).failure_mode == "never solved"


def test_without_a_diagnosis_the_cycle_goes_on(evolution: Evolution) -> None:
    chat, before = FakeChat(diagnose="?"), list(evolution.assertions)
    assert propose(LanguageAuthor(chat), evolution)
    assert evolution.assertions == before
    assert "Groups" not in chat.users("recommend")[0] and "1. [never opened]" in chat.users("recommend")[0]


def test_a_reference_to_nothing_is_mended(evolution: Evolution) -> None:
    chat = FakeChat(recommend=[{"operations": [OPERATION | {"insights": [0]}]}, SCRIPT["recommend"]])
    assert propose(LanguageAuthor(chat), evolution)
    assert "insights must be numbers from 1 to 3" in chat.users("recommend")[1]


def test_at_most_fifteen_assertions_are_kept(evolution: Evolution) -> None:
    add = [{"check": "min_steps", "least": n} for n in range(40)] + [{"check": "min_steps", "on": "thoughts"}]
    chat = FakeChat(diagnose=SCRIPT["diagnose"] | {"assertions": {"add": add, "remove": [99]}})
    assert propose(LanguageAuthor(chat), evolution)
    assert len(evolution.assertions) == MAX_ASSERTIONS and evolution.assertions[-1].least == 39


@pytest.mark.parametrize("merged", [True, False])
def test_nonsense_is_one_line_and_no_version(
    evolution: Evolution, caplog: pytest.LogCaptureFixture, merged: bool
) -> None:
    chat = FakeChat(**dict.fromkeys(SCRIPT, "bla { bla"))
    assert propose(LanguageAuthor(chat, merged), evolution) is None
    assert len(warnings(caplog)) == 1
    staged = ["contrast"] * 6 + ["diagnose"] * 2 + ["recommend"] * 2
    assert chat.stages == (["contrast all"] * 2 + ["merged"] * 2 if merged else staged)


@pytest.mark.parametrize("stage", ["contrast", "diagnose", "recommend", "write"])
def test_a_dead_chat_is_not_called_again(evolution: Evolution, caplog: pytest.LogCaptureFixture, stage: str) -> None:
    chat = FakeChat(**{stage: ChatError("the line is dead")})
    assert propose(LanguageAuthor(chat, workers=1), evolution) is None
    assert chat.stages[-1] == stage and chat.stages.count(stage) == 1
    assert warnings(caplog) == ["the author proposes no version: the line is dead"]


def test_no_episodes_no_calls(caplog: pytest.LogCaptureFixture) -> None:
    chat = FakeChat()
    assert propose(LanguageAuthor(chat), Evolution(Bank(), Rules())) is None
    assert not chat.calls and len(warnings(caplog)) == 1
    with pytest.raises(ConfigError, match="groups"):
        LanguageAuthor(chat, groups=0)


def test_long_episodes_are_cut_in_the_middle() -> None:
    actions = tuple(f"go to {n}" for n in range(1, 41))
    text = prompts.episode_text(episode(0, True, actions=actions, thoughts=()))
    assert text.splitlines()[2:] == [
        *(f"{n}. go to {n}" for n in range(1, 6)),
        "(30 actions left out)",
        *(f"{n}. go to {n}" for n in range(36, 41)),
    ]
    assert "left out" not in prompts.episode_text(episode(0, True, actions=actions[:30]))
    crowd = [episode(0, True, actions=(f"go to {n}",)) for n in range(9)]
    assert "### Episode 2" not in prompts.task_text(crowd) and "go to 8" in prompts.task_text(crowd)


def test_a_skill_is_as_old_as_the_version_that_brought_it() -> None:
    bank = Bank((Skill(**LOOK),))
    history = [Decision(1, 5, True, 0.6, 0.5, (Add(Skill(**LOOK)),)), Decision(5, 9, False, 0.1, 0.5, (Delete("x"),))]
    assert "after ^open\\b; fires in 100% of episodes; unchanged for 1 versions" in prompts.bank_text(
        bank, [episode(0, True)], history
    )


class Server(ThreadingHTTPServer):
    """An OpenAI-compatible endpoint on this machine; ``answer`` makes status, content type and body of a request."""

    daemon_threads = True
    answer: Callable[[dict[str, Any]], tuple[int, str, str]]
    url: str
    requests: int

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The other side did not wait for the answer: nothing to be told."""


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Server) and self.path == "/v1/chat/completions"
        self.server.requests += 1
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, kind, body = self.server.answer(request)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    with Server(("127.0.0.1", 0), Handler) as server:
        server.url, server.requests = f"http://127.0.0.1:{server.server_port}/v1", 0
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def completion(content: Any) -> tuple[int, str, str]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
    whole = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    return 200, "application/json", json.dumps(whole)


def scripted(chat: Chat) -> Callable[[dict[str, Any]], tuple[int, str, str]]:
    return lambda request: completion(chat(*(message["content"] for message in request["messages"])))


def test_a_cycle_through_an_endpoint(server: Server, evolution: Evolution) -> None:
    seen: list[dict[str, Any]] = []
    answer = scripted(FakeChat())

    def remember(request: dict[str, Any]) -> tuple[int, str, str]:
        seen.append(request)
        return answer(request)

    server.answer = remember
    author = LanguageAuthor(endpoint_chat(server.url, "small", temperature=0.3, max_tokens=77))
    assert propose(author, evolution) == (Add(Skill(**LOOK)),)
    assert len(seen) == server.requests == 6
    assert {(one["model"], one["temperature"], one["max_tokens"]) for one in seen} == {("small", 0.3, 77)}


def test_an_endpoint_that_dies_costs_one_proposal(
    server: Server, evolution: Evolution, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer = scripted(FakeChat())
    author = LanguageAuthor(endpoint_chat(server.url, "small"))
    assert propose(author, evolution)
    server.shutdown()
    server.server_close()
    assert propose(author, evolution) is None
    (line,) = warnings(caplog)
    assert server.url in line and "APIConnectionError" in line and "\n" not in line


@pytest.mark.parametrize(
    ("answer", "told", "requests"),
    [
        ((500, "text/plain", "out of\nmemory"), "InternalServerError", 1),
        ((429, "application/json", '{"error": {"message": "slow down"}}'), "RateLimitError", 1),
        ((200, "text/html", "<html>welcome</html>"), "no chat completion but '<html>", 1),
        ((200, "application/json", "{nonsense"), "JSONDecodeError", 1),
        ((200, "application/json", '{"error": "overloaded"}'), "no chat completion", 1),
        ((200, "application/json", '{"choices": [{}]}'), "no chat completion", 1),
        (completion(None), "no JSON object", 10),
        (completion("I am a teapot."), "no JSON object", 10),
    ],
)
def test_bad_answers_cost_one_proposal(
    server: Server,
    evolution: Evolution,
    caplog: pytest.LogCaptureFixture,
    answer: tuple[int, str, str],
    told: str,
    requests: int,
) -> None:
    server.answer = lambda _: answer
    assert propose(LanguageAuthor(endpoint_chat(server.url, "small"), workers=1), evolution) is None
    (line,) = warnings(caplog)
    assert told in line and "\n" not in line
    assert server.requests == requests


def test_a_hanging_endpoint_costs_one_proposal(
    server: Server, evolution: Evolution, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()
    server.answer = lambda _: (over.wait(20), (503, "text/plain", ""))[1]
    author = LanguageAuthor(endpoint_chat(server.url, "small", timeout=0.5), workers=2)
    assert propose(author, evolution) is None
    (line,) = warnings(caplog)
    assert server.requests <= 2 and "APITimeoutError" in line
    over.set()


def test_a_key_is_needed_elsewhere_and_the_client_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="set NO_SUCH_KEY"):
        endpoint_chat("https://models.invalid/v1", "large", api_key_env="NO_SUCH_KEY")
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "openai":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"agentic-zoo\[author\]"):
        endpoint_chat("http://localhost:1/v1", "small")


# -- the policy as its own author ----------------------------------------------------------------------------------------


def own(positions: int = 512) -> CausalPolicy:
    """A random network that talks by a chat template."""
    tokenizer = chat_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(**{**ARCHITECTURE, "vocab_size": len(tokenizer), "max_position_embeddings": positions})
    return CausalPolicy(LlamaForCausalLM(config), tokenizer)


def test_the_policy_answers_by_its_template_and_the_same_again() -> None:
    policy = own()
    chat = policy_chat(policy, max_new_tokens=20)
    policy.train()
    answer = chat("be brief", "what now?")
    assert answer and answer == chat("be brief", "what now?") != chat("be brief", "and now?")
    assert policy.training and "<|im_end|>" not in answer


def test_a_prompt_that_the_policy_cannot_hold_is_no_reply() -> None:
    with pytest.raises(ChatError, match=r"a prompt of \d+ tokens and a reply of 512 are more than the policy's 512"):
        policy_chat(own())("", "look")


def test_what_an_untrained_policy_says_costs_one_proposal(
    evolution: Evolution, caplog: pytest.LogCaptureFixture
) -> None:
    assert propose(policy_author(own(8192), max_new_tokens=16), evolution) is None
    (line,) = warnings(caplog)
    assert "proposes no version" in line
