"""What `kv_transfer_config` may say; what is wrong is named in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atom_core import EngineArgs, InvalidRequestError, SamplingParams
from atom_core.config import ConfigError
from atom_core.config.kv_transfer import check_travels, read_kv_transfer
from atom_core.engine.inputs.kv_transfer import check_kv_transfer
from atom_core.messages import KVTransferParams

GIVEN = {"kv_connector": "TcpConnector", "kv_role": "kv_producer"}


def extra(**fields: Any) -> dict[str, Any]:
    return {"kv_connector_extra_config": fields}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "has no kv_connector; give one of 'TcpConnector', 'NixlConnector'"),
        ({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}, "kv_connector 'LMCacheConnectorV1'; allowed"),
        ({"kv_connector": "TcpConnector"}, "has no kv_role"),
        (GIVEN | {"kv_role": "producer"}, "kv_role 'producer'; allowed"),
        (GIVEN | {"kv_rank": 0}, "unknown field `kv_rank`; it may have kv_connector"),
        (GIVEN | {"kv_port": "5"}, "Expected `int`"),
        (GIVEN | {"kv_port": 0}, "kv_port 0; it must be from 1 to 65535"),
        (GIVEN | {"kv_port": 65536}, "kv_port 65536"),
        (GIVEN | {"kv_ip": "0.0.0.0"}, "the one address of this host"),
        (GIVEN | {"kv_ip": "10.0.0.5"}, "the address 10.0.0.5, where other machines are met, and no secret_file"),
        (GIVEN | {"kv_buffer_size": 1023}, "kv_buffer_size 1023"),
        (GIVEN | {"kv_load_failure_policy": "fail"}, "kv_load_failure_policy 'fail'; allowed: 'recompute'"),
        (GIVEN | {"kv_role": "kv_both"}, "kv_role 'kv_both' without peers"),
        (GIVEN | extra(hold=5), "kv_connector_extra_config: Object contains unknown field `hold`; it may have peers"),
        (GIVEN | extra(peers=["10.0.0.5"]), "the peer '10.0.0.5'; peers are such as 10.0.0.5:14579"),
        (GIVEN | extra(peers=["h:70000"]), "the peer 'h:70000'"),
        (GIVEN | extra(peers=["10.0.0.5:14579"]), "the address 10.0.0.5"),
        (GIVEN | extra(timeout=0), "timeout 0; it is in seconds"),
        (GIVEN | extra(shared_memory="no"), "Expected `bool`, got `str` - at `$.shared_memory`"),
        (GIVEN | extra(hold_seconds=86401), "hold_seconds 86401"),
        (GIVEN | extra(secret_file="/no/such/file"), "secret_file '/no/such/file', which cannot be read"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], words: str):
    with pytest.raises(ConfigError) as error:
        EngineArgs(kv_transfer_config=given)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"enable_prefix_caching": False}, "enable_prefix_caching is off"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size is 2"),
    ],
)
def test_settings_that_do_not_go_with_it_are_named(settings: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        EngineArgs(kv_transfer_config=GIVEN, **settings)


def test_other_machines_are_met_with_a_secret_of_sixteen_bytes(tmp_path: Path):
    file = tmp_path / "secret"
    given = GIVEN | {"kv_ip": "10.0.0.5"} | extra(secret_file=str(file))
    file.write_text("0123456789abcde\n")
    with pytest.raises(ConfigError, match="with 15 bytes; give 16 at least"):
        read_kv_transfer(given)
    file.write_text("0123456789abcdef\n")
    config = read_kv_transfer(given)
    assert config is not None
    assert config.secret == b"0123456789abcdef"


def test_each_start_has_an_id_of_its_own_unless_one_is_given():
    one, other = read_kv_transfer(GIVEN), read_kv_transfer(GIVEN)
    assert one is not None
    assert other is not None
    assert one.engine_id != other.engine_id
    named = read_kv_transfer(GIVEN | {"engine_id": "mine"})
    assert named is not None
    assert named.engine_id == "mine"


def test_prompts_are_fetched_from_engines_that_are_named_and_from_no_others():
    consumer = read_kv_transfer(GIVEN | {"kv_role": "kv_consumer"} | extra(peers=["127.0.0.1:5", "::1:6"]))
    assert consumer is not None
    asked = [("127.0.0.1", 14579), ("127.0.0.1", 5), ("::1", 6), ("127.0.0.1", 6), ("127.0.0.2", 14579)]
    assert [consumer.may_fetch_from(*one) for one in asked] == [True, True, True, False, False]
    producer = read_kv_transfer(GIVEN)
    assert producer is not None
    assert not producer.may_fetch_from("127.0.0.1", 14579)


def test_models_that_keep_states_are_refused_by_name():
    check_travels("LlamaForCausalLM")
    with pytest.raises(ConfigError, match="Qwen3NextForCausalLM keeps states beside its blocks, which do not travel"):
        check_travels("Qwen3NextForCausalLM")


NAMED = KVTransferParams(
    do_remote_prefill=True, remote_engine_id="e", remote_request_id="r", remote_host="127.0.0.1", remote_port=1
)


@pytest.mark.parametrize(
    ("asked", "role", "num_prompts", "words"),
    [
        ({"do_remote_decode": True}, None, 1, "do_remote_decode is asked for, and this engine has no kv_transfer"),
        ({"do_remote_decode": True}, "kv_consumer", 1, "has the kv_role kv_consumer"),
        ({"do_remote_prefill": True}, "kv_producer", 1, "has the kv_role kv_producer"),
        ({"do_remote_prefill": True, "do_remote_decode": True}, "kv_both", 1, "exclude each other"),
        ({"do_remote_decode": True}, "kv_both", 2, "are of one prompt, and there are 2"),
        ({"do_remote_prefill": True}, "kv_both", 1, "remote_engine_id must be a text"),
    ],
)
def test_a_part_that_an_engine_does_not_have_is_refused(asked: dict[str, Any], role: Any, num_prompts: int, words: str):
    params = SamplingParams(kv_transfer_params=KVTransferParams(**asked))
    with pytest.raises(InvalidRequestError, match=words) as error:
        check_kv_transfer(params, role, num_prompts)
    assert error.value.param == "kv_transfer_params"


def test_a_part_that_it_has_and_no_part_at_all_are_taken():
    check_kv_transfer(SamplingParams(kv_transfer_params=NAMED), "kv_consumer", 1)
    check_kv_transfer(SamplingParams(kv_transfer_params=KVTransferParams(do_remote_decode=True)), "kv_producer", 1)
    check_kv_transfer(SamplingParams(kv_transfer_params=KVTransferParams(remote_port=5)), None, 3)
