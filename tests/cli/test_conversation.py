"""A conversation within a context that is too short for it."""

from __future__ import annotations

import itertools

import pytest

from jaxllm.cli.conversation import Conversation
from jaxllm.errors import CapacityError
from jaxllm.tokenization import from_folder

TURN = ("q" * 10, "a" * 10)


@pytest.fixture
def tokenizer(folder):
    return from_folder(folder)


def length(tokenizer, messages):
    return len(tokenizer.apply_chat_template(messages))


def render(tokenizer, turns, question, system=None):
    messages = [{"role": "system", "content": system}] if system else []
    for asked, answered in turns:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return tokenizer.apply_chat_template([*messages, {"role": "user", "content": question}])


def test_a_prompt_holds_all_that_was_said(tokenizer):
    conversation = Conversation(tokenizer, 10_000, system="be brief")
    conversation.add("one", "two")
    prompt, forgotten = conversation.prompt("three")
    assert forgotten == 0
    assert prompt["prompt_token_ids"] == render(tokenizer, [("one", "two")], "three", "be brief")
    assert prompt["prompt"].startswith("<|im_start|>system\nbe brief<|im_end|>")


def test_each_prompt_begins_with_the_one_before(tokenizer):
    conversation = Conversation(tokenizer, 10_000)
    first = conversation.prompt("one")[0]["prompt_token_ids"]
    conversation.add("one", "two")
    second = conversation.prompt("three")[0]["prompt_token_ids"]
    assert second[:len(first)] == first


def test_the_oldest_turns_are_forgotten_when_no_room_for_an_answer_is_left(tokenizer):
    question = "next"
    with_turns = [len(render(tokenizer, [TURN] * count, question, "system")) for count in range(6)]
    context = 4 * (with_turns[5] // 3)  # five turns leave less than a quarter of it free
    conversation = Conversation(tokenizer, context, system="system")
    for _ in range(5):
        conversation.add(*TURN)
    assert with_turns[5] + context // 4 > context
    kept = max(count for count in range(6) if with_turns[count] <= context // 2)
    prompt, forgotten = conversation.prompt(question)
    assert 0 < forgotten == 5 - kept
    assert prompt["prompt_token_ids"] == render(tokenizer, [TURN] * kept, question, "system")
    assert len(conversation.turns) == kept


def test_half_of_the_context_is_free_after_forgetting_so_that_the_next_turn_forgets_nothing(tokenizer):
    conversation = Conversation(tokenizer, 400)
    forgotten = []
    for _ in range(30):
        forgotten.append(conversation.prompt("next")[1])
        conversation.add("next", "answer")
    assert sum(forgotten) > 0
    assert not any(before and after for before, after in itertools.pairwise(forgotten))


def test_room_is_what_an_answer_may_take_but_at_most_a_quarter(tokenizer):
    used = len(render(tokenizer, [TURN], "next"))
    for room, fits in ((5, used + 5), (None, 2 * used)):
        conversation = Conversation(tokenizer, fits, room=room)
        conversation.add(*TURN)
        assert conversation.prompt("next")[1] == 0
    tight = Conversation(tokenizer, used + 4, room=5)
    tight.add(*TURN)
    assert tight.prompt("next")[1] == 1


def test_a_message_that_does_not_fit_by_itself_is_refused_and_nothing_forgotten(tokenizer):
    conversation = Conversation(tokenizer, 100)
    conversation.add("one", "two")
    with pytest.raises(CapacityError, match=r"takes \d+ tokens, and max_model_len=100"):
        conversation.prompt("x" * 100)
    assert conversation.turns == [("one", "two")]
    assert conversation.prompt("three")[1] == 0


def test_a_long_message_may_use_the_room_for_its_answer_down_to_one_token(tokenizer):
    used = len(render(tokenizer, [], "x" * 50))
    assert Conversation(tokenizer, used + 1).prompt("x" * 50)[1] == 0
    with pytest.raises(CapacityError):
        Conversation(tokenizer, used).prompt("x" * 50)
