"""Responses in the background: nobody waits for them, so they take fewer than half of the engine's places."""

from __future__ import annotations

from atom_server import ServerOptions

# Drawn tokens may end the text at once, and free a place before the next is asked for.
ASKED = {"input": "Hello", "max_output_tokens": 400, "background": True, "temperature": 0}


def test_they_take_fewer_than_half_of_the_places(make_server):
    with make_server(ServerOptions(), max_num_seqs=6) as narrow:
        answers = [narrow.post("/v1/responses", **ASKED) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 503, 503]
        assert answers[-1].json()["error"]["code"] == "queue_full"
        assert int(answers[-1].headers["retry-after"]) > 0
        assert narrow.post("/v1/completions", prompt="x", max_tokens=4, n=4).status_code == 200
        for answer in answers[:2]:
            narrow.post(f"/v1/responses/{answer.json()['id']}/cancel")
        narrow.wait_until_idle()
        assert narrow.post("/v1/responses", **ASKED).status_code == 200
