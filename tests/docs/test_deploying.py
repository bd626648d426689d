"""docs/deploy: manifests and units say what the command line takes, and proxies pass streams on as they come.

The proxies are run where they are installed (Debian's packages nginx-light and caddy).
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from atom_server.cli.main import build_parser
from benchmarks.server_process import free_port

FOLDER = Path(__file__).parents[2] / "docs" / "deploy"
PAGE = (FOLDER.parent / "deploying.md").read_text(encoding="utf-8")
WAIT_S = 10.0


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    """The objects for Kubernetes, by kind."""
    files = (FOLDER / name for name in ("kubernetes.yaml", "autoscaling.yaml"))
    return {each["kind"]: each for file in files for each in yaml.safe_load_all(file.read_text())}


@pytest.fixture(scope="module")
def pod(manifests: dict[str, Any]) -> Any:
    return manifests["Deployment"]["spec"]["template"]["spec"]


def test_a_pod_has_time_to_drain(pod: Any):
    [container] = pod["containers"]
    args = build_parser().parse_args(container["args"])
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > args.drain_timeout + pause
    assert args.require_key


def test_probes_ask_whether_the_server_takes_requests_and_whether_it_lives(pod: Any):
    [container] = pod["containers"]
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/ready", "readiness": "/ready", "liveness": "/health"}


def test_everything_is_of_the_same_pods(manifests: dict[str, Any]):
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert manifests["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert manifests["Service"]["spec"]["selector"] == labels
    assert manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert manifests["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == manifests["Deployment"]["metadata"]["name"]


def test_what_is_mounted_is_there(pod: Any):
    [container] = pod["containers"]
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}


def test_servers_are_counted_by_metrics_that_there_are(manifests: dict[str, Any]):
    board = (FOLDER.parent / "grafana" / "atom.json").read_text()  # whose names are held by tests
    for trigger in manifests["ScaledObject"]["spec"]["triggers"]:
        names = re.findall(r"atom:\w+", trigger["metadata"]["query"])
        assert names
        assert all(name in board for name in names)


def test_no_service_of_the_cluster_sets_a_flag(pod: Any):
    # Kubernetes would set ATOM_PORT, for a service named atom, to a URL.
    assert pod["enableServiceLinks"] is False


def test_caches_of_a_service_lie_where_it_may_write():
    unit = (FOLDER / "atom.service").read_text()
    [home] = re.findall(r"^Environment=HOME=(\S+)$", unit, re.MULTILINE)
    assert re.findall(r"^CacheDirectory=(\S+)$", unit, re.MULTILINE) == [home.removeprefix("/var/cache/")]


def test_a_service_has_time_to_drain():
    unit = (FOLDER / "atom.service").read_text()
    [command] = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    words = [word for word in shlex.split(command)[1:] if "atom.yaml" not in word and word != "--config"]
    assert (
        int(re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0])
        > build_parser().parse_args(words).drain_timeout
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (Debian: systemd)")
def test_systemd_finds_nothing_wrong(tmp_path: Path):
    unit = tmp_path / "atom.service"
    unit.write_text((FOLDER / "atom.service").read_text().replace("/opt/atom/bin/atom", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "atom.service" in line] == []


def test_the_page_names_every_file():
    assert all(path.name in PAGE for path in FOLDER.iterdir())


class Upstream(ThreadingHTTPServer):
    """A server whose stream goes on when it is told to, and that notes what came."""

    daemon_threads = True

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.has_arrived, self.has_left = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", free_port()), Answers)


class Answers(BaseHTTPRequestHandler):
    server: Upstream

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        self.server.hosts.append(self.headers["host"])
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()
        with contextlib.suppress(OSError):
            self.wfile.write(b"data: first\n\n")
            self.server.has_arrived.wait(WAIT_S)
            until = time.monotonic() + WAIT_S
            while time.monotonic() < until:
                self.wfile.write(b"data: next\n\n")
                time.sleep(0.01)
            return
        self.server.has_left.set()


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def nginx(upstream: int, port: int, folder: Path) -> list[str]:
    """What runs nginx as the page has it."""
    there = (FOLDER / "nginx.conf").read_text()
    there = there.replace("127.0.0.1:8000", f"127.0.0.1:{upstream}").replace("listen 80;", f"listen 127.0.0.1:{port};")
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind}; " for kind in ("proxy", "fastcgi", "uwsgi", "scgi", "client_body")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; worker_processes 1; events {{}}\n"
        f"http {{ access_log off; {paths}\n{there} }}"
    )
    return ["nginx", "-c", str(folder / "nginx.conf"), "-e", "stderr"]


def caddy(upstream: int, port: int, folder: Path) -> list[str]:
    """What runs Caddy as the page has it, without a certificate."""
    there = (FOLDER / "Caddyfile").read_text().replace("127.0.0.1:8000", f"127.0.0.1:{upstream}")
    (folder / "Caddyfile").write_text(
        "{\n\tadmin off\n}\n" + there.replace("atom.example.com", f"http://127.0.0.1:{port}")
    )
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


@pytest.fixture(params=[nginx, caddy], ids=lambda proxy: proxy.__name__)
def url(request: pytest.FixtureRequest, upstream: Upstream, tmp_path: Path) -> Iterator[str]:
    """Where a proxy is, with `upstream` behind it."""
    if shutil.which(request.param.__name__) is None:
        pytest.skip(f"needs {request.param.__name__} (Debian: {request.param.__name__})")
    port = free_port()
    process = subprocess.Popen(request.param(upstream.server_port, port, tmp_path), stderr=subprocess.DEVNULL)
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + WAIT_S
    try:
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/ready").status_code == 200:
                    break
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(WAIT_S)


def test_a_proxy_passes_tokens_on_as_they_come_and_tells_that_a_client_has_left(url: str, upstream: Upstream):
    with httpx.stream("POST", f"{url}/v1/completions", json={"stream": True}, timeout=WAIT_S) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "data: first"  # nothing else is on its way yet
        upstream.has_arrived.set()
        assert "data: next" in (next(lines), next(lines))
    assert upstream.has_left.wait(WAIT_S)
    [host] = upstream.hosts
    assert host.partition(":")[0] in ("localhost", "127.0.0.1")  # a server on loopback takes no others


def test_a_proxy_keeps_the_watching_inside_and_bodies_small(url: str, upstream: Upstream):
    assert {httpx.get(f"{url}{path}").status_code for path in ("/metrics", "/debug/requests")} == {403}
    # Caddy 2.6 says 502 where later ones say 413.
    assert httpx.post(f"{url}/v1/completions", content=b" " * (17 << 20), timeout=WAIT_S).status_code in (413, 502)
