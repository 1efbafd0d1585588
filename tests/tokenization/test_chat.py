from __future__ import annotations

import datetime
from typing import Any

import pytest
from tokenization.toy_tokenizers import byte_level_tokenizer, sentencepiece_metadata

from jaxllm.errors import ParameterError
from jaxllm.tokenization import Tokenizer, from_gguf

_SIMPLE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_TRIMMING = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}[end]{% endfor %}"
_PARTS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}<{{ part.type }}>{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)
_ONLY_PARTS = "{% for m in messages %}{% for part in m['content'] %}<{{ part['text'] }}>{% endfor %}{% endfor %}"
_HELLO = [{"role": "user", "content": "Hello"}]


def _tokenizer(template: str | dict[str, str] | None) -> Tokenizer:
    return Tokenizer(byte_level_tokenizer(["a"]).backend, special_tokens={"bos_token": "<s>"}, chat_template=template)


def _render(template: str | dict[str, str] | None, messages: Any, **options: Any) -> str:
    return _tokenizer(template).apply_chat_template(messages, tokenize=False, **options)


def test_messages_become_a_prompt_that_opens_the_answer() -> None:
    assert _render(_SIMPLE, _HELLO) == "<|user|>Hello<|end|><|assistant|>"
    assert _render(_SIMPLE, _HELLO, add_generation_prompt=False) == "<|user|>Hello<|end|>"


def test_blocks_leave_no_whitespace_and_loops_can_break() -> None:
    template = "{% for m in messages %}\n  {% if loop.index > 1 %}{% break %}{% endif %}\n{{ m.content }}\n{% endfor %}"
    assert _render(template, _HELLO * 3) == "Hello\n"


def test_templates_see_the_tools_variables_and_special_tokens_they_are_written_for() -> None:
    template = "{{ bos_token }}{{ tools | tojson }}{{ mood }}{{ messages[0] | tojson(indent=1) }}"
    rendered = _render(template, [{"role": "user", "content": "é <b>"}], tools=[{"name": "f"}], mood="glad")
    assert rendered == '<s>[{"name": "f"}]glad{\n "role": "user",\n "content": "é <b>"\n}'


def test_strftime_now_is_today() -> None:
    days = {datetime.date.today()}
    rendered = _render("{{ strftime_now('%Y-%m-%d') }}", _HELLO)
    days.add(datetime.date.today())
    assert datetime.date.fromisoformat(rendered) in days


def test_the_generation_tag_renders_its_body() -> None:
    template = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}!{% endfor %}"
    assert _render(template, _HELLO) == "Hello!"


def test_a_template_cannot_reach_into_python() -> None:
    with pytest.raises(ParameterError, match="messages"):
        _render("{{ messages.__class__.__mro__[1].__subclasses__() }}", _HELLO)
    with pytest.raises(ParameterError, match="messages"):
        _render("{{ messages.append(1) }}", _HELLO)


def test_what_a_template_refuses_is_an_error_naming_messages() -> None:
    with pytest.raises(ParameterError, match=r"messages=.*roles must alternate") as caught:
        _render("{{ raise_exception('roles must alternate') }}", _HELLO)
    assert caught.value.parameter == "messages"
    with pytest.raises(ParameterError, match="messages"):
        _render("{{ messages[0].content + 1 }}", _HELLO)


def test_a_template_that_is_not_jinja_is_an_error() -> None:
    with pytest.raises(ParameterError, match=r"chat_template.*line 1"):
        _render("{% for %}", _HELLO)


def test_a_model_without_a_template_says_so() -> None:
    with pytest.raises(ParameterError, match=r"chat_template.*no chat template"):
        _render(None, _HELLO)
    assert _render(None, _HELLO, chat_template=_SIMPLE) == _render(_SIMPLE, _HELLO)


def test_the_tool_use_template_is_taken_when_there_are_tools() -> None:
    templates = {"default": "plain", "tool_use": "tools{{ tools and '' }}", "rag": "rag"}
    assert _render(templates, _HELLO) == "plain"
    assert _render(templates, _HELLO, tools=[{"name": "f"}]) == "tools"
    assert _render(templates, _HELLO, chat_template="rag") == "rag"
    with pytest.raises(ParameterError, match=r"chat_template.*rag"):
        _render({"rag": "rag"}, _HELLO)
    with pytest.raises(ParameterError, match=r"chat_template='tools'.*rag"):
        _render(templates, _HELLO, chat_template="tools")


@pytest.mark.parametrize("content", ["The answer", "The answer ", "The  answer\n"])
def test_the_final_message_stays_open(content: str) -> None:
    messages = [*_HELLO, {"role": "assistant", "content": content}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    assert _render(_SIMPLE, messages, **options) == "<|user|>Hello<|end|><|assistant|>" + content
    assert _render(_TRIMMING, messages, **options) == "[user]Hello[end][assistant]" + content.rstrip()
    parts = [*_HELLO, {"role": "assistant", "content": [{"type": "text", "text": content}]}]
    assert _render(_PARTS, parts, **options) == "Hello<text>" + content
    assert messages[-1]["content"] == content


def test_a_final_message_cannot_be_both_continued_and_followed() -> None:
    with pytest.raises(ParameterError, match=r"continue_final_message.*add_generation_prompt"):
        _render(_SIMPLE, _HELLO, continue_final_message=True)


@pytest.mark.parametrize("template", ["no messages", "{{ messages[0].content }}"])
def test_a_final_message_that_is_not_shown_cannot_be_continued(template: str) -> None:
    messages = [*_HELLO, {"role": "assistant", "content": "x"}]
    with pytest.raises(ParameterError, match="continue_final_message"):
        _render(template, messages, continue_final_message=True, add_generation_prompt=False)


def test_text_parts_reach_templates_in_the_form_they_expect() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
    assert _render(_SIMPLE, parts, add_generation_prompt=False) == "<|user|>one\ntwo<|end|>"
    assert _render(_PARTS, parts) == "<text>one<text>two"
    assert _render(_ONLY_PARTS, parts) == "<one><two>"
    assert _render(_ONLY_PARTS, _HELLO) == "<Hello>"
    assert _render(_PARTS, _HELLO) == "Hello"


def test_an_assistant_message_may_hold_tool_calls_alone() -> None:
    messages = [*_HELLO, {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}]
    template = "{% for m in messages %}{{ m.content is defined }} {{ m.tool_calls | length }};{% endfor %}"
    assert _render(template, messages) == "True 0;False 1;"


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([], "messages"),
        ("Hello", "messages"),
        ({"role": "user", "content": "x"}, "messages"),
        (["Hello"], r"messages\[0\]"),
        ([*_HELLO, {"content": "x"}], r"messages\[1\]\['role'\]"),
        ([{"role": "user"}], r"messages\[0\]\['content'\]"),
        ([{"role": "user", "content": 3}], r"messages\[0\]\['content'\]"),
        ([{"role": "user", "content": [{"type": "image", "url": "x"}]}], r"messages\[0\]\['content'\]"),
    ],
)
def test_malformed_messages_are_named(messages: Any, named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        _render(_SIMPLE, messages)


def test_tools_that_the_template_would_drop_are_refused() -> None:
    with pytest.raises(ParameterError, match="shows no tools") as caught:
        _render(_SIMPLE, _HELLO, tools=[{"name": "f"}])
    assert caught.value.parameter == "tools"
    assert _render(_SIMPLE, _HELLO, tools=[]) == _render(_SIMPLE, _HELLO)


@pytest.mark.parametrize("tools", [{"name": "f"}, "f", [print]])
def test_tools_that_are_no_schemas_are_refused(tools: Any) -> None:
    with pytest.raises(ParameterError, match="tools"):
        _render(_SIMPLE, _HELLO, tools=tools)


@pytest.mark.parametrize("template", [_SIMPLE, "{{ bos_token }}" + _SIMPLE])
def test_a_chat_prompt_has_exactly_one_bos(template: str) -> None:
    """Case 23: whether the template writes BOS or the tokenizer adds it; the text passed to encode gives the same."""
    tokenizer = from_gguf(sentencepiece_metadata(["\u2581", "a"], **{"tokenizer.chat_template": template}))
    ids = tokenizer.apply_chat_template(_HELLO)
    assert ids[0] == 1
    assert ids.count(1) == 1
    assert tokenizer.encode(tokenizer.apply_chat_template(_HELLO, tokenize=False)) == ids


def test_smollm2_adds_its_system_message(smollm2: Tokenizer) -> None:
    text = smollm2.apply_chat_template(_HELLO, tokenize=False)
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert smollm2.apply_chat_template(_HELLO) == smollm2.encode(text)
