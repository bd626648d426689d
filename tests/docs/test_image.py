"""What the image says of itself is what the server does, and what the manifest for Kubernetes relies on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom_server.cli.main import build_parser

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
[POD] = [
    each["spec"]["template"]["spec"]
    for each in yaml.safe_load_all((ROOT / "docs" / "deploy" / "kubernetes.yaml").read_text())
    if each["kind"] == "Deployment"
]


def said(instruction: str) -> str:
    """What follows the one instruction of that name in the last stage."""
    [found] = re.findall(rf"^{instruction}\s+(.+)$", TEXT[TEXT.rindex("\nFROM ") :], re.MULTILINE)
    return found


def variables() -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", said("ENV")))


def test_it_starts_the_server_where_the_port_says(monkeypatch: pytest.MonkeyPatch):
    scripts = tomllib.loads((ROOT / "packages" / "atom-server" / "pyproject.toml").read_text())["project"]["scripts"]
    assert [*scripts] == json.loads(said("ENTRYPOINT"))
    for name, value in variables().items():
        if name.startswith("ATOM_"):
            monkeypatch.setenv(name, value)
    args = build_parser().parse_args(json.loads(said("CMD")))
    assert (args.host, args.port) == ("0.0.0.0", int(said("EXPOSE")))


def test_it_is_ended_by_the_signal_that_drains():
    assert said("STOPSIGNAL") == "SIGTERM"


def test_its_user_is_not_root_and_the_one_of_the_pod():
    user = int(said("USER"))
    assert user != 0
    assert re.findall(r"useradd --uid (\d+)", TEXT) == [str(user)]
    assert POD["securityContext"] == {"runAsNonRoot": True, "runAsUser": user, "fsGroup": user}


def test_its_caches_lie_on_the_volume_in_the_pod_too():
    home = variables()["HOME"]
    assert said("VOLUME") == said("WORKDIR") == home
    assert home in {each["mountPath"] for each in POD["containers"][0]["volumeMounts"] if not each.get("readOnly")}


class Health(BaseHTTPRequestHandler):
    """Answers /health with what the server was told to."""

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        self.send_response(self.server.status if self.path == "/health" else 404)  # type: ignore[attr-defined]
        self.end_headers()


@pytest.mark.parametrize(("status", "is_healthy"), [(200, True), (503, False)])
def test_it_is_healthy_while_the_server_says_so(status: int, is_healthy: bool):
    [_, *command] = json.loads(said("HEALTHCHECK").partition(" CMD ")[2])
    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        server.status = status  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {**os.environ, "ATOM_PORT": str(server.server_port)}
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, check=False)
        server.shutdown()
    assert (done.returncode == 0) is is_healthy
