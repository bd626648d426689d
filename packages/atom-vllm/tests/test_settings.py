"""What the environment switches on and off."""

from __future__ import annotations

import pytest

from atom_vllm import settings


@pytest.mark.parametrize(
    ("text", "expected"), [("", False), ("0", False), ("false", False), ("1", True), ("Yes", True)]
)
def test_a_switch_reads_the_usual_words(monkeypatch: pytest.MonkeyPatch, text: str, expected: bool) -> None:
    monkeypatch.setenv("ATOM_DISABLE_VLLM_PLUGIN", text)
    assert settings.is_disabled() is expected


def test_a_switch_refuses_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOM_DISABLE_VLLM_PLUGIN_ATTENTION", "maybe")
    with pytest.raises(ValueError, match="ATOM_DISABLE_VLLM_PLUGIN_ATTENTION is 'maybe'; it must be 1 or 0"):
        settings.is_attention_disabled()


def test_the_allow_list_is_everything_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATOM_VLLM_ARCHITECTURES", raising=False)
    assert settings.allowed_architectures() is None
    monkeypatch.setenv("ATOM_VLLM_ARCHITECTURES", "LlamaForCausalLM, Qwen3ForCausalLM,")
    assert settings.allowed_architectures() == {"LlamaForCausalLM", "Qwen3ForCausalLM"}
