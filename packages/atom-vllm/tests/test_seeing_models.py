"""Models that see behind vLLM's interfaces: features of what its processors cut, merged into steps' embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from stub_vllm import stub_vllm
from thread_ranks import Group
from tiny_pictures import SPEC, moonvit_patches, picture, pixel_values
from vllm_ranks import Coordinator, model_in_vllm

PICTURES = [picture(24, 40), picture(8, 16), picture(40, 8)]
VIDEO, TEXT = 1, 9


@pytest.fixture
def in_vllm() -> Iterator[Callable[[Path], Any]]:
    with stub_vllm() as stub:
        stub.own.group = Coordinator(Group(1), 0)
        yield lambda folder: model_in_vllm(folder, 1)[0]


@pytest.fixture
def qwen(in_vllm, seeing_folder: Path) -> Any:
    return in_vllm(seeing_folder)


@pytest.fixture(scope="module")
def seeing_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from seeing_models import make_seeing

    return make_seeing(tmp_path_factory.mktemp("seeing") / "qwen3_vl")


def encoded(model: Any, pictures: list[torch.Tensor]) -> list[torch.Tensor]:
    return model.model.vision.encode(pictures)


def test_pictures_and_videos_are_encoded_as_by_ourselves(qwen: Any) -> None:
    """A video is two pictures of two frames each: here the same frame twice, which a picture is as well."""
    processor, still = SimpleNamespace(vision_spec=SPEC), [picture(16, 24, seed) for seed in (1, 2)]
    given, video = pixel_values(processor, PICTURES), pixel_values(processor, still)["pixel_values"]
    grids = torch.tensor([[2, 4, 6]])
    found = qwen.embed_multimodal(
        pixel_values=given["pixel_values"], image_grid_thw=given["image_grid_thw"],
        pixel_values_videos=video, video_grid_thw=grids,
    )  # fmt: skip
    expected = [*encoded(qwen, PICTURES), torch.cat(encoded(qwen, still))]
    assert [one.shape for one in found] == [one.shape for one in expected]
    assert all(torch.allclose(ours, by_itself, atol=1e-5) for ours, by_itself in zip(found, expected, strict=True))


def test_patches_that_are_not_those_of_the_pictures_are_refused(qwen: Any) -> None:
    with pytest.raises(ValueError, match="there are 60 patches, and pictures of 24"):
        qwen.embed_multimodal(pixel_values=torch.zeros(60, 96), image_grid_thw=torch.tensor([[1, 4, 6]]))


def test_features_stand_in_marked_rows_and_wait_for_the_first_layers_until_the_next_step(qwen: Any) -> None:
    size = qwen.model.config.hidden_size
    tokens, marked = torch.tensor([4, 5, 6, 7]), torch.tensor([False, True, True, False])
    features = torch.randn(2, 3 * size)
    texts = qwen.model.embed_input_ids(tokens)
    embeds = qwen.embed_input_ids(tokens, [features[:1], features[1:]], is_multimodal=marked)
    assert torch.equal(embeds[~marked], texts[~marked])
    assert torch.equal(embeds[marked], features[:, :size])
    waiting = qwen._added.of(4)
    assert torch.equal(waiting[marked], features[:, size:])
    assert not waiting[~marked].any()
    assert torch.equal(qwen.embed_input_ids(tokens[:2]), texts[:2])
    assert not waiting.any()


def test_tokens_of_pictures_and_of_each_part_of_a_video_get_places(qwen: Any) -> None:
    """A video stands as two pictures with texts between them."""
    spec = qwen.model.vision_spec
    image, video = spec.image_token_id, spec.video.token_id
    tokens = [TEXT, *[video] * 6, TEXT, TEXT, *[video] * 6, TEXT, *[image] * 15, TEXT]

    def feature(modality: str, place: int, grid: list[int]) -> Any:
        return SimpleNamespace(
            modality=modality,
            mm_position=SimpleNamespace(offset=place),
            data={f"{modality}_grid_thw": SimpleNamespace(data=torch.tensor(grid))},
        )

    features = [feature("image", 16, [1, 6, 10]), feature("video", 0, [2, 4, 6])]
    positions, delta = qwen.get_mrope_input_positions(tokens, features)
    firsts = positions[:, [0, 1, 7, 8, 9, 15, 16, 31]].tolist()
    assert firsts == [[0, 1, 4, 5, 6, 9, 10, 15]] * 3
    assert positions[:, 6].tolist() == [1, 2, 3]
    assert positions[:, 30].tolist() == [10, 12, 14]
    assert delta == 16 - len(tokens)


@pytest.mark.usefixtures("quiet_transformers")
def test_chunks_of_videos_of_kimi_are_seen_at_once_as_by_transformers(in_vllm, tiny_family) -> None:
    """Its patches come row by row, of a picture and of three frames."""
    folder = tiny_family("kimi_k25")
    model = in_vllm(folder)
    frames = [picture(24, 40, seed) for seed in range(3)]
    shown = [picture(16, 8), *frames, picture(32, 32)]
    patches = moonvit_patches(model.model.vision_spec, list(map(np.asarray, shown)))
    grids = torch.tensor([[1, 4, 2], [3, 6, 10], [1, 8, 8]])
    found = model.embed_multimodal(pixel_values=patches, grid_thws=grids)
    assert [len(one) for one in found] == [2, 15, 16]
    theirs = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval().model
    for ours, own, grid in zip(found, patches.split(grids.prod(1).tolist()), grids, strict=True):
        with torch.no_grad():  # they take no others beside a chunk
            pooled = theirs.vision_tower(own, grid_thw=grid.unsqueeze(0)).pooler_output
            assert torch.allclose(ours, theirs.mm_projector(pooled).squeeze(1), atol=1e-5)
    assert torch.allclose(found[2], encoded(model, shown[-1:])[0], atol=1e-5)


def test_a_model_of_texts_alone_has_no_tower_and_takes_one_position_a_token(
    in_vllm, seeing_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atom_vllm import compat

    monkeypatch.setattr(compat, "takes_pictures", lambda model_config: False)
    model = in_vllm(seeing_folder)
    assert model.model.vision is None
    positions, delta = model.get_mrope_input_positions([5, 6, 7], [])
    assert (positions.tolist(), delta) == ([[0, 1, 2]] * 3, 0)
    taken: list[torch.Tensor] = []
    monkeypatch.setattr(model, "_decode", lambda ids, positions, *_: taken.append(positions))
    model.forward(torch.tensor([5, 6, 7]), positions)
    assert taken[0].tolist() == [0, 1, 2]


def test_a_step_with_what_was_seen_gives_our_own_logits(qwen: Any, seeing_folder: Path) -> None:
    """`added` is a row for each token here, and rows of pictures alone there."""
    from atom_models.vision.seen import SeenRows
    from atom_vllm.models.added_rows import EveryRow

    size = qwen.model.config.hidden_size
    features, rows = torch.randn(2, 3 * size), torch.tensor([1, 3])
    every = torch.zeros(5, 2 * size)
    every[rows] = features[:, size:]
    x = torch.randn(5, size)
    assert EveryRow(every).num_layers(size) == SeenRows(rows, features).num_layers(size) == 2
    for layer_id in range(2):
        assert torch.equal(EveryRow(every).added(layer_id, x), SeenRows(rows, features).added(layer_id, x))
