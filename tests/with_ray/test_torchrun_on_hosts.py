"""torchrun on two hosts: the tokens are those of one rank."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.with_ray.hosts import is_able, two_hosts

pytestmark = [pytest.mark.ray, pytest.mark.skipif(not is_able(), reason="network namespaces need root and ip")]


def test_torchrun_on_two_hosts_gives_the_tokens_of_one_rank(tiny_llama: Path):
    secret = secrets.token_hex(32)
    program = ["-m", "tests.with_ray.generate", str(tiny_llama)]
    with two_hosts() as hosts:
        started = []
        for number, host in enumerate(hosts):
            run = ["--nnodes=2", f"--node-rank={number}", "--nproc-per-node=1", f"--master-addr={hosts[0].address}"]
            words = [sys.executable, "-m", "torch.distributed.run", *run, *program, '{"tensor_parallel_size": 2}']
            environment = {"ATOM_RANKS_SECRET": secret}
            started.append(
                host.start(*words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        [(told, problems), (nothing, _)] = [process.communicate(timeout=150) for process in started]
        assert [process.returncode for process in started] == [0, 0], problems
    alone = subprocess.run([sys.executable, *program, "{}"], capture_output=True, text=True, check=True)
    assert json.loads(told.splitlines()[-1]) == json.loads(alone.stdout.splitlines()[-1])
    assert nothing == ""
