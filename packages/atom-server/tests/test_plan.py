"""`atom plan`: tables from a config alone."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import atom_core.models
from atom_core import EngineArgs
from atom_core.config import CacheFormat, options_of
from atom_core.models import ModelRequirements, find_accelerators, open_checkpoint, place
from atom_server.cli.main import main
from atom_server.cli.plan.tables import memory_lines
from published_configs import NAMES, architecture_of, write_published_config

count = atom_core.models.model_requirements
counted: dict[str, ModelRequirements] = {}


def model_requirements(checkpoint: Any, *args: Any, **options: Any) -> ModelRequirements:
    """What is counted of a config, once for all tests: to build the layers takes most of a plan."""
    called = inspect.signature(count).bind(checkpoint, *args, **options)
    called.apply_defaults()  # the command names options that tests leave out
    key = json.dumps({**called.arguments, "checkpoint": checkpoint.config}, sort_keys=True)
    if key not in counted:
        counted[key] = count(checkpoint, *args, **options)
    return counted[key]


@pytest.fixture(autouse=True, scope="module")
def counted_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atom_core.models, "model_requirements", model_requirements)
        yield
    counted.clear()  # a million objects, through which other tests would look for garbage


def plan(capsys: pytest.CaptureFixture[str], *flags: str | Path) -> tuple[int, str]:
    code = main(["plan", *map(str, flags)])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def rows_of(text: str, accelerator: str) -> list[list[str]]:
    return [re.split(r"  +", line) for line in text.splitlines() if line.startswith(f"{accelerator} ")]


def test_weights_and_cache_must_fit_together(tmp_path: Path):
    config = json.loads((write_published_config("llama-3.1-8b", tmp_path) / "config.json").read_text())
    needs = model_requirements(open_checkpoint(tmp_path))
    weights, cache = min(needs.weight_bytes.values()), 4096 * needs.kv_bytes_per_token[CacheFormat("float8_e4m3fn")]
    assert config["max_position_embeddings"] == needs.max_model_len
    for memory, fits in ((weights + 2 * cache, True), (weights + 2 * cache - 1, False)):
        assert memory_lines(needs, 4096, 2, memory=memory)[1] is fits


def test_what_was_made_of_pictures_takes_its_room_where_a_model_sees(tmp_path: Path, capsys):
    folder = write_published_config("qwen3-vl-8b", tmp_path)
    needs, kept = model_requirements(open_checkpoint(folder)), 256 << 20
    weights, cache = min(needs.weight_bytes.values()), 4096 * needs.kv_bytes_per_token[CacheFormat("float8_e4m3fn")]
    for memory, fits in ((weights + cache + kept, True), (weights + cache + kept - 1, False)):
        assert memory_lines(needs, 4096, 1, memory=memory, image_cache_bytes=kept)[1] is fits
    _, text = plan(capsys, "--model", folder, "--memory", "64GiB")
    assert "the tower of pictures and its projector have 576.4 M of these" in text
    assert "256.0 MiB are left for what was made of pictures" in text
    _, more = plan(capsys, "--model", folder, "--on", "H200", "--image-cache-memory", "100GiB", "--context", "4096")
    _, usual = plan(capsys, "--model", folder, "--on", "H200", "--context", "4096")
    assert "100.0 GiB are left for what was made of pictures" in more
    fitting = [int(rows_of(text, "H200")[0][-1]) for text in (more, usual)]
    bytes_of_request = 4096 * needs.kv_bytes_per_token[CacheFormat("bfloat16")]
    assert fitting[1] - fitting[0] == pytest.approx((100 * 2**30 - kept) / bytes_of_request, abs=1)


def test_a_model_that_reads_text_alone_keeps_nothing_for_pictures(tmp_path: Path, capsys):
    _, text = plan(capsys, "--model", write_published_config("llama-3.1-8b", tmp_path), "--memory", "64GiB")
    assert "pictures" not in text


# The others are of the same architectures: their sizes are held in atom-models' test_published_configs.py.
LIKE_ANOTHER = {
    "deepseek-r1": "kimi-k2.5",  # it is planned below, in the format in which it is published
    "kimi-k2": "kimi-k2.5",
    "gpt-oss-120b": "gpt-oss-20b",
    "llama-3.1-70b": "llama-3.1-8b",
    "qwen3-235b-a22b": "qwen3-30b-a3b",
}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LIKE_ANOTHER])
def test_published_models_are_planned_for_every_accelerator(name: str, tmp_path: Path, capsys):
    code, text = plan(capsys, "--model", write_published_config(name, tmp_path), "--on", "all", "--weights", "bfloat16")
    assert f"{architecture_of(name)}, " in text
    for accelerator in ("MI300X", "MI300A", "MI355X", "H100", "H200"):
        assert rows_of(text, accelerator) or re.search(f"too large for 8 of .*{accelerator}", text)
    # With the tower on each of them, 8 MI355X do not hold Kimi-K2.5 in bfloat16, in which nobody has published it.
    assert code == (1 if name == "kimi-k2.5" else 0)


def test_a_state_for_each_draft_is_planned(tmp_path: Path, capsys):
    """A state of Qwen3.5 397B takes 204 MB here, and nothing else of a request of one token is that large."""
    folder = write_published_config("qwen3.5-397b-a17b", tmp_path)
    sizes = []
    for flags in ((), ("--num-speculative-tokens", "3")):
        asked = ("--context", "16", "--kv-cache-dtype", "bf16", "--memory", "900GiB", *flags)
        _, text = plan(capsys, "--model", folder, *asked)
        planned = next(re.split(r"  +", line)[4] for line in text.splitlines() if line.startswith("bfloat16 "))
        sizes.append(float(planned.removesuffix(" MiB")))
    assert sizes[1] == pytest.approx(4 * sizes[0], rel=0.01)
    assert "45 layers keep 4 states a request, whatever its length: one, and one for each draft" in text
    assert plan(capsys, "--model", folder, "--num-speculative-tokens", "16") == (
        2,
        "atom plan: num_speculative_tokens is 16; Qwen3_5MoeForConditionalGeneration keeps a state for each draft, "
        "15 at most: ask for no more\n",
    )


STATES = ("qwen3-next-80b-a3b", "qwen3.5-397b-a17b", "kimi-linear-48b-a3b")


@pytest.mark.parametrize("name", [*STATES, "glm-5", "deepseek-v3.2", "kimi-k2.5"])
def test_states_behind_cached_prefixes_take_their_room_where_layers_keep_states(name: str, tmp_path: Path, capsys):
    needs = model_requirements(open_checkpoint(write_published_config(name, tmp_path)))
    cache = CacheFormat("bfloat16")
    each, weights, kept = needs.kv_bytes(4096, cache), needs.weight_bytes["bfloat16"], 4 if name in STATES else 3
    asked = ("--model", tmp_path, "--context", "4096", "--kv-cache-dtype", "bf16", "--requests", "9")
    pictures = 256 << 20 if needs.num_tower_parameters else 0
    # The engine gives a quarter of the cache to them (`size_cache`), and nine requests have what is left of it.
    for room, fits in ((kept * 3 * each, "yes"), (kept * 3 * each - 4, "no")):
        _, text = plan(capsys, *asked, "--memory", str(weights + pictures + room))
        row = next(re.split(r"  +", line) for line in text.splitlines() if line.startswith("bfloat16 "))
        assert (row[6], row[7]) == (fits, "9" if fits == "yes" else "8")
        assert ("a quarter of the cache's room" in text) is (name in STATES)

    share, device = needs.on_rank(8), find_accelerators("MI355X")[0]
    placed = place(needs, device, 8, weight_format="bfloat16", cache=cache)
    assert share is not None
    assert placed is not None
    room = placed.cache_bytes - (placed.cache_bytes // 4 if name in STATES else 0)
    assert placed.num_requests(4096) == max(room, 0) // share.kv_bytes(4096, cache, device.platform)


def test_accelerators_are_planned_with_whole_experts(tmp_path: Path, capsys):
    """Six experts of a Mixtral on four devices: the first one holds two of them, where it held a quarter of each."""
    folder = write_published_config("mixtral-8x7b", tmp_path)
    config = json.loads((folder / "config.json").read_text()) | {"num_local_experts": 6}
    (folder / "config.json").write_text(json.dumps(config))
    sizes = []
    for flags in ((), ("--enable-expert-parallel",)):
        _, text = plan(capsys, "--model", folder, "--on", "H100", "--weights", "bfloat16", *flags)
        assert f"by --tensor-parallel-size{' and --enable-expert-parallel' if flags else ''} of `atom serve`" in text
        [weights] = [row[3] for row in rows_of(text, "H100") if row[2] == "4"]
        sizes.append(float(weights.removesuffix(" GiB")))
    assert sizes[1] - sizes[0] == pytest.approx(0.5 * 32 * 3 * 4096 * 14336 * 2 / 2**30, abs=0.1)


def test_accelerators_with_requests_of_their_own_hold_an_equal_part_of_the_experts_and_all_else(tmp_path: Path, capsys):
    folder, found = write_published_config("mixtral-8x7b", tmp_path), []
    for flags in (("--enable-expert-parallel",), ("--enable-dp-attention",)):
        _, text = plan(capsys, "--model", folder, "--on", "H100", "--weights", "bfloat16", "--context", "4096", *flags)
        assert f"by --tensor-parallel-size and {flags[0]} of `atom serve`" in text
        [row] = [row for row in rows_of(text, "H100") if row[2] == "4"]
        found.append((float(row[3].removesuffix(" GiB")), float(row[4].removesuffix(" GiB")), int(row[6])))
    experts = 32 * 2 * 3 * 4096 * 14336 * 2 / 2**30
    attention = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024) + 2 * 32000 * 4096
    (cut, _, _), (whole, room, requests) = found
    assert whole - experts == pytest.approx(2 * attention / 2**30, abs=0.1)
    assert cut - experts == pytest.approx(2 * attention / 4 / 2**30, abs=0.1)
    assert requests == 4 * int(room * 2**30 // (32 * 2 * 1024 * 2 * 4096))


def test_accelerators_that_share_a_context_hold_as_many_times_the_requests(tmp_path: Path, capsys):
    folder, found = write_published_config("deepseek-r1", tmp_path), []
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 4}
    (folder / "config.json").write_text(json.dumps(config))
    for flags in ((), ("--decode-context-parallel-size", "4")):
        _, text = plan(capsys, "--model", folder, "--on", "H100", "--weights", "bfloat16", "--context", "4096", *flags)
        rows = {row[2]: row for row in rows_of(text, "H100")}
        found.append(int(rows["4"][6]))
        assert list(rows) == (["4", "8"] if flags else ["1", "2", "4", "8"])
        assert ("and --decode-context-parallel-size 4 of `atom serve`" in text) == bool(flags)
    assert found[1] == pytest.approx(4 * found[0], abs=4)


def test_a_context_that_cannot_be_shared_is_not_planned(tmp_path: Path, capsys):
    folder = write_published_config("llama-3.1-8b", tmp_path)
    code, text = plan(capsys, "--model", folder, "--on", "H100", "--decode-context-parallel-size", "2")
    assert (code, "self_attn.attn: paged_attention cannot share its context among 2 ranks" in text) == (3, True)


def test_longer_requests_are_fewer(tmp_path: Path, capsys):
    _, text = plan(capsys, "--model", write_published_config("llama-3.1-70b", tmp_path), "--on", "mi300x")
    rows = rows_of(text, "MI300X")
    assert [row[2] for row in rows] == ["1", "2", "4", "8"]
    for row in rows:
        counts = [int(count) for count in row[6:]]
        assert len(counts) == 3
        assert counts == sorted(counts, reverse=True)
    assert [int(row[5]) for row in rows] == [96718, 131072, 131072, 131072]


def test_what_fits_nowhere_ends_with_one(tmp_path: Path, capsys):
    flags = ("--on", "H100", "--weights", "float32")
    code, text = plan(capsys, "--model", write_published_config("llama-3.1-70b", tmp_path), *flags)
    assert (code, bool(rows_of(text, "H100"))) == (0, True)
    # A few layers that are too large are planned sooner than many.
    large = {"num_hidden_layers": 8, "intermediate_size": 100 * 28672}
    config = json.loads((tmp_path / "config.json").read_text()) | large
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, text = plan(capsys, "--model", tmp_path, *flags)
    assert code == 1
    assert "too large for 8 of H100" in text


def test_published_formats_are_planned_as_they_are_held(tmp_path: Path, capsys):
    code, text = plan(capsys, "--model", write_published_config("gpt-oss-120b", tmp_path), "--on", "MI300X")
    assert code == 0
    assert "published as mxfp4" in text
    assert "18 layers keep the last 128 tokens only" in text
    assert "(5.7 B for each token)" in text
    assert "refused" not in text
    assert rows_of(text, "MI300X")[0][2:4] == ["1", "60.8 GiB"]
    assert "this version holds" not in text
    _, text = plan(capsys, "--model", tmp_path, "--on", "MI300X", "--weights", "bfloat16")
    assert rows_of(text, "MI300X")[0][2:4] == ["2", "108.8 GiB"]
    assert "bfloat16: the same model from a checkpoint in bfloat16" in text


@pytest.fixture
def mixture_in_fp8(tmp_path: Path) -> Path:
    """Weights in fp8 whose activations are not to be rounded: NVIDIA's accelerators read such experts, AMD's do not."""
    path = write_published_config("qwen3-30b-a3b", tmp_path) / "config.json"
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head"],
        "config_groups": {"all": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization}))
    return tmp_path


def test_a_mixture_that_is_not_held_as_it_is_published_is_planned_with_both_sizes_and_the_reason(
    mixture_in_fp8, capsys
):
    _, text = plan(capsys, "--model", mixture_in_fp8, "--on", "MI300X")
    assert "weights bfloat16, 56.9 GiB" in text
    assert (
        "compressed-tensors: 29.1 GiB in the files; this version holds these weights in bfloat16, since no kernel "
        "there reads experts that are stored as fp8 per row" in text
    )


def test_each_accelerator_is_planned_with_the_weights_as_it_holds_them(mixture_in_fp8, capsys):
    _, text = plan(capsys, "--model", mixture_in_fp8, "--on", "all")
    in_bf16, in_fp8 = text.split("weights bfloat16, ")[1].split("weights compressed-tensors, ")
    assert rows_of(in_fp8, "H100")
    assert not rows_of(in_bf16, "H100")
    assert "since" not in in_fp8
    assert rows_of(in_bf16, "MI300X")
    assert not rows_of(in_fp8, "MI300X")


def test_a_mixture_in_tiles_of_fp8_is_held_so_by_every_accelerator(tmp_path: Path, capsys):
    _, text = plan(capsys, "--model", write_published_config("deepseek-r1", tmp_path), "--on", "all")
    assert "weights bfloat16" not in text
    assert "too large for 8 of H100" in text
    assert [row[2] for row in rows_of(text, "MI300X")] == ["4", "8"]


def test_a_quantized_checkpoint_is_not_shown_as_a_dense_one(tmp_path: Path, capsys):
    path = write_published_config("llama-3.1-8b", tmp_path) / "config.json"
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": awq}))
    _, text = plan(capsys, "--model", tmp_path, "--memory", "64GiB")
    assert "published as awq\n" in text
    _, on_gpu = plan(capsys, "--model", tmp_path, "--on", "H100", "--weights", "awq")
    assert "this version holds these weights in bfloat16" not in on_gpu
    assert "float32, bfloat16, int8, int4, fp8, fp8_block, mxfp4: the same model from a checkpoint in bfloat16" in text
    assert re.search(r"^awq +5\.4 GiB", text, re.MULTILINE)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"quant_method": "hqq"}}))
    _, text = plan(capsys, "--model", tmp_path, "--on", "H100")
    assert "published as hqq, of a size that is not known" in text
    assert "weights bfloat16, 15.0 GiB" in text


def test_fields_that_nobody_knows_are_warned_of(tmp_path: Path, capsys):
    path = write_published_config("llama-3.1-8b", tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"twirl_factor": 3}))
    _, text = plan(capsys, "--model", tmp_path, "--memory", "64GiB")
    assert f"warning: {tmp_path}: config.json sets twirl_factor" in text


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--on", "A100"), "no accelerator 'A100'; plans know MI300X, MI300A, MI325X, MI355X, H100, H200, B200, GB200"),
        (("--on", "H100", "--weights", "int3"), "--weights 'int3': this model can be planned with float32"),
    ],
)
def test_names_that_mean_nothing_are_refused(flags: tuple[str, ...], says: str, tmp_path: Path, capsys):
    code, text = plan(capsys, "--model", write_published_config("llama-3.1-8b", tmp_path), *flags)
    assert code == 2
    assert says in text


def test_a_cache_of_another_format_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "--kv-cache-dtype", "int3"])
    assert "choose from auto, bf16, fp8" in capsys.readouterr().err.replace("'", "")


ENGINES_CACHE_DTYPES = next(entry for entry in options_of(EngineArgs) if entry.name == "kv_cache_dtype").choices


@pytest.mark.parametrize("where", [(), ("--on", "MI300X")], ids=["here", "on accelerators"])
@pytest.mark.parametrize("dtype", ENGINES_CACHE_DTYPES)
def test_every_cache_that_the_engine_takes_is_planned(dtype: str, where: tuple[str, ...], tmp_path: Path, capsys):
    model = write_published_config("llama-3.1-8b", tmp_path)
    code, text = plan(capsys, "--model", model, "--memory", "2TiB", *where, "--kv-cache-dtype", dtype)
    assert code == 0
    # 32 layers of 8 keys and 8 values of 128 numbers, each with a scale of four bytes or with none.
    assert {"fp8": "64.0 KiB", "fp8_per_token_head": "66.0 KiB"}.get(dtype, "128.0 KiB") in text
    assert ("64.0 KiB" in text) == (dtype == "fp8")
    assert ("float8_e4m3fn" in text) == dtype.startswith("fp8")


# AMD's kernels keep a scale of four bytes beside the 128 numbers of each key and value.
@pytest.mark.parametrize(("accelerator", "times"), [("H200", 2), ("MI300X", 2 * 128 / 132)])
def test_a_cache_in_fp8_holds_twice_as_many_requests(accelerator: str, times: float, tmp_path: Path, capsys):
    model = write_published_config("llama-3.1-8b", tmp_path)
    flags = ("--model", model, "--on", accelerator, "--context", "4096", "--kv-cache-dtype")
    in_bf16, in_fp8 = (rows_of(plan(capsys, *flags, dtype)[1], accelerator) for dtype in ("bf16", "fp8"))
    assert in_bf16
    for half, full in zip(in_bf16, in_fp8, strict=True):
        assert int(half[-1]) * times - 1 <= int(full[-1]) <= (int(half[-1]) + 1) * times


def test_a_cache_that_is_not_chosen_is_planned_in_each_format(tmp_path: Path, capsys):
    _, text = plan(capsys, "--model", write_published_config("llama-3.1-8b", tmp_path))
    assert {"float32", "bfloat16", "float8_e4m3fn"} <= set(text.split())


def test_an_architecture_that_is_not_there_names_those_that_are(tmp_path: Path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen9ForCausalLM"]}))
    code, text = plan(capsys, "--model", tmp_path)
    assert code == 3
    assert "Qwen9ForCausalLM is not supported" in text
    assert "The nearest is Qwen" in text


def steps_of(text: str) -> dict[tuple[str, str], list[str]]:
    """The rows of decode steps by ranks and batch."""
    rows = [re.split(r"  +", line) for line in text.splitlines() if re.match(r"tp \d+.*  \d+ +\d+\.\d\d ms ", line)]
    return {(row[0], row[1]): row[2:] for row in rows}


def test_a_simulation_shows_steps_of_every_number_of_ranks_that_holds_the_model(tmp_path: Path, capsys):
    folder = write_published_config("llama-3.1-70b", tmp_path)
    code, text = plan(capsys, "--model", folder, "--simulate", "8xH100", "--batch-sizes", "1,64", "--context", "2048")
    assert code == 0
    assert "simulated on 8xH100: weights bfloat16, KV cache bfloat16, context 2048" in text
    steps = steps_of(text)
    assert list(steps) == [(f"tp {ranks}", batch) for ranks in (2, 4, 8) for batch in ("1", "64")]
    seconds = {key: float(row[0].removesuffix(" ms")) for key, row in steps.items()}
    assert seconds["tp 8", "1"] < seconds["tp 4", "1"] < seconds["tp 4", "64"]
    users, devices = (float(steps["tp 8", "64"][column]) for column in (1, 2))
    assert users == pytest.approx(1e3 / seconds["tp 8", "64"], rel=0.05)
    assert devices == pytest.approx(64 * users / 8, rel=0.05)
    assert steps["tp 8", "1"][3].startswith("weights (")
    assert re.search(r"^tp 1 .*does not fit +does not fit$", text, re.MULTILINE)
    assert "batch 64: every doubling up to 8 ranks gains a tenth or more; on 8 a step waits most for weights" in text
    assert "H100: 3.03 TB/s and 791 TFLOP/s in 16 bits are reached; measured" in text


def test_some_ranks_alone_are_simulated_where_they_are_asked_for(tmp_path: Path, capsys):
    folder = write_published_config("qwen3-30b-a3b", tmp_path)
    flags = ("--simulate", "8xmi355x", "-tp", "2", "-dp", "4", "--enable-expert-parallel", "--batch-sizes", "32")
    code, text = plan(capsys, "--model", folder, *flags, "--kv-cache-dtype", "fp8", "--weights", "fp8")
    assert code == 0
    assert list(steps_of(text)) == [("tp 2 x dp 4 x ep", "32")]
    assert "weights fp8, KV cache float8_e4m3fn, context 4096" in text
    assert "gain" not in text.split("prediction")[0].split("waits most for")[1]


def test_what_no_rank_of_a_system_holds_ends_with_one(tmp_path: Path, capsys):
    folder = write_published_config("llama-3.1-70b", tmp_path)
    code, text = plan(capsys, "--model", folder, "--simulate", "8xH100", "-tp", "1", "--weights", "float32")
    assert (code, "the weights fit on none of these" in text) == (1, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--simulate", "8xA100"), "--simulate: no system '8xA100'; 8xMI300X, 8xMI325X"),
        (("--simulate", "8xH100", "-tp", "16"), "tp 16 is 16 ranks, and 8xH100 has 8 devices: ask for fewer"),
        (("--simulate", "8xH100", "--enable-expert-parallel"), "this model has no experts; leave it out"),
        (("--simulate", "8xH100", "--on", "H100"), "--simulate has a system of its own: leave --on out"),
        (("--simulate", "8xH100", "--memory", "1GiB"), "--simulate has a system of its own: leave --memory out"),
        (("--simulate", "8xH100", "--weights", "int3"), "--weights 'int3': this model can be planned with"),
        (("--simulate", "8xH100", "-tp", "3"), "no number of ranks of 8xH100 can share this model evenly"),
        (("--simulate", "8xH100", "-tp", "2", "-pp", "8"), "tp 2 x pp 8 is 16 ranks, and 8xH100 has 8 devices"),
        (("-pp", "2"), "--pipeline-parallel-size is for --simulate SYSTEM"),
        (("-tp", "2"), "--tensor-parallel-size is for --simulate SYSTEM"),
        (("--batch-sizes", "1"), "--batch-sizes is for --simulate SYSTEM"),
        (("--enable-dp-attention",), "--enable-dp-attention is for several devices: give --on"),
        (("--on", "H100", "--enable-dp-attention"), "--enable-dp-attention: this model has no experts"),
        (("--enable-expert-parallel",), "--enable-expert-parallel is for several devices: give --on ACCELERATOR or"),
        (("--decode-context-parallel-size", "2"), "--decode-context-parallel-size is for several devices: give --on"),
        (("--simulate", "8xH100", "--batch-sizes", "1,x"), "'1,x' is not numbers from 1 between commas"),
    ],
)
def test_a_simulation_that_makes_no_sense_is_refused(tmp_path: Path, capsys, flags, message):
    folder = write_published_config("llama-3.1-8b", tmp_path)
    try:
        code, text = plan(capsys, "--model", folder, *flags)
    except SystemExit as error:  # what argparse refuses
        code, text = error.code, capsys.readouterr().err
    assert code == 2
    assert message in text
