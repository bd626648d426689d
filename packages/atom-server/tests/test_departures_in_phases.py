"""Whatever a request does when its client leaves, its samples and blocks are free one step later."""

from __future__ import annotations

import contextlib
import json
import os
import socket

import pytest

from stepped_engine import Steps

NUM_SEATS = 4
LONG_PROMPT, SHORT_PROMPT = [7] * 200, [5, 6]
# The phase in which the client leaves: what it asks for, and after how many steps of the engine it is there.
PHASES = {"prefilling": (LONG_PROMPT, 3), "decoding": (SHORT_PROMPT, 4)}


@pytest.fixture(scope="module")
def stepped(make_server, tmp_path_factory):
    """A server of few seats and short steps, and the steps of its engine."""
    steps = Steps(tmp_path_factory.mktemp("steps"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([*steps.python_path, os.environ.get("PYTHONPATH", "")]))
        starting = make_server(max_num_seqs=NUM_SEATS, max_num_batched_tokens=16, num_kv_blocks=256)
        with starting as server:
            steps.connect()
            yield server, steps
            steps.close()


@contextlib.contextmanager
def client(server, steps, **fields):
    """Somebody who waits for a completion that the engine has, and at last leaves; the engine was told then."""
    body = json.dumps(fields | {"max_tokens": 100, "ignore_eos": True}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        sample_ids = steps.until_asked()
        yield
    steps.until_told_to_end(sample_ids)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("n", [1, NUM_SEATS], ids="n={}".format)
@pytest.mark.parametrize("phase", PHASES)
def test_one_step_after_a_client_left_nothing_is_held_for_its_request(stepped, phase, n, stream):
    server, steps = stepped
    prompt, num_steps = PHASES[phase]
    with client(server, steps, prompt=prompt, n=n, stream=stream):
        held = steps.until_held()
        for _ in range(num_steps - 1):
            held = steps.one_more()
        assert set(held.phases) <= {phase, "waiting"}  # samples beside the first wait for the blocks of their prompt
        assert held.phases[phase]
        assert held.num_blocks_held
    assert steps.one_more() == ({}, 0, True)
    steps.let_go()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("n", [1, NUM_SEATS], ids="n={}".format)
def test_one_step_after_a_client_left_its_request_is_not_queued_and_others_go_on(stepped, n, stream):
    server, steps = stepped
    with client(server, steps, prompt=SHORT_PROMPT, n=NUM_SEATS):
        held = steps.until_held()
        while held.phases != {"decoding": NUM_SEATS}:
            held = steps.one_more()
        with client(server, steps, prompt=[9, 8, 7], n=n, stream=stream):
            assert steps.one_more().phases == {"decoding": NUM_SEATS, "waiting": n}
        assert steps.one_more() == held
    assert steps.one_more() == ({}, 0, True)
    steps.let_go()
