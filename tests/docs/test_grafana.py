"""docs/grafana/atom.json: all queries of the dashboard ask for metrics that a server has, by labels that these have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from atom_core import AsyncEngine, EngineInfo, SamplingParams
from atom_core.engine.replicas.status import EngineStatus
from atom_server.generation.tallies import ServedPrompt, Tallies
from atom_server.observe.metrics import Metrics

BOARD = json.loads((Path(__file__).parents[2] / "docs/grafana/atom.json").read_text(encoding="utf-8"))
QUERIES = [(panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel["targets"]]
NAME = re.compile(r"\batom:\w+")


@pytest.fixture(scope="module")
def labels():
    """The labels of each sample that a server has told of, by its name."""
    info = EngineInfo(
        *("model", "folder", "LlamaForCausalLM"),
        max_model_len=8,
        vocab_size=8,
        dtype="float32",
        kv_cache_dtype="float32",
        device="cpu",
        num_blocks=8,
        block_size=4,
        max_num_seqs=2,
        max_num_batched_tokens=8,
        enable_prefix_caching=True,
        eos_token_ids=(),
        num_threads=1,
        timings={"total": 1.0},
    )
    control = SimpleNamespace(is_paused=False, sleep_level=0)
    engine = SimpleNamespace(info=info, control=control, engines=(EngineStatus(0, "serving", info=info),))
    metrics = Metrics(cast(AsyncEngine, engine), prefix="atom", model_name="tiny")
    metrics.take_end(Tallies(1), SamplingParams(), [ServedPrompt(0, num_tokens=1, num_cached_tokens=0)])
    metrics.take_status(429)
    families = text_string_to_metric_families(metrics.text().decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


@pytest.mark.parametrize(("panel", "query"), QUERIES)
def test_each_query_asks_for_metrics_and_labels_that_there_are(panel, query, labels):
    names = NAME.findall(query)
    assert names
    for name in names:
        assert name in labels
        asked = set(re.findall(r"(\w+)=~?\"", query)) | {
            label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")
        }
        assert asked <= labels[name]


@pytest.mark.parametrize(("panel", "query"), QUERIES)
def test_rates_are_taken_of_what_only_grows(panel, query):
    for name in re.findall(r"(?:rate|increase)\((atom:\w+)", query):
        assert name.endswith(("_total", "_bucket", "_sum", "_count"))
    for name in set(NAME.findall(query)) - set(re.findall(r"(?:rate|increase)\((atom:\w+)", query)):
        assert not name.endswith(("_total", "_bucket", "_sum", "_count"))


def test_the_board_has_what_grafana_needs_to_load_it():
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(BOARD)
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in BOARD["panels"]}
    assert len(places) == len(BOARD["panels"])
    variables = {variable["name"] for variable in BOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(?!__)(\w+)", json.dumps(BOARD))) == variables
    for panel in BOARD["panels"]:
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
