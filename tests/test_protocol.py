"""Text in, tokens out, and back: what the policy reads is what its template would have rendered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from tests.chat import BRACKETS, CHATML, FORGETFUL, chat_tokenizer
from zoo.policy.words import word_tokenizer
from zoo.rollout.protocol import ChatProtocol, ChoiceProtocol, Protocol, WordProtocol

WORDS = ["go", "north", "south", "look", "a", "door", "is", "here"]
ADMISSIBLE: dict[str, Any] = {"admissible_actions": ["go north", "go south", "look"]}


def words(protocol: Protocol) -> PreTrainedTokenizerFast:
    return word_tokenizer([*protocol.words, *WORDS])


def chat_ids(
    tokenizer: PreTrainedTokenizerFast, protocol: ChatProtocol, observations: list[str], actions: list[str]
) -> list[int]:
    """A whole conversation as the loop puts it together."""
    first, *rest = observations
    ids = protocol.prompt(tokenizer, first, {})
    for action, observation in zip(actions, rest, strict=True):
        ids = ids + protocol.action(tokenizer, action, {}) + protocol.observation(tokenizer, observation, {})
    return ids


def conversation(protocol: ChatProtocol, observations: list[str], replies: list[str]) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": protocol.system}, {"role": "user", "content": observations[0]}]
    for reply, observation in zip(replies, observations[1:], strict=True):
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": observation}]
    return messages


# -- chat ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [CHATML, FORGETFUL, BRACKETS], ids=["chatml", "forgetful", "brackets"])
def test_pieces_add_up_to_the_rendered_conversation(template: str) -> None:
    tokenizer, protocol = chat_tokenizer(template), ChatProtocol()
    observations, actions = ["a door is here\n", "\n\nnorth", " south ", "end"], ["go north", "look", "go south"]
    replies = [f"<action>{action}</action>" for action in actions]
    rendered = tokenizer.apply_chat_template(
        conversation(protocol, observations, replies), tokenize=False, add_generation_prompt=True
    )
    assert chat_ids(tokenizer, protocol, observations, actions) == tokenizer.encode(rendered, add_special_tokens=False)


def test_a_template_that_forgets_reasoning_never_rewrites_what_was_read() -> None:
    tokenizer, protocol = chat_tokenizer(FORGETFUL), ChatProtocol()
    reply = "<think>the door</think><action>go north</action><|im_end|>"
    read = protocol.prompt(tokenizer, "a door", {}) + tokenizer.encode(reply, add_special_tokens=False)
    after = protocol.observation(tokenizer, "a wall", {})
    messages = conversation(protocol, ["a door", "a wall"], [reply.removesuffix("<|im_end|>")])
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert "the door" not in rendered  # this template would rewrite the past
    assert tokenizer.decode(read + after).count("<think>the door</think>") == 1
    assert tokenizer.decode(after) == "\n<|im_start|>user\na wall<|im_end|>\n<|im_start|>assistant\n"


def test_an_observation_may_hold_the_mark() -> None:
    tokenizer, protocol = chat_tokenizer(), ChatProtocol()
    text = f"left {protocol._mark} right"
    assert text in tokenizer.decode(protocol.observation(tokenizer, text, {}))


@pytest.mark.parametrize("template", [CHATML, BRACKETS], ids=["chatml", "brackets"])
def test_a_demonstrated_reply_ends_in_a_stop_sequence(template: str) -> None:
    tokenizer, protocol = chat_tokenizer(template), ChatProtocol()
    ids, stops = protocol.action(tokenizer, "look", {}), protocol.stop(tokenizer)
    assert any(ids[-len(stop) :] == stop for stop in stops)
    assert [tokenizer.eos_token_id] in stops
    assert all(stops)


def test_stop_is_the_templates_end_and_the_models() -> None:
    """Base models of the Qwen kind end documents, their templates end turns."""
    tokenizer = chat_tokenizer()
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    end, start = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert sorted(ChatProtocol().stop(tokenizer)) == sorted([[end], [start]])


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("<action>look</action>", "look"),
        ("<think>north?</think> <action> go north </action><|im_end|>", "go north"),
        ("<action>look</action> no, <action>go north</action>", "go north"),  # the last one counts
        ("I end with <action> and an action: <action>look</action>", "look"),
        ("<action>look</action> as asked </action>", "look"),
        ("<action>two\nlines</action>", "two\nlines"),
        ("<action></action>", None),
        ("<action>  </action>", None),
        ("<action>look", None),
        ("look</action>", None),
        ("look", None),
        ("", None),
    ],
)
def test_parsing_a_chat_reply(reply: str, action: str | None) -> None:
    assert ChatProtocol().parse(reply, {}) == action


@given(st.text(st.characters(blacklist_characters="<>", blacklist_categories=("Cs",)), min_size=1).map(str.strip))
def test_a_demonstrated_chat_reply_is_parsed_back(action: str) -> None:
    tokenizer, protocol = _TOKENIZER, ChatProtocol()
    reply = tokenizer.decode(protocol.action(tokenizer, action, {}))
    assert protocol.parse(reply, {}) == (action or None)


_TOKENIZER = chat_tokenizer()


def test_chat_guidance_is_in_the_prompt_with_notes_only() -> None:
    tokenizer, protocol = chat_tokenizer(), ChatProtocol()
    notes = protocol.guidance([(1, "go north"), (3, "look")])
    assert "1. go north\n3. look" in notes
    guided = tokenizer.decode(protocol.prompt(tokenizer, "a door", {}, notes))
    assert f"a door\n\n{notes}<|im_end|>" in guided
    plain = tokenizer.decode(protocol.prompt(tokenizer, "a door", {}))
    assert plain == guided.replace(f"\n\n{notes}", "")
    assert "plan" not in plain + tokenizer.decode(protocol.observation(tokenizer, "a door", {}))


def test_admissible_actions_are_listed_in_every_message_or_in_none() -> None:
    tokenizer = chat_tokenizer()
    for listed in (True, False):
        protocol = ChatProtocol(list_actions=listed)
        for ids in (
            protocol.prompt(tokenizer, "a door", ADMISSIBLE),
            protocol.observation(tokenizer, "a door", ADMISSIBLE),
        ):
            assert ("Admissible actions: go north, go south, look" in tokenizer.decode(ids)) == listed


def test_a_tokenizer_without_usable_template_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a tokenizer with a chat template"):
        ChatProtocol().prompt(chat_tokenizer(None), "a door", {})
    unmarked = "{% for message in messages %}{{ message.role + ': ' + message.content + '\n' }}{% endfor %}"
    with pytest.raises(ValueError, match="closes a reply with no special token"):
        ChatProtocol().stop(chat_tokenizer(unmarked))


# -- words --------------------------------------------------------------------------------------------------------------


def test_word_pieces() -> None:
    protocol = WordProtocol()
    tokenizer = words(protocol)
    ids = protocol.prompt(tokenizer, "a door is here", {}) + protocol.action(tokenizer, "go north", {})
    ids += protocol.observation(tokenizer, "look", {})
    assert tokenizer.decode(ids) == "a door is here go north <end> look"
    assert tokenizer.unk_token_id not in ids
    assert protocol.stop(tokenizer) == [[tokenizer.eos_token_id]]


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join))
def test_a_demonstrated_word_reply_is_parsed_back(action: str) -> None:
    ids = _WORD.action(_WORD_TOKENIZER, action, {})
    assert [ids[-1]] in _WORD.stop(_WORD_TOKENIZER)
    assert _WORD.parse(_WORD_TOKENIZER.decode(ids, skip_special_tokens=False), {}) == action


_WORD = WordProtocol()
_WORD_TOKENIZER = words(_WORD)


@pytest.mark.parametrize(
    ("reply", "action"), [("go north <end>", "go north"), ("<end>", None), ("", None), (" look <end> ", "look")]
)
def test_parsing_a_word_reply(reply: str, action: str | None) -> None:
    assert WordProtocol().parse(reply, {}) == action


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("look at door do go north <end>", "go north"),
        ("do go north <end>", "go north"),
        ("go do look do go north <end>", "go north"),  # the last one counts
        ("go north <end>", None),
        ("a door do <end>", None),
        ("undo north <end>", None),
    ],
)
def test_thoughts_stand_before_the_action(reply: str, action: str | None) -> None:
    assert WordProtocol(thoughts="free").parse(reply, {}) == action


def test_thoughts_shown_and_skipped() -> None:
    free, skipped = WordProtocol(thoughts="free"), WordProtocol(thoughts="skipped")
    tokenizer = words(free)
    assert words(skipped).get_vocab() == tokenizer.get_vocab()  # so that one policy can be asked both ways
    assert tokenizer.decode(free.action(tokenizer, "go north", {}, "a door")) == "a door do go north <end>"
    asked = skipped.prompt(tokenizer, "a door", {}) + skipped.action(tokenizer, "go north", {})
    assert tokenizer.decode(asked) == "a door do go north <end>"
    assert tokenizer.decode(skipped.observation(tokenizer, "a door", {})) == "a door do"
    assert skipped.parse("go north <end>", {}) == "go north"


def test_word_guidance_and_correction_are_in_the_vocabulary() -> None:
    protocol = WordProtocol()
    tokenizer = words(protocol)
    notes = protocol.guidance([(2, "go south"), (32, "look")])
    assert notes == "hint 2 go south 32 look"
    guided = protocol.prompt(tokenizer, "a door", {}, notes)
    assert tokenizer.decode(guided) == "hint 2 go south 32 look a door"  # the observation stands last
    assert tokenizer.unk_token_id not in guided + protocol.observation(tokenizer, protocol.correction, {})
    assert tokenizer.decode(protocol.prompt(tokenizer, "a door", {})) == "a door"


def test_word_guidance_beyond_its_numbers_is_refused() -> None:
    """A number outside the vocabulary would be read as unknown."""
    with pytest.raises(ValueError, match="32"):
        WordProtocol().guidance([(33, "look")])


def test_a_reply_has_room_for_a_token() -> None:
    for protocol in (WordProtocol, ChatProtocol):
        with pytest.raises(ValueError, match="max_new_tokens must be at least 1"):
            protocol(max_new_tokens=0)


# -- choices ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 30).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count - 1))))
def test_a_demonstrated_choice_is_parsed_back(case: tuple[int, int]) -> None:
    count, chosen = case
    info = {"admissible_actions": [f"go {number}" for number in range(count)]}
    ids = _CHOICE.action(_CHOICE_TOKENIZER, f"go {chosen}", info)
    assert len(ids) == 1
    assert ids in _CHOICE.stop(_CHOICE_TOKENIZER)
    assert _CHOICE.parse(_CHOICE_TOKENIZER.decode(ids), info) == f"go {chosen}"


_CHOICE = ChoiceProtocol()
_CHOICE_TOKENIZER = words(_CHOICE)


def test_choices_are_listed_before_the_observation() -> None:
    protocol = ChoiceProtocol(labels=3)
    tokenizer = words(protocol)
    shown = "go north [1] go south [2] look [3] a door"
    assert tokenizer.decode(protocol.prompt(tokenizer, "a door", ADMISSIBLE)) == shown
    assert tokenizer.decode(protocol.observation(tokenizer, "a door", ADMISSIBLE)) == shown
    guided = protocol.prompt(tokenizer, "a door", ADMISSIBLE, protocol.guidance([(1, "look")]))
    assert tokenizer.decode(guided) == f"hint 1 look {shown}"


@pytest.mark.parametrize(
    ("reply", "action"),
    [("[2]", "go south"), (" [3] ", "look"), ("[4]", None), ("look", None), ("", None), ("[0]", None)],
)
def test_parsing_a_choice(reply: str, action: str | None) -> None:
    assert ChoiceProtocol().parse(reply, ADMISSIBLE) == action


def test_choices_that_do_not_work_out_are_refused() -> None:
    protocol = ChoiceProtocol(labels=2)
    tokenizer = words(protocol)
    with pytest.raises(ValueError, match=r"3 admissible actions but 2 labels: raise protocol\.labels"):
        protocol.observation(tokenizer, "a door", ADMISSIBLE)
    with pytest.raises(ValueError, match="admissible_actions"):
        protocol.prompt(tokenizer, "a door", {})
    with pytest.raises(ValueError, match="not among the admissible"):
        protocol.action(tokenizer, "sing", ADMISSIBLE)
