"""Blocks that left the cache of a real engine come back from memory and from a disk: no token changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atom_core import LLMEngine, SamplingParams
from atom_core.config import ConfigError, EngineArgs
from atom_core.messages import OffloadStats

MakeEngine = Callable[..., LLMEngine]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
# Twelve blocks of 16 tokens: a prompt of 100 takes seven of them.
SETTINGS: dict[str, Any] = {"num_kv_blocks": 12, "max_model_len": 160, "max_num_batched_tokens": 64}
FAMILIES = {
    "windows": ("gemma3", {}),
    "latents": ("deepseek_v3", {}),
    "latents and index keys": ("deepseek_v32", {}),
    "float8 with scales": ("llama", {"kv_cache_dtype": "fp8_per_token_head"}),
}


def draw_tokens(seed: int, num_tokens: int = 100) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(5, 200) for _ in range(num_tokens)]


FIRST = draw_tokens(1)


def run(engine: LLMEngine, token_ids: list[int]) -> tuple[list[int], int]:
    """The output of one prompt, and how many of its tokens were found."""
    (output,) = engine.generate([token_ids], GREEDY)
    return output["token_ids"], output["num_cached_tokens"]


def talk(engine: LLMEngine) -> list[tuple[list[int], int]]:
    """Two turns of a conversation with others between them that take the whole cache."""
    answer, _ = run(engine, FIRST)
    others = [run(engine, draw_tokens(seed, 140)) for seed in (2, 3)]
    return [*others, run(engine, [*FIRST, *answer, 7, 8, 9])]


def offload_of(engine: LLMEngine) -> OffloadStats:
    stats = engine.stats.offload
    assert stats is not None
    return stats


def test_a_second_turn_finds_its_blocks_in_memory_and_has_the_same_tokens(make_engine: MakeEngine):
    alone = talk(make_engine(**SETTINGS))
    engine = make_engine(**SETTINGS, kv_offload_memory="1MiB")
    again = talk(engine)
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in alone]
    assert alone[-1][1] == 0
    assert again[-1][1] == 96
    assert offload_of(engine).num_loaded_from_memory >= 5


@pytest.mark.parametrize("kind", FAMILIES)
def test_whatever_a_page_consists_of_comes_back(make_engine: MakeEngine, tiny_family: Callable[[str], Path], kind: str):
    family, settings = FAMILIES[kind]
    folder = tiny_family(family)
    given = SETTINGS | {"num_kv_blocks": 14} | settings
    alone = talk(make_engine(folder, **given))
    engine = make_engine(folder, **given, kv_offload_memory="8MiB")
    assert [tokens for tokens, _ in talk(engine)] == [tokens for tokens, _ in alone]
    assert offload_of(engine).num_loaded_from_memory > 0


def make_with_disk(make_engine: MakeEngine, folder: Path) -> LLMEngine:
    """Places for 24 blocks in memory, so that those of a prompt before five others are on the disk alone."""
    settings = {"kv_offload_memory": "192KiB", "kv_offload_folder": str(folder), "kv_offload_disk": "4MiB"}
    return make_engine(**SETTINGS, **settings)


def send_to_disk(engine: LLMEngine) -> list[int]:
    """A first turn, and five other prompts, each of which waits until all is written; the second turn."""
    answer, _ = run(engine, FIRST)
    for seed in range(2, 7):
        run(engine, draw_tokens(seed, 140))
        core: Any = engine._core
        while core._scheduler._elsewhere._pending:
            run(engine, [5])
    return [*FIRST, *answer, 7, 8, 9]


def test_blocks_come_back_from_the_disk_and_the_file_goes_with_the_engine(make_engine: MakeEngine, tmp_path: Path):
    engine = make_with_disk(make_engine, tmp_path / "new")
    again = send_to_disk(engine)
    tokens, num_cached = run(engine, again)
    assert num_cached == 96
    assert offload_of(engine).num_loaded_from_disk == 6
    assert tokens == run(make_engine(**SETTINGS), again)[0]
    (path,) = (tmp_path / "new").iterdir()
    assert path.stat().st_mode & 0o077 == 0
    engine.close()
    assert not path.exists()


@pytest.mark.parametrize("damage", ["a bit", "the end"])
def test_a_damaged_file_is_computed_again(make_engine: MakeEngine, tmp_path: Path, damage: str):
    engine = make_with_disk(make_engine, tmp_path)
    again = send_to_disk(engine)
    (path,) = tmp_path.iterdir()
    with path.open("r+b") as file:
        if damage == "the end":
            file.truncate(0)
        else:
            data = bytearray(file.read())
            file.seek(0)
            file.write(bytes(byte ^ 1 for byte in data))
    tokens, num_cached = run(engine, again)
    assert num_cached == 0
    assert tokens == run(make_engine(**SETTINGS), again)[0]
    assert offload_of(engine).num_failed > 0


def test_files_of_ended_engines_are_removed_and_those_of_others_are_kept(make_engine: MakeEngine, tmp_path: Path):
    (tmp_path / "1-rank_0-left.kv-blocks").write_bytes(b"left over")
    (tmp_path / "notes.txt").write_text("somebody's")
    make_with_disk(make_engine, tmp_path)
    make_with_disk(make_engine, tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 3
    assert "notes.txt" in names
    assert "1-rank_0-left.kv-blocks" not in names


def test_a_reset_of_the_prefix_cache_forgets_what_left_it(make_engine: MakeEngine):
    engine = make_engine(**SETTINGS, kv_offload_memory="1MiB")
    run(engine, FIRST)
    run(engine, draw_tokens(2, 140))
    engine.reset_prefix_cache()
    assert run(engine, FIRST)[1] == 0


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleeping_engine_keeps_no_blocks_and_keeps_them_again_when_awake(
    make_engine: MakeEngine, tmp_path: Path, level: int
):
    engine = make_with_disk(make_engine, tmp_path)
    before = talk(engine)
    assert before[-1][1] == 96
    engine.sleep(level)
    assert list(tmp_path.iterdir()) == []
    engine.wake_up()
    assert talk(engine) == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_offload_folder": "/tmp"}, "kv_offload_folder is given without kv_offload_disk"),
        ({"kv_offload_disk": "1GiB"}, "kv_offload_disk is given without kv_offload_folder"),
        ({"kv_offload_folder": "/tmp", "kv_offload_disk": "1GiB"}, "without kv_offload_memory"),
        ({"kv_offload_memory": "1GiB", "enable_prefix_caching": False}, "enable_prefix_caching is off"),
        (
            {"kv_offload_memory": "1GiB", "kv_offload_folder": "/tmp", "kv_offload_disk": "1GiB"},
            "the disk has what is in memory as well",
        ),
        ({"kv_offload_memory": 8}, "kv_offload_memory is 8; it must be at least 1024"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        EngineArgs(**settings)


def test_a_model_that_keeps_states_is_refused_by_name(make_engine: MakeEngine, tiny_family: Callable[[str], Path]):
    with pytest.raises(ConfigError, match="kv_offload_memory is set, and Qwen3NextForCausalLM keeps states"):
        make_engine(tiny_family("qwen3_next"), kv_offload_memory="1MiB")


@pytest.mark.parametrize(
    ("memory", "message"), [(1024, "one block of 16 tokens takes"), ("100000TiB", "of the host's memory are free")]
)
def test_memory_that_holds_no_block_or_is_not_there_is_refused(make_engine: MakeEngine, memory: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        make_engine(kv_offload_memory=memory)
