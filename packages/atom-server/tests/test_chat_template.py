"""Chat templates as Hugging Face models write them."""

from __future__ import annotations

import pytest

from atom_server.errors import APIError
from atom_server.prompts.chat_template import ChatTemplate

USER = [{"role": "user", "content": "hi"}]


def render(source, messages=USER, special_tokens=None, variables=None, **options):
    return ChatTemplate(source, special_tokens).render(messages, variables, **options)


def test_blocks_leave_no_lines_behind():
    assert render("{% for m in messages %}\n  {% if 1 %}\n{{ m['content'] }}\n  {% endif %}\n{% endfor %}\n") == "hi\n"


def test_loops_can_break_and_continue():
    body = "{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}"
    assert render("{% for i in range(9) %}" + body + "{% endfor %}") == "02"


def test_tojson_keeps_characters_as_they_are():
    source = "{{ messages[0].content | tojson }} {{ {'b': 1, 'a': [1]} | tojson(indent=1) }}"
    assert render(source, [{"role": "user", "content": "<é'>"}]) == '"<é\'>" {\n "b": 1,\n "a": [\n  1\n ]\n}'


def test_special_tokens_and_variables_are_there():
    source = "{{ bos_token }}{% if add_generation_prompt %}A{% endif %}{% if enable_thinking %}T{% endif %}"
    assert render(source, special_tokens={"bos_token": "<s>"}, variables={"enable_thinking": True}) == "<s>AT"
    assert render(source, special_tokens={"bos_token": "<s>"}, add_generation_prompt=False) == "<s>"


def test_clients_cannot_replace_special_tokens():
    assert render("{{ eos_token }}", special_tokens={"eos_token": "</s>"}, variables={"eos_token": "forged"}) == "</s>"


def test_dates_can_be_written():
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10


def test_the_newer_name_of_the_system_role_reaches_older_templates():
    messages = [{"role": "developer", "content": "x"}]
    assert render("{{ messages[0].role }}", messages) == "system"
    assert render("{# knows developer #}{{ messages[0].role }}", messages) == "developer"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0]['content'] + 5 }}",
        "{{ messages[0].content.nothing.at_all }}",
        "{{ 1 // 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% include 'x' %}",
        "{{ range(10**9) | list }}",
    ],
)
def test_what_cannot_be_rendered_is_the_clients_error(source):
    with pytest.raises(APIError) as caught:
        render(source)
    assert caught.value.status == 400
    assert (caught.value.param, caught.value.code) == ("messages", "chat_template_error")


def test_the_templates_own_complaint_is_passed_on():
    with pytest.raises(APIError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_a_template_that_does_not_parse_is_told_with_its_line():
    with pytest.raises(ValueError, match="line 2"):
        ChatTemplate("{{ 1 }}\n{% if %}")


CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize("final", ["One, two", "One, two ", " hi"])
def test_the_last_message_can_be_left_open(final):
    messages = [{"role": "user", "content": final.strip()}, {"role": "assistant", "content": final}]
    text = render(CHATML, messages, continue_final_message=True)
    assert text == f"<user>{final.strip()}</><assistant>{final.strip()}"


def test_a_last_message_that_the_template_keeps_is_kept_whole():
    messages = [{"role": "assistant", "content": " as it is "}]
    source = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    assert render(source, messages, continue_final_message=True) == "[ as it is "


@pytest.mark.parametrize("final", ["", "  ", "not shown"])
def test_a_last_message_that_is_not_there_cannot_be_continued(final):
    with pytest.raises(APIError) as caught:
        render("nothing", [{"role": "assistant", "content": final}], continue_final_message=True)
    assert (caught.value.status, caught.value.param) == (400, "messages")


NAMES = ["self", "context", "messages_", "source", "name", "loop", "caller", "kwargs", "args", "environment", "a b", ""]


@pytest.mark.parametrize("name", [*NAMES, "is_wanted", "most_characters", "variables", "template_variables"])
def test_a_variable_may_have_any_name_that_nothing_else_has(name):
    assert render("{{ messages[0].content }}", variables={name: 1}) == "hi"


@pytest.mark.parametrize("name", ["range", "namespace", "dict", "raise_exception", "strftime_now"])
def test_a_variable_cannot_take_the_place_of_a_function(name):
    with pytest.raises(APIError, match=f"^{name} cannot be set") as caught:
        render("{{ messages[0].content }}", variables={name: 1})
    assert (caught.value.status, caught.value.param) == (400, "chat_template_kwargs")


def test_a_prompt_that_grows_too_long_is_not_written_to_its_end():
    source = "{% for i in range(100) %}{{ messages[0].content }}{% endfor %}{{ raise_exception('went on') }}"
    with pytest.raises(APIError, match="more than 50 characters") as caught:
        render(source, most_characters=50)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


def test_rendering_ends_when_nobody_wants_it():
    asked = iter([True, True, False])
    with pytest.raises(APIError) as caught:
        render("{% for i in range(100) %}{{ i }}{% endfor %}", is_wanted=lambda: next(asked))
    assert caught.value.status == 499
