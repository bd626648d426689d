"""What the README and the guides show works: Python blocks run, and so do calls to a server.

Blocks of a page share one namespace, in order. ``python server`` blocks and shell blocks with curl run against a live
server; ``python no-run`` blocks do not run, and ``python sees`` ones have a tiny
model that sees. The default model's name stands for a tiny model here.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from seeing_models import make_seeing

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("packages/*/README.md"))]
DOCUMENTED_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class Block:
    language: str
    mark: str
    code: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(r"^```(\w+) ?([\w-]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(*match.groups(), line=text[: match.start()].count("\n") + 2) for match in found]


def pages_with(language: str, mark: str, contains: str = "") -> list[Path]:
    def matches(block: Block) -> bool:
        return (block.language, block.mark) == (language, mark) and contains in block.code

    return [page for page in PAGES if any(matches(block) for block in blocks_of(page))]


def run_blocks(page: Path, mark: str, replacements: dict[str, str]) -> None:
    # A registered module, since dataclasses look theirs up.
    module = sys.modules["example_of_a_page"] = ModuleType("example_of_a_page")
    for block in blocks_of(page):
        if (block.language, block.mark) == ("python", mark):
            code = block.code
            for old, new in replacements.items():
                code = code.replace(old, new)
            # Blank lines before it keep the line numbers of tracebacks those of the page.
            exec(compile("\n" * (block.line - 1) + code, str(page), "exec", dont_inherit=True), module.__dict__)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def server_url(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``atom serve`` as a user starts it, on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    flags = f"--model {tiny_llama} --served-model-name smollm2 --server-port {port} --num-threads 1 --num-kv-blocks 64"
    flags += f" --batch-folder {tmp_path_factory.mktemp('batches')} --log-level warning"
    command = [sys.executable, "-m", "atom_server", "serve", *flags.split()]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(url, process)
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=30)


def wait_until_healthy(url: str, process: subprocess.Popen[str], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the server did not become healthy")


@pytest.mark.parametrize("page", pages_with("python", ""), ids=name_of)
def test_the_python_examples_run(page: Path, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run_blocks(page, "", {'"smollm2"': repr(str(tiny_llama))})


@pytest.mark.parametrize("page", pages_with("python", "sees"), ids=name_of)
def test_the_examples_with_pictures_run(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("transformers")
    pytest.importorskip("PIL")
    run_blocks(page, "sees", {'"Qwen/Qwen3-VL-2B-Instruct"': repr(str(make_seeing(tmp_path)))})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("page", pages_with("python", "server"), ids=name_of)
def test_the_examples_of_clients_run(page: Path, server_url: str, capsys: pytest.CaptureFixture[str]):
    run_blocks(page, "server", {DOCUMENTED_URL: server_url})
    assert capsys.readouterr().out.strip()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("page", pages_with("sh", "", "curl http"), ids=name_of)
def test_the_curl_calls_answer(page: Path, server_url: str):
    for block in blocks_of(page):
        if "curl http" in block.code:
            command = block.code.replace(DOCUMENTED_URL, server_url)
            answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=True)
            assert json.loads(answer.stdout)["choices"][0]["finish_reason"] in ("stop", "length")


def test_every_link_to_a_file_leads_somewhere():
    missing = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                missing.append(f"{name_of(page)}: {target}")
    assert not missing
