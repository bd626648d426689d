"""What a folder says about labels, and about scores of pairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atom_core.engine.judging import Judging
from atom_core.messages import Pooling
from atom_models import open_checkpoint
from embedding_folder import write_json

LABELS = {"10": "j", "2": "c", "0": "a"}


def judging_of(folder: Path, architecture: str, name: str = "m", **fields) -> Judging:
    write_json(folder / "config.json", {"architectures": [architecture], "tie_word_embeddings": True} | fields)
    return Judging.of(open_checkpoint(folder), name)


def labels_of(folder: Path, architecture: str = "BertForSequenceClassification", **fields):
    labels = judging_of(folder, architecture, **fields).labels
    assert labels is not None
    return labels


def test_labels_are_in_the_order_of_their_numbers(tmp_path: Path):
    assert labels_of(tmp_path, id2label=LABELS).names == ("a", "c", "j")
    assert labels_of(tmp_path).names == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize(
    ("architecture", "fields", "kind"),
    [
        ("XLMRobertaForSequenceClassification", {}, "cls"),
        ("ModernBertForSequenceClassification", {"classifier_pooling": "mean"}, "mean"),
        ("ModernBertForSequenceClassification", {"classifier_pooling": "cls"}, "cls"),
        ("Qwen3ForSequenceClassification", {}, "last"),
    ],
)
def test_a_head_reads_the_state_that_its_class_has_it_read(architecture, fields, kind, tmp_path: Path):
    expected = Pooling(kind, normalizes=False, classifies=True)
    assert labels_of(tmp_path, architecture, **fields).pooling == expected


ONE, TWO = {"id2label": {"0": "a"}}, {"id2label": {"0": "a", "1": "b"}}
IDENTITY = "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    ("fields", "activation"),
    [
        (ONE, "sigmoid"),
        (TWO, "softmax"),
        (TWO | {"problem_type": "multi_label_classification"}, "sigmoid"),
        (ONE | {"problem_type": "regression"}, "none"),
        (ONE | {"sentence_transformers": {"activation_fn": IDENTITY}}, "none"),
        (ONE | {"sbert_ce_default_activation_function": IDENTITY}, "none"),
        (ONE | {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid"),
    ],
)
def test_scores_become_what_the_config_says(fields, activation, tmp_path: Path):
    assert labels_of(tmp_path, **fields).activation == activation


def test_scores_become_what_a_cross_encoder_of_today_says_beside_the_config(tmp_path: Path):
    """sentence-transformers writes a file of its own; what older versions left in the config stands behind it."""
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"activation_fn": IDENTITY}))
    older = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}
    assert labels_of(tmp_path, **ONE, **older).activation == "none"


def test_probabilities_are_finite_for_large_scores(tmp_path: Path):
    assert labels_of(tmp_path, **TWO).probabilities([1000.0, -1000.0]) == [1.0, 0.0]
    sigmoid = labels_of(tmp_path, **ONE)
    assert sigmoid.probabilities([-1000.0, 0.0, 1000.0]) == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("architecture", "name", "fields", "way"),
    [
        ("Qwen3ForCausalLM", "Qwen/Qwen3-Reranker-0.6B", {}, "words"),
        ("Qwen3ForCausalLM", "m", {"classifier_from_token": ["false", "true"]}, "words"),
        ("Qwen3ForCausalLM", "m", {}, "likelihood"),
        ("BertModel", "m", {}, "vectors"),
    ],
)
def test_a_model_judges_in_the_way_that_it_has(architecture, name, fields, way, tmp_path: Path):
    judging = judging_of(tmp_path, architecture, name, **fields)
    assert judging.way == way
    assert judging.has_template is (way == "words")
    assert judging.words == tuple(fields.get("classifier_from_token", ("no", "yes")))


def test_one_label_of_qwen3_is_that_of_its_reranker(tmp_path: Path):
    assert judging_of(tmp_path, "Qwen3ForSequenceClassification", **ONE).has_template
    assert not judging_of(tmp_path, "Qwen3ForSequenceClassification", **TWO).has_template
    assert judging_of(tmp_path, "BertForSequenceClassification", **ONE).has_token_types
    assert not judging_of(tmp_path, "RobertaForSequenceClassification", **ONE).has_token_types
