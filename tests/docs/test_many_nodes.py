"""docs/ray/kuberay.yaml is what the command line takes, and asks for as many GPUs as it has ranks."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom_server.cli.main import build_parser

MANIFEST = Path(__file__).parents[2] / "docs" / "ray" / "kuberay.yaml"
PAGE = MANIFEST.parents[1] / "many-nodes.md"


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    """The objects, by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.fixture(scope="module")
def job(manifest: dict[str, Any]) -> Any:
    return manifest["RayJob"]["spec"]


def args_of(job: Any) -> Any:
    program, *words = shlex.split(job["entrypoint"])
    assert program == "atom"
    return build_parser().parse_args(words)


def containers(job: Any) -> list[Any]:
    cluster = job["rayClusterSpec"]
    groups = [(1, cluster["headGroupSpec"]), *((group["replicas"], group) for group in cluster["workerGroupSpecs"])]
    return [group["template"]["spec"]["containers"][0] for count, group in groups for _ in range(count)]


def test_the_nodes_have_a_gpu_for_each_rank(job: Any):
    args = args_of(job)
    assert args.distributed_executor_backend == "ray"
    num_gpus = sum(int(container["resources"]["limits"]["amd.com/gpu"]) for container in containers(job))
    assert num_gpus == args.tensor_parallel_size * args.pipeline_parallel_size


def test_the_server_asks_for_a_key_and_ray_for_a_token(job: Any):
    assert args_of(job).require_key
    for container in containers(job):
        names = {variable["name"]: variable for variable in container["env"]}
        assert names["RAY_AUTH_MODE"]["value"] == "token"
        assert {"RAY_AUTH_TOKEN", "ATOM_API_KEY"} < names.keys()


def test_no_service_of_the_cluster_sets_a_flag(job: Any):
    cluster = job["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        # Kubernetes would set ATOM_PORT, for a service named atom, to a URL.
        assert group["template"]["spec"]["enableServiceLinks"] is False


def test_clients_reach_the_port_of_the_server_and_pods_alone_the_others(job: Any, manifest: dict[str, Any]):
    port = args_of(job).server_port
    [served] = manifest["Service"]["spec"]["ports"]
    [named] = containers(job)[0]["ports"]
    inside, outside = manifest["NetworkPolicy"]["spec"]["ingress"]
    assert (served["port"], served["targetPort"], named) == (
        port,
        named["name"],
        {"name": "http", "containerPort": port},
    )
    assert inside["from"] == [{"podSelector": manifest["NetworkPolicy"]["spec"]["podSelector"]}]
    assert outside["ports"] == [{"protocol": "TCP", "port": port}]


def test_every_node_has_the_model_at_the_same_path(job: Any):
    folder = Path(args_of(job).model)
    for container in containers(job):
        assert any(folder.is_relative_to(mount["mountPath"]) for mount in container["volumeMounts"])


def test_the_page_leads_to_the_files():
    text = PAGE.read_text()
    for name in ("kuberay.yaml", "serve_app.py"):
        assert f"(ray/{name})" in text
        assert (MANIFEST.parent / name).is_file()
