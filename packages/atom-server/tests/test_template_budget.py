"""What a chat template may use up: processor time and memory, whoever wrote it."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from atom_server.errors import APIError
from atom_server.prompts import template_sandbox
from atom_server.prompts.chat_template import ChatTemplate

USER = [{"role": "user", "content": "hi"}]
HUNDRED = "range(100)"


@pytest.fixture(autouse=True)
def tight_budget(monkeypatch):
    defaults = template_sandbox.RenderBudget.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "cpu_seconds", 0.2)
    monkeypatch.setitem(defaults, "max_characters", 2**20)


def render(source, **options):
    return ChatTemplate(source).render(USER, **options)


ENDLESS = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops with filters": "{% for a in range(99999) if not (range(99999) | sum) %}{% endfor %}",
    "macros that call themselves twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "a recursive loop": (
        "{% set ns = namespace(n=0) %}{% for a in [1, 2] recursive %}{% set ns.n = ns.n + 1 %}"
        "{% if loop.depth < 40 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}"
    ),
    "a loop in a set block": "{% set x %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    "{% endset %}",
}


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_a_template_that_does_not_end_is_ended(source):
    start = time.thread_time()
    with pytest.raises(APIError, match="processor time") as caught:
        render(source)
    assert (caught.value.status, caught.value.code) == (400, "chat_template_error")
    assert time.thread_time() - start < 1.5


TWICE = "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(100) %}{% set ns.x = PUT %}{% endfor %}"
LARGE = {
    "times": "{{ 'x' * 10 ** 9 }}",
    "times from the left": "{{ 10 ** 9 * [1] }}",
    "powers": "{{ 9 ** (9 ** 9) }}",
    "widths": "{{ '%900000000d' % 1 }}",
    "widths that are given": "{{ '%*d' % (900000000, 1) }}",
    "widths of methods": "{{ 'x'.ljust(900000000) }}",
    "widths of filters": "{{ 'x' | center(900000000) }}",
    "widths of formats": "{{ '%900000000d' | format(1) }}",
    "widths in braces": "{{ '{:900000000}'.format(1) }}",
    "widths in braces that are given": "{{ '{:{}}'.format(1, 900000000) }}",
    "replacing": "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
    "replacing nothing": "{{ ('x' * 99999) | replace('', 'y' * 99999) }}",
    "separators": "{{ range(99999) | list | join('y' * 99999) }}",
    "separators of methods": "{{ ('y' * 99999).join(['x'] * 99999) }}",
    "indents": "{{ ('x\n' * 99999) | indent(99999) }}",
    "joins": TWICE.replace("PUT", "ns.x ~ ns.x"),
    "joins inside of others": TWICE.replace("PUT", "('a' ~ ns.x ~ ns.x) if true else ''"),
    "joins in lists": TWICE.replace("PUT", "[ns.x ~ ns.x][0]"),
    "sums": TWICE.replace("PUT", "ns.x + ns.x"),
    "calls": TWICE.replace("PUT", "ns.x.replace('x', 'xx')"),
    "blocks": "{% set x = 'x' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
    "macros": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}" + TWICE.replace("PUT", "f(ns.x)"),
}


@pytest.mark.parametrize("source", LARGE.values(), ids=LARGE)
def test_a_template_that_makes_huge_texts_is_ended_before_it_has_them(source):
    tracemalloc.start()
    try:
        with pytest.raises(APIError, match="characters or items"):
            render(source)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_a_template_that_writes_nothing_ends_when_its_client_leaves():
    with pytest.raises(APIError) as caught:
        render(ENDLESS["loops in loops"], is_wanted=lambda: False)
    assert caught.value.status == 499


def test_loops_know_what_they_did():
    source = "{% for m in [1, 2, 3] %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ loop.nextitem }} {% endfor %}"
    assert render(source) == "1/3False2 2/3False3 3/3True "
    assert render("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% else %}none{% endfor %}") == "a1"
    assert render("{% for k in {} %}x{% else %}none{% endfor %}") == "none"
    assert render("{% for k in nothing %}x{% else %}none{% endfor %}") == "none"
    assert render("{% for c in 'abc' | reverse %}{{ c }}{% endfor %}") == "cba"
    assert render("{% set x = 'a' ~ 1 %}{{ x ~ [2] }}{{ 2 * 'ab' }}{{ 2 ** 5 }}{{ '%03d|%s' % (7, 'x') }}") == (
        "a1[2]abab32007|x"
    )


def test_filters_do_what_they_did():
    source = (
        "{{ 'x' | center(3) }}|{{ '%s-%d' | format('a', 2) }}|{{ 'a\nb' | indent(1) }}|{{ 'aba' | replace('a', 'c') }}"
    )
    assert render(source) == " x |a-2|a\n b|cbc"
    assert render("{{ [1, 2] | join(', ') }}{{ messages | join('', attribute='role') }}") == "1, 2user"
    assert render("{{ '{:>3}'.format(1) }}{{ '{0} {a}'.format(1, a=2) }}{{ ','.join(['a', 'b']) }}") == "  11 2a,b"


def test_no_template_can_get_at_its_budget():
    assert render("{{ self._context is defined }}{{ render_budget is defined }}") == "FalseFalse"


def test_an_ordinary_long_conversation_is_far_from_the_limits():
    messages = [{"role": "user", "content": "x" * 100}] * 2000
    source = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'].strip() }}{{ '\\n' }}{% endfor %}"
    assert len(ChatTemplate(source).render(messages)) == 2000 * 109
