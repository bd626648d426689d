"""Tasks of jina-embeddings-v3: vectors of each are those of weights with its adapter merged in, behind its prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from atom_core import InvalidRequestError, LLMEngine
from atom_core.config.options import ConfigError
from atom_core.errors import AdapterError
from shared_ranks import SharedRanks
from shared_ranks import make_engine as over_ranks
from tiny_encoders import make_encoder, rewrite_config
from tiny_jina import FAMILY, TASKS, make_jina, merged

PROMPTS = [[2, 9, 3], [5], [2, *(7 + i % 60 for i in range(40)), 3], [2, *(5 + i * 7 % 90 for i in range(61)), 3]]


def make_engine(folder: Path, **settings) -> LLMEngine:
    return LLMEngine(str(folder), dtype="float32", num_threads=1, **settings)


def vector_of(model, prompt: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.nn.functional.normalize(model(torch.tensor([prompt])).last_hidden_state[0].mean(dim=0), dim=0)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[torch.Tensor]]:
    """What `transformers` makes of each prompt, by the task that is merged into its weights."""
    place = tmp_path_factory.mktemp("merged")
    adapters = make_jina(place / "plain", "transformers")
    models = {task: merged(place / "plain", adapters, task, place / task) for task in TASKS}
    return {task: [vector_of(model, prompt) for prompt in PROMPTS] for task, model in models.items()}


@pytest.fixture(scope="module", params=["jina", "transformers"])
def engine(request, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp(request.param)
    make_jina(folder, request.param)
    with make_engine(folder) as engine:
        yield engine


@pytest.mark.parametrize("task", TASKS)
def test_vectors_of_a_task_are_those_of_merged_weights(engine: LLMEngine, expected, task: str):
    found = torch.tensor(engine.embed(PROMPTS, task=task))
    torch.testing.assert_close(found, torch.stack(expected[task]), atol=2e-5, rtol=1e-4)


def test_without_a_task_vectors_are_those_of_the_weights_alone(engine: LLMEngine, tmp_path: Path):
    reference = make_encoder(FAMILY, tmp_path)
    found = torch.tensor(engine.embed(PROMPTS))
    torch.testing.assert_close(found, torch.stack([vector_of(reference, one) for one in PROMPTS]), atol=2e-5, rtol=1e-4)


def test_the_prompt_of_a_task_is_put_before_texts_unless_another_is_named(engine: LLMEngine):
    task, text = "retrieval.query", "where is the sea"
    before = engine.embed(TASKS[task] + text, prompt_name="separation", task=task)
    assert engine.embed(text, task=task) == before
    assert engine.embed(text, prompt_name="separation", task=task) != before


def test_a_task_that_the_model_has_not_is_refused_and_those_that_it_has_are_named(engine: LLMEngine, tmp_path: Path):
    with pytest.raises(InvalidRequestError, match="task is 'sea'; this model has 'retrieval.query', '"):
        engine.embed("the sea", task="sea")
    make_encoder("bert", tmp_path)
    with make_engine(tmp_path) as other, pytest.raises(InvalidRequestError, match="no tasks: leave 'task' out"):
        other.embed("the sea", task="separation")


def test_ranks_share_a_model_and_its_tasks(expected, ranks: SharedRanks, tmp_path: Path):
    make_jina(tmp_path, "jina")
    with over_ranks(tmp_path, ranks, num_kv_blocks=None) as engine:
        found = torch.tensor(engine.embed(PROMPTS, task="text-matching"))
    torch.testing.assert_close(found, torch.stack(expected["text-matching"]), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"lora_adaptations": "all"}, "lora_adaptations is 'all'; it must list the tasks"),
        ({"lora_adaptations": ["all of them", *TASKS]}, "a task of the model is 'all of them'; allowed are 1 to 128"),
        ({"lora_adaptations": [*TASKS, "separation"]}, "the adapter 'separation' is loaded already"),
        ({"lora_rank": 0}, "lora_rank is 0; it must be above 0"),
        ({"lora_alpha": "one"}, "lora_alpha is 'one'; it must be above 0"),
        ({"lora_adaptations": [*TASKS, "more"]}, r"lora_A has the shape \[5, .*: it must hold a matrix for each task"),
        ({"lora_rank": 3}, "which are not of rank 3"),
    ],
    ids=lambda value: None if isinstance(value, str) else next(iter(value)),
)
def test_a_config_that_does_not_fit_the_matrices_is_refused(tmp_path: Path, fields: dict, says: str):
    make_jina(tmp_path, "jina")
    rewrite_config(tmp_path, **fields)
    with pytest.raises(ValueError, match=says):
        make_engine(tmp_path)


def test_settings_that_do_not_go_with_adapters_are_refused(tmp_path: Path):
    make_jina(tmp_path, "jina")
    with pytest.raises(ConfigError, match="batch_invariant does not go with adapters, which this model has for its ta"):
        make_engine(tmp_path, batch_invariant=True)


def test_other_adapters_come_beside_those_of_tasks_where_they_are_asked_for(expected, tmp_path: Path):
    make_jina(tmp_path / "jina", "jina")
    make_jina(tmp_path / "transformers", "transformers")
    other = str(tmp_path / "transformers" / "separation")
    with make_engine(tmp_path / "jina") as engine, pytest.raises(AdapterError, match="takes no adapters: start it wit"):
        engine.load_adapter("mine", other)
    with make_engine(tmp_path / "jina", enable_lora=True, max_loras=1) as engine:
        engine.load_adapter("mine", other)
        with pytest.raises(AdapterError, match="6 adapters are loaded, as many as max_loras allows"):
            engine.load_adapter("second", other)
        found = torch.tensor(engine.embed(PROMPTS, task="classification"))
    torch.testing.assert_close(found, torch.stack(expected["classification"]), atol=2e-5, rtol=1e-4)


def test_an_adapter_may_not_be_called_as_a_task(tmp_path: Path):
    make_jina(tmp_path, "jina")
    with pytest.raises(ValueError, match="lora_modules has 'separation', which is a task of the model"):
        make_engine(tmp_path, lora_modules={"separation": "elsewhere"})
