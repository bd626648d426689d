"""What vLLM's two entry points do, with as much of vLLM as they touch."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from stub_vllm import stub_vllm


def selector(**fields: Any) -> Any:
    """vLLM's ``AttentionSelectorConfig`` of a plain layer, but for `fields`."""
    import torch

    values = {
        "head_size": 64,
        "dtype": torch.float32,
        "kv_cache_dtype": "auto",
        "use_mla": False,
        "attn_type": "decoder",
    }
    return SimpleNamespace(**(values | fields))


def resolve(name: str) -> Any:
    """As vLLM resolves what a platform plugin gives it."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def register() -> Any:
    return importlib.import_module("atom_vllm.register")


def test_the_platform_is_vllms_own_but_for_attention() -> None:
    with stub_vllm() as stub:
        name = register().register_platform()
        assert name == register().register_platform() == "atom_vllm.platform.AtomCpuPlatform"  # vLLM asks twice
        ours, base = resolve(name), resolve(stub.base_name)
        assert issubclass(ours, base)
        assert ours._enum == "CpuPlatform"
        assert [member for member in vars(ours) if not member.startswith("__")] == ["get_attn_backend_cls"]
        chosen = ours.get_attn_backend_cls(None, attn_selector_config=selector(), num_heads=4)
        assert chosen == "atom_vllm.mixers.attention.AtomAttentionBackend"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"use_sparse": True}, "sparse attention is left to it"),
        ({"use_dcp": True}, "decode context parallelism is left to it"),
        ({"attn_type": "encoder_only"}, "attention of encoder_only is left to it"),
        ({"kv_cache_dtype": "nvfp4"}, "a cache of nvfp4 is left to it"),
        ({"head_size": 1000}, "heads of 1000 in float32 over a cache of float32 are left to it here"),
    ],
)
def test_what_our_attention_lacks_is_vllms_with_a_reason_in_the_log(
    fields: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with stub_vllm():
        ours = resolve(register().register_platform())
        assert ours.get_attn_backend_cls(None, attn_selector_config=selector(**fields)) == "stock.CpuPlatform.Dense"
    assert f"vLLM attends, because {reason}" in caplog.text


def test_ranks_that_share_a_context_attend_by_vllm_in_its_own_models(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with stub_vllm() as stub:
        ours = resolve(register().register_platform())
        stub.own.config = SimpleNamespace(parallel_config=SimpleNamespace(decode_context_parallel_size=2))
        assert ours.get_attn_backend_cls(None, attn_selector_config=selector()) == "stock.CpuPlatform.Dense"
    assert "vLLM attends, because decode context parallelism is left to it" in caplog.text


def test_a_backend_that_the_user_names_is_taken() -> None:
    with stub_vllm():
        ours = resolve(register().register_platform())
        named = SimpleNamespace(name="FLASH_ATTN")
        assert ours.get_attn_backend_cls(named, attn_selector_config=selector()) == "stock.CpuPlatform.Dense"


def test_where_vllm_refuses_latent_attention_the_message_says_whose_word_that_is() -> None:
    with stub_vllm():
        ours = resolve(register().register_platform())
        with pytest.raises(NotImplementedError, match=r"MLA is not supported on CPU\. That is vLLM's own word"):
            ours.get_attn_backend_cls(None, attn_selector_config=selector(use_mla=True))


def test_models_that_both_have_are_registered_by_name_as_often_as_vllm_likes() -> None:
    with stub_vllm() as stub:
        register().register_model()
        register().register_model()
        assert stub.registered == {
            "DeepseekV3ForCausalLM": "atom_vllm.models.model_wrapper:ATOMMoE_DeepseekV3ForCausalLM",
            "LlamaForCausalLM": "atom_vllm.models.model_wrapper:ATOM_LlamaForCausalLM",
        }


def test_only_allowed_architectures_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOM_VLLM_ARCHITECTURES", "LlamaForCausalLM")
    with stub_vllm() as stub:
        register().register_model()
        assert list(stub.registered) == ["LlamaForCausalLM"]


def test_a_misspelt_variable_is_warned_of(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("ATOM_VLLM_COMPIL", "0")
    with stub_vllm():
        register().register_model()
    assert (
        "ATOM does not read the environment variable 'ATOM_VLLM_COMPIL': did you mean ATOM_VLLM_COMPILE?" in caplog.text
    )


def test_nothing_is_done_where_the_plugin_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOM_DISABLE_VLLM_PLUGIN", "1")
    with stub_vllm() as stub:
        assert register().register_platform() is None
        register().register_model()
        assert stub.registered == {}


@pytest.mark.parametrize("version", ["0.25.1", "0.33.0", "1.0"])
def test_versions_that_nobody_has_tried_are_left_alone_unless_forced(
    version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with stub_vllm(version=version) as stub:
        assert register().register_platform() is None
        register().register_model()
        assert stub.registered == {}
        said = capsys.readouterr().err
        assert f"keeps out: vLLM {version} is outside of the supported range" in said
        assert "ATOM_VLLM_FORCE=1" in said
        monkeypatch.setenv("ATOM_VLLM_FORCE", "1")
        assert register().register_platform() == "atom_vllm.platform.AtomCpuPlatform"


@pytest.mark.parametrize("version", ["0.26.0", "0.27.1+cpu", "0.29.0rc1", "0.32.0"])
def test_versions_in_the_range_are_taken(version: str) -> None:
    with stub_vllm(version=version):
        assert register().register_platform() is not None


def test_a_platform_that_nobody_knows_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with stub_vllm(base="vllm.platforms.tpu.TpuPlatform"):
        assert register().register_platform() is None
    assert "it knows no platform over vllm.platforms.tpu.TpuPlatform" in capsys.readouterr().err


def test_an_error_that_vllm_swallows_stops_it_when_models_are_registered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with stub_vllm() as stub:
        monkeypatch.setitem(sys.modules, "vllm.platforms", None)
        with pytest.raises(ImportError):
            register().register_platform()
        assert "atom-vllm could not make its platform" in capsys.readouterr().err
        with pytest.raises(RuntimeError, match="mend that, or set ATOM_DISABLE_VLLM_PLUGIN=1"):
            register().register_model()
        assert stub.registered == {}


def test_vllms_platform_is_imported_before_vllm_swallows_what_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_vllm() as stub:
        monkeypatch.setitem(sys.modules, stub.base_name.rpartition(".")[0], None)
        with pytest.raises(ImportError):
            register().register_platform()
        with pytest.raises(RuntimeError, match=r"could not make its platform \(ModuleNotFoundError"):
            register().register_model()


@pytest.mark.parametrize(
    ("name", "way_out", "is_settled"),
    [
        ("other", "choose with VLLM_PLUGINS", True),
        ("atom", "cannot tell them apart: uninstall one", False),
    ],
)
def test_beside_another_platform_plugin_both_distributions_are_named(
    name: str, way_out: str, is_settled: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = SimpleNamespace(name=name, value="atom.plugin:register_platform", dist=SimpleNamespace(name="amd-atom"))
    with stub_vllm():
        from atom_vllm import others

        ours = [point for point in others.platform_plugins() if point.value.startswith("atom_vllm.")]
        monkeypatch.setattr(others, "platform_plugins", lambda: [*ours, theirs])
        assert register().register_platform() is not None
        said = capsys.readouterr().err
        assert "atom of atom-vllm" in said
        assert f"{name} of amd-atom" in said
        assert way_out in said
        monkeypatch.setenv("VLLM_PLUGINS", "atom,atom_model_registry")
        register().register_platform()
        assert (capsys.readouterr().err == "") is is_settled
