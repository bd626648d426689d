"""Low-rank adapters in the engine: as merged weights, whatever shares the batch, the blocks and the memory."""

from __future__ import annotations

import pytest

from atom_core import EngineArgs, InvalidRequestError, LLMEngine, SamplingParams
from atom_core.config import ConfigError
from atom_core.engine.adapters.names import AdapterNames
from atom_core.engine.startup import resolve
from atom_core.errors import AdapterError
from atom_core.worker.devices.cpu import Cpu
from atom_core.worker.devices.protocol import FreeMemory
from atom_core.worker.model.loading import load_engine_model
from atom_core.worker.model.loading_with_cache import load_and_measure
from atom_core.worker.ranks.protocol import ALONE
from atom_models import open_checkpoint
from tiny_adapters import make_adapter, merge

SMALL = {"dtype": "float32", "num_kv_blocks": 128, "max_num_seqs": 16, "num_threads": 1, "seed": 0}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=3)
PROMPTS = [list(range(3 + length, 3 + 2 * length)) for length in (5, 18, 33)]
# Beyond `MOST_TOGETHER` tokens of a step each adapter has products of its own.
LONG = [[7 + (3 * place) % 400 for place in range(90)]]
KINDS = {
    "sql": {"seed": 1, "std": 0.1},
    "chat": {
        "seed": 2,
        "std": 0.1,
        "use_rslora": True,
        "ranks": {"down_proj": 2, "q_proj": 7},
        "alpha_pattern": {"0.self_attn.v_proj": 3, "up_proj": 11},
    },
}
NAMES = (None, *KINDS)


@pytest.fixture(scope="module")
def folders(tiny_llama, tmp_path_factory):
    """Where the adapters lie."""
    place = tmp_path_factory.mktemp("adapters")
    return {name: str(make_adapter(place / name, tiny_llama, **kind)) for name, kind in KINDS.items()}


@pytest.fixture(scope="module")
def merged(tiny_llama, folders, tmp_path_factory):
    """What models with merged weights answer, without adapters: by the name of the adapter, for all prompts."""
    place, answers = tmp_path_factory.mktemp("merged"), {}
    for name in NAMES:
        model = tiny_llama if name is None else merge(place / name, tiny_llama, folders[name])
        with LLMEngine(str(model), **SMALL) as engine:
            answers[name] = engine.generate(PROMPTS + LONG, GREEDY, use_tqdm=False)
    return answers


@pytest.fixture(scope="module")
def engine(tiny_llama, folders):
    with make_engine(tiny_llama, folders) as engine:
        yield engine


def make_engine(model, folders, **options):
    return LLMEngine(str(model), **{**SMALL, "lora_modules": folders, **options})


def generate(engine, prompts, adapter, params=GREEDY):
    return engine.generate(prompts, params, use_tqdm=False, adapter=adapter)


def answers_of_all(engine):
    """Each prompt by each adapter, all in one batch."""
    prompts = PROMPTS + LONG
    answers = generate(engine, [prompt for prompt in prompts for _ in NAMES], [*NAMES] * len(prompts))
    return {name: answers[place :: len(NAMES)] for place, name in enumerate(NAMES)}


def tokens(answers):
    return [answer["token_ids"] for answer in answers]


def tokens_by_name(answers):
    return {name: tokens(own) for name, own in answers.items()}


def test_a_batch_that_mixes_adapters_answers_as_merged_weights_do(engine, merged):
    answers = answers_of_all(engine)
    assert tokens_by_name(answers) == tokens_by_name(merged)
    assert len({str(own) for own in tokens_by_name(merged).values()}) == len(NAMES)
    for name in NAMES:
        for answer, expected in zip(answers[name], merged[name], strict=True):
            pairs = zip(answer["logprobs"], expected["logprobs"], strict=True)
            assert all(abs(one.logprob - other.logprob) < 1e-3 for one, other in pairs)


@pytest.mark.parametrize("name", NAMES)
def test_requests_of_one_adapter_answer_as_merged_weights_do(engine, merged, name):
    assert tokens(generate(engine, PROMPTS + LONG, name)) == tokens(merged[name])


def test_prefixes_of_one_adapter_are_not_found_by_another(engine):
    prompt = [list(range(300, 340))]
    found = [generate(engine, prompt, name)[0]["num_cached_tokens"] for name in (*NAMES, *NAMES)]
    assert found == [0, 0, 0, 32, 32, 32]


def test_an_adapter_that_is_loaded_again_finds_nothing_of_what_its_name_cached_before(tiny_llama, folders):
    prompt = [list(range(100, 140))]
    with make_engine(tiny_llama, {"a": folders["sql"]}) as engine:
        before = tokens(generate(engine, prompt, "a"))
        engine.unload_adapter("a")
        engine.load_adapter("a", folders["chat"])
        [answer] = generate(engine, prompt, "a")
        assert answer["num_cached_tokens"] == 0
        assert answer["token_ids"] != before[0]


NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}


@pytest.mark.parametrize(
    "options",
    [{"max_num_batched_tokens": 16}, {"async_scheduling": False}, {"speculative_config": NGRAM}],
    ids=["in chunks", "one step at a time", "with drafts"],
)
def test_the_way_of_steps_changes_no_answer(tiny_llama, folders, merged, options):
    with make_engine(tiny_llama, folders, **options) as engine:
        assert tokens_by_name(answers_of_all(engine)) == tokens_by_name(merged)


def test_requests_that_were_preempted_go_on_with_their_adapter(engine, tiny_llama, folders):
    prompts, names = [[40 + row] * 15 for row in range(6)], [*NAMES, *NAMES]
    with make_engine(tiny_llama, folders, num_kv_blocks=8) as small:
        assert tokens(generate(small, prompts, names)) == tokens(generate(engine, prompts, names))
        assert small.stats.num_preemptions > 0


@pytest.mark.parametrize("level", [1, 2])
def test_adapters_are_there_after_a_sleep(tiny_llama, folders, merged, level):
    with make_engine(tiny_llama, folders) as engine:
        engine.sleep(level)
        with pytest.raises(AdapterError, match="the engine sleeps: wake it up"):
            engine.load_adapter("late", folders["sql"])
        engine.wake_up()
        assert tokens(generate(engine, PROMPTS, "chat")) == tokens(merged["chat"][:-1])


def test_an_adapter_that_is_in_use_leaves_after_the_last_of_its_requests(tiny_llama, folders, merged):
    with make_engine(tiny_llama, folders, max_loras=2) as engine:
        engine.add_request(PROMPTS, GREEDY, adapter="sql")
        done = engine.step()
        engine.unload_adapter("sql")
        with pytest.raises(InvalidRequestError, match="the adapter 'sql' is not loaded; loaded are: chat") as refused:
            engine.add_request(PROMPTS, GREEDY, adapter="sql")
        assert refused.value.code == "model_not_found"
        with pytest.raises(AdapterError, match="1 of them wait for the last of their requests: try again later"):
            engine.load_adapter("sql", folders["sql"])
        while not engine.is_finished():
            done += engine.step()
        assert sorted(tokens(done)) == sorted(tokens(merged["sql"][:-1]))
        engine.load_adapter("sql", folders["sql"])
        assert tokens(generate(engine, PROMPTS, "sql")) == tokens(merged["sql"][:-1])


def test_requests_that_are_dropped_hold_no_adapter(tiny_llama, folders):
    with make_engine(tiny_llama, folders, max_loras=2) as engine:
        request_ids = engine.add_request(PROMPTS, GREEDY, adapter="sql")
        engine.step()
        engine.unload_adapter("sql")
        engine.abort(request_ids)
        engine.load_adapter("again", folders["sql"])


def test_more_adapters_than_max_loras_are_refused(tiny_llama, folders):
    with make_engine(tiny_llama, folders, max_loras=2) as engine:
        with pytest.raises(AdapterError, match="2 adapters are loaded, as many as max_loras allows: unload one first"):
            engine.load_adapter("third", folders["sql"])
        with pytest.raises(AdapterError, match="the adapter 'sql' is loaded already"):
            engine.load_adapter("sql", folders["sql"])
        with pytest.raises(AdapterError, match=r"the adapter 'x' is not loaded; loaded are: sql, chat"):
            engine.unload_adapter("x")


def test_two_that_load_at_once_do_not_get_one_name_or_one_place(tiny_llama, folders):
    args = EngineArgs(model=str(tiny_llama), enable_lora=True, max_loras=1)
    names, _ = AdapterNames.of(args, open_checkpoint(tiny_llama))
    first, twin, second = (names.prepared(name, folders["sql"]) for name in ("a", "a", "b"))
    names.reserve(first)
    with pytest.raises(AdapterError, match="the adapter 'a' is loaded already"):
        names.reserve(twin)
    with pytest.raises(AdapterError, match="1 adapters are loaded, as many as max_loras allows"):
        names.reserve(second)
    names.release(first)
    names.reserve(second)


def test_an_adapter_that_does_not_fit_changes_nothing(tiny_llama, tiny_llama2, folders, merged, tmp_path):
    other = make_adapter(tmp_path, tiny_llama2)
    with make_engine(tiny_llama, folders) as engine:
        with pytest.raises(AdapterError, match=r"lora_B of .*k_proj has the shape \[64, 4\]"):
            engine.load_adapter("other", str(other))
        with pytest.raises(InvalidRequestError, match="the adapter 'other' is not loaded"):
            generate(engine, PROMPTS, "other")
        assert tokens(generate(engine, PROMPTS, "sql")) == tokens(merged["sql"][:-1])


def test_an_engine_without_adapters_loads_none(tiny_llama, folders):
    with (
        LLMEngine(str(tiny_llama), **SMALL) as engine,
        pytest.raises(AdapterError, match="takes no adapters: start it with enable_lora"),
    ):
        engine.load_adapter("sql", folders["sql"])


def test_there_is_an_adapter_for_each_prompt_or_one_for_all(engine):
    with pytest.raises(InvalidRequestError, match="there are 2 adapters for 3 prompts"):
        generate(engine, PROMPTS, ["sql", None])


@pytest.mark.parametrize(
    "given",
    [
        {"sql": "/a/sql", "chat": "/b=c"},
        ["sql=/a/sql", "chat=/b=c"],
        "sql=/a/sql chat=/b=c",
        '{"sql": "/a/sql", "chat": "/b=c"}',
        ['{"name": "sql", "path": "/a/sql", "base_model_name": "x"}', "chat=/b=c"],
    ],
)
def test_modules_are_pairs_of_a_name_and_a_folder(given):
    assert EngineArgs(lora_modules=given).lora_modules == {"sql": "/a/sql", "chat": "/b=c"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["/a/sql"], "write name=path, such as sql=/models/sql-adapter"),
        (["a b=/x"], "write name=path"),
        (["a=/x", "a=/y"], "lora_modules has the name a twice"),
        (["{"], "which is not JSON"),
        ([f"a{index}=/x" for index in range(9)], "lora_modules has 9 adapters, above max_loras 8"),
    ],
)
def test_modules_that_are_no_pairs_are_refused(given, reason):
    with pytest.raises(ConfigError, match=reason):
        EngineArgs(lora_modules=given)


@pytest.mark.parametrize(
    "options",
    [
        {"level": 1},
        {"batch_invariant": True},
        {"pipeline_parallel_size": 2},
        {"model_impl": "transformers"},
        {"kv_events_config": {"enable_kv_cache_events": True}},
        {"kv_transfer_config": {"kv_connector": "TcpConnector", "kv_role": "kv_producer"}},
    ],
    ids=str,
)
def test_settings_that_do_not_go_with_adapters_are_refused(options):
    with pytest.raises(ConfigError, match="enable_lora or lora_modules, and .* do not go together"):
        EngineArgs(enable_lora=True, **options)


class SmallHost(Cpu):
    """A host with little memory."""

    def free_memory(self, *_, **__):
        return FreeMemory(16 << 20)


def test_adapters_have_room_beside_the_cache(tiny_llama):
    blocks = []
    for options in ({}, {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}):
        given = {"dtype": "float32", "num_threads": 1, "gpu_memory_utilization": 1.0, **options}
        config = resolve(EngineArgs(model=str(tiny_llama), **given), open_checkpoint(tiny_llama))
        _, loaded = load_and_measure(config, load_engine_model, ALONE, device=SmallHost())
        blocks.append(loaded.size.num_blocks)
    # Inputs and outputs of seven linears in two layers, in float32.
    of_adapter = 8 * 2 * (4 * 64 + 2 * (64 + 32) + 3 * (64 + 128)) * 4
    of_block = 2 * 2 * 16 * 32 * 4
    assert blocks[0] - blocks[1] == 2 * of_adapter // of_block
