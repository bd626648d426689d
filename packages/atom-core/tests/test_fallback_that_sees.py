"""Pictures through a tower of transformers: our engine gives the tokens that transformers generates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
import transformers

from atom_core import LLMEngine, SamplingParams
from atom_core.errors import InvalidRequestError
from atom_models.vision.positions import widened
from tiny_fallback_seeing import IMAGE, SEEING, make_fallback_seeing

pytestmark = pytest.mark.usefixtures("quiet_transformers")

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def photo(seed: int, height: int = 17, width: int = 23) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


# A dark one, a bright one, and one whose ends are cut off.
FIRST, SECOND, TALL = photo(1) // 3, 255 - photo(2) // 3, photo(3, 40, 12)
TEXT = list(range(20, 37))
# Those at 0 and 1 have equal tokens and other pictures; the last two go on behind the same one.
PROMPTS: list[tuple[list[int], list[np.ndarray]]] = [
    ([*TEXT, IMAGE, 7, 8], [FIRST]),
    ([*TEXT, IMAGE, 7, 8], [SECOND]),
    ([5, 6, IMAGE, 7, 8, IMAGE, 9], [FIRST, TALL]),
    ([30] * 20, []),
    ([IMAGE, 40, 41], [TALL]),
    ([33], []),
    ([5, IMAGE, IMAGE, *TEXT], [SECOND, FIRST]),
    ([5, IMAGE, IMAGE, *TEXT, 99], [SECOND, FIRST]),
]
GIVEN = [{"prompt_token_ids": tokens, "images": images} for tokens, images in PROMPTS]


def open_engine(folder: Path, **settings: Any) -> LLMEngine:
    given = {"dtype": "float32", "num_kv_blocks": 128, "num_threads": 1, "skip_tokenizer_init": True}
    return LLMEngine(str(folder), **given | settings)


def tokens_of(engine: LLMEngine, prompts: list[Any]) -> list[list[int]]:
    outputs = engine.generate(prompts, GREEDY, use_tqdm=False)
    assert [output["error"] for output in outputs] == [None] * len(outputs)
    assert engine.stats.num_free_blocks == engine.stats.num_blocks
    return [output["token_ids"] for output in outputs]


def their_tokens(folder: Path, processor: type, tokens: list[int], images: list[np.ndarray]) -> list[int]:
    """What transformers generates, with pictures as the checkpoint's own processor makes them."""
    model: Any = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([[each for one in tokens for each in [one] * (9 if one == IMAGE else 1)]])
    made = processor.from_pretrained(folder)
    seen = made(images, return_tensors="pt", input_data_format="channels_last") if images else {}
    output = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), **seen, max_new_tokens=8, do_sample=False, eos_token_id=None
    )
    return output[0, ids.shape[1] :].tolist()


@pytest.fixture(scope="module", params=SEEING)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_fallback_seeing(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    is_clip = "CLIP" in (folder / "preprocessor_config.json").read_text()
    processor = CLIPImageProcessorPil if is_clip else SiglipImageProcessorPil
    return [their_tokens(folder, processor, *prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[LLMEngine]:
    with open_engine(folder) as engine:
        yield engine


def test_a_batch_gives_the_tokens_of_transformers_also_from_a_warm_cache(engine: LLMEngine, expected: list[list[int]]):
    assert engine.info.images is not None
    assert expected[0] != expected[1]
    assert tokens_of(engine, GIVEN) == expected
    again = engine.generate(GIVEN, GREEDY, use_tqdm=False)
    assert [output["token_ids"] for output in again] == expected
    assert [output["num_cached_tokens"] for output in again] == [16, 16, 16, 16, 0, 0, 32, 32]


def test_each_prompt_alone_gives_its_tokens(folder: Path, expected: list[list[int]]):
    with open_engine(folder, enable_prefix_caching=False, image_cache_memory=0) as engine:
        assert [tokens_of(engine, [prompt])[0] for prompt in GIVEN] == expected


def test_chunks_that_end_inside_pictures_change_no_token(folder: Path, expected: list[list[int]]):
    with open_engine(folder, max_num_batched_tokens=7, max_num_seqs=3, max_num_image_tokens=9) as engine:
        assert tokens_of(engine, GIVEN) == expected


def test_other_pictures_behind_equal_tokens_share_no_block(engine: LLMEngine):
    text = [50] * 8
    tokens = [*text, IMAGE, *text, *text]

    def cached(seed: int) -> int:
        prompt = {"prompt_token_ids": tokens, "images": [photo(seed)]}
        return engine.generate([prompt], GREEDY, use_tqdm=False)[0]["num_cached_tokens"]

    assert [cached(seed) for seed in (11, 12, 11, 12)] == [0, 0, 32, 32]


def test_pictures_of_many_sizes_give_the_tokens_of_transformers_in_batches_and_parts(tmp_path: Path):
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    folder = make_fallback_seeing("pixtral", tmp_path)
    model: Any = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    made = PixtralImageProcessorPil.from_pretrained(folder)
    expected, spec = [], None
    for settings in ({}, {"max_num_batched_tokens": 7, "max_num_seqs": 3, "max_num_image_tokens": 42}):
        with open_engine(folder, **settings) as engine:
            spec = engine.info.images
            assert spec is not None
            for tokens, images in () if expected else PROMPTS:
                seen = made(images, return_tensors="pt", input_data_format="channels_last") if images else {}
                wide, _ = widened(tokens, [spec.fitted(*one.shape[:2]) for one in images], spec)
                ids = torch.tensor([wide])
                given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **seen}
                output = model.generate(**given, max_new_tokens=8, do_sample=False, eos_token_id=None)
                expected.append(output[0, len(wide) :].tolist())
            assert expected[0] != expected[1]
            for _ in range(2):  # and from a warm cache
                assert tokens_of(engine, GIVEN) == expected


def test_texts_alone_give_the_same_tokens_and_pictures_are_refused(folder: Path, expected: list[list[int]]):
    with open_engine(folder, language_model_only=True) as engine:
        assert engine.info.images is None
        assert tokens_of(engine, [GIVEN[3], GIVEN[5]]) == [expected[3], expected[5]]
        with pytest.raises(InvalidRequestError, match="text alone"):
            engine.generate(GIVEN[:1], GREEDY, use_tqdm=False)
