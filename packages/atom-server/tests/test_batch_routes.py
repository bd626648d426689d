"""`/v1/files` and `/v1/batches`: from a file to its answers, for each key alone, and on with it after a restart."""

from __future__ import annotations

import json
import time

import httpx
import msgspec
import openai
import pytest

from atom_server import ServerOptions
from atom_server.batches import store as bounds
from atom_server.batches.folder import BatchFolder, new_id
from atom_server.batches.journal import Answer, Journal, entry_of
from atom_server.batches.lines import BatchLine
from atom_server.batches.objects import BatchObject, FileObject, StoredBatch, StoredFile
from atom_server.routes import files as file_routes
from running_server import Front

ROUTE = "/v1/completions"
ENDED = {"completed", "failed", "cancelled", "expired"}


def request(custom_id, prompt="hello", **fields):
    body = {"prompt": prompt, "max_tokens": 2} | fields
    return {"custom_id": custom_id, "method": "POST", "url": ROUTE, "body": body}


def jsonl(*lines):
    return "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines).encode()


def options(folder, **settings):
    return ServerOptions(served_model_name="tiny", batch_folder=str(folder), **settings)


@pytest.fixture(scope="module")
def front(server, tmp_path_factory):
    with Front(server, options(tmp_path_factory.mktemp("batches"), api_key="alice,bob")) as running:
        yield running


def client_of(front, key="alice"):
    return openai.OpenAI(base_url=front.url + "/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def alice(front):
    with client_of(front) as client:
        yield client


def upload(client, *lines):
    return client.files.create(file=("requests.jsonl", jsonl(*lines)), purpose="batch")


def begun(client, *lines, endpoint=ROUTE):
    file = upload(client, *lines)
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


def ended(client, batch_id):
    deadline = time.monotonic() + 60
    while (batch := client.batches.retrieve(batch_id)).status not in ENDED:
        assert time.monotonic() < deadline, batch
        time.sleep(0.02)
    return batch


def content(client, file_id):
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def code_of(caught):
    return caught.value.status_code, caught.value.code


def test_openais_client_goes_from_a_file_to_its_answers(alice):
    file = upload(alice, request("a"), request("b", max_tokens=3))
    assert (file.purpose, file.filename, alice.files.retrieve(file.id)) == ("batch", "requests.jsonl", file)
    made = alice.batches.create(
        input_file_id=file.id, endpoint=ROUTE, completion_window="24h", metadata={"of": "night"}
    )
    assert made.status in ("validating", "in_progress")
    batch = ended(alice, made.id)
    assert (batch.status, batch.metadata, batch.error_file_id) == ("completed", {"of": "night"}, None)
    assert batch.request_counts.to_dict() == {"total": 2, "completed": 2, "failed": 0}
    answers = {line["custom_id"]: line["response"] for line in content(alice, batch.output_file_id)}
    assert {name: answer["body"]["usage"]["completion_tokens"] for name, answer in answers.items()} == {"a": 2, "b": 3}
    assert alice.files.retrieve(batch.output_file_id).purpose == "batch_output"
    assert batch.id in [each.id for each in alice.batches.list(limit=100)]
    assert alice.files.delete(file.id).deleted
    assert file.id not in [each.id for each in alice.files.list()]


def test_a_bad_line_is_a_line_of_errors_and_nothing_else(alice):
    lines = (
        *("{", request("n", n=-1), request("a"), request("a"), {"custom_id": "w", "url": "/health", "body": {}}),
        *({"url": ROUTE, "body": {"prompt": "x"}}, request("s", stream=True)),
    )
    batch = ended(alice, begun(alice, *lines).id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 1, 6)
    errors = {line["line"]: line for line in content(alice, batch.error_file_id)}
    assert errors[2]["response"]["body"]["error"]["param"] == "n"
    said = {number: error["error"]["message"] for number, error in errors.items() if error["error"]}
    assert said[1].startswith("the line is not valid JSON")
    assert said[4] == "its custom_id 'a' is that of line 3: give each its own"
    assert said[5] == "it asks for 'POST' '/health'; allowed is 'POST' with one of /v1/completions"
    assert said[6].startswith("custom_id is None")
    assert said[7] == "stream is true; answers of a batch are whole"


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 1}),
        ("/v1/embeddings", {"input": "hi"}),
    ],
)
def test_every_route_of_batches_answers(endpoint, body, alice):
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
    batch = ended(alice, begun(alice, line, endpoint=endpoint).id)
    [answer] = content(alice, batch.output_file_id)
    assert answer["response"]["status_code"] == 200


def test_a_file_without_lines_fails(alice):
    batch = ended(alice, begun(alice, "", " ").id)
    assert batch.status == "failed"
    assert "the file has 0 requests" in batch.errors.data[0].message


def test_what_was_answered_before_a_cancel_is_kept(alice):
    slow = [request(f"slow-{number}", max_tokens=400, ignore_eos=True, n=8) for number in range(60)]
    made = begun(alice, request("quick", max_tokens=1), *slow)
    while not alice.batches.retrieve(made.id).request_counts.completed:
        time.sleep(0.01)
    assert alice.batches.cancel(made.id).status in ("cancelling", "cancelled")
    batch = ended(alice, made.id)
    assert batch.status == "cancelled"
    names = [line["custom_id"] for line in content(alice, batch.output_file_id)]
    assert "quick" in names
    assert len(set(names)) == len(names) == batch.request_counts.completed < 61


def test_a_key_sees_its_own_files_and_batches_alone(front, alice):
    batch = ended(alice, begun(alice, request("a")).id)
    with client_of(front, "bob") as bob:
        for asked in (
            lambda: bob.files.retrieve(batch.input_file_id),
            lambda: bob.files.content(batch.output_file_id),
            lambda: bob.files.delete(batch.input_file_id),
            lambda: bob.batches.create(input_file_id=batch.input_file_id, endpoint=ROUTE, completion_window="24h"),
        ):
            with pytest.raises(openai.NotFoundError) as caught:
                asked()
            assert code_of(caught) == (404, "file_not_found")
        for asked in (bob.batches.retrieve, bob.batches.cancel):
            with pytest.raises(openai.NotFoundError) as caught:
                asked(batch.id)
            assert code_of(caught) == (404, "batch_not_found")
        assert (list(bob.files.list()), list(bob.batches.list())) == ([], [])


def test_lists_come_in_pages(front, alice):
    made = [upload(alice, request("a")).id for _ in range(3)]
    first = alice.files.list(limit=2)
    assert [file.id for file in first.data] == [made[2], made[1]]
    assert first.has_more
    assert alice.files.list(limit=2, after=made[1]).data[0].id == made[0]


def test_names_never_become_paths(front):
    for name in ("..%2F..%2Flock", "lock", "file-" + "0" * 32, "%00"):
        answer = httpx.get(f"{front.url}/v1/files/{name}/content", headers={"authorization": "Bearer alice"})
        assert answer.status_code == 404


def test_without_a_folder_the_routes_say_how_to_turn_them_on(server):
    for answer in (
        httpx.get(server.url + "/v1/files"),
        httpx.post(server.url + "/v1/batches", json={}),
        httpx.post(server.url + "/v1/files", files={"file": b"{}"}, data={"purpose": "batch"}),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "batches_are_off")
        assert "--batch-folder DIR" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("sent", "status", "param"),
    [
        ({"files": {"file": b"{}"}, "data": {"purpose": "fine-tune"}}, 400, "purpose"),
        ({"files": {"file": b"{}"}}, 400, "purpose"),
        ({"files": {"other": b"{}"}, "data": {"purpose": "batch"}}, 400, "file"),
        ({"content": b"--x\r\n", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 400, "file"),
        ({"content": b"???", "headers": {"content-type": "multipart/form-data; boundary=x"}}, 400, None),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400, None),
        ({"json": {"purpose": "batch"}}, 415, None),
    ],
)
def test_what_is_no_file_for_a_batch_is_refused(sent, status, param, front):
    headers = {"authorization": "Bearer alice"} | sent.pop("headers", {})
    answer = httpx.post(front.url + "/v1/files", headers=headers, **sent)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


def test_a_file_has_no_more_bytes_than_it_may(alice, monkeypatch):
    monkeypatch.setattr(file_routes, "MAX_FILE_BYTES", 100)
    with pytest.raises(openai.APIStatusError, match="larger than 100 bytes") as caught:
        upload(alice, "x" * 200)
    assert caught.value.status_code == 413


def test_a_key_has_no_more_files_and_open_batches_than_it_may(alice, monkeypatch):
    file = upload(alice, request("a"))
    monkeypatch.setattr(bounds, "MAX_OPEN_BATCHES", 0)
    with pytest.raises(openai.RateLimitError) as caught:
        alice.batches.create(input_file_id=file.id, endpoint=ROUTE, completion_window="24h")
    assert code_of(caught) == (429, "too_many_batches")
    monkeypatch.setattr(bounds, "MAX_FILES", 1)
    with pytest.raises(openai.BadRequestError) as caught:
        upload(alice, request("a"))
    assert code_of(caught) == (400, "too_many_files")


# Another server with the folder.


class Left:
    """A folder as a server leaves it that was ended in the middle of a batch."""

    def __init__(self, path, *lines, owner="", answered=(), **fields):
        now = int(time.time())
        self.file = FileObject(id=new_id("file-"), bytes=len(jsonl(*lines)), filename="r", purpose="batch")
        public = {"endpoint": ROUTE, "input_file_id": self.file.id, "created_at": now, "expires_at": now + 60}
        batch = BatchObject(id=new_id("batch_"), **(public | {"status": "in_progress"} | fields))
        batch.request_counts.total = len(lines)
        self.batch = StoredBatch(owner, batch, new_id("file-"), new_id("file-"))
        folder = BatchFolder(path)
        folder.content_path(self.file.id).write_bytes(jsonl(*lines))
        folder.save(StoredFile(owner, self.file))
        folder.save(self.batch)
        output = folder.content_path(self.batch.output_id)
        with Journal(output, "number") as journal:
            for number in answered:
                line = BatchLine(lines[number - 1]["custom_id"], ROUTE, {}, number)
                journal.add(line, entry_of(line, Answer(200, "earlier", b"{}")), 200)
        with output.open("ab") as file:
            file.write(b'{"id": "batch_req_')
        folder.close()


def test_a_batch_goes_on_after_a_restart_without_a_line_lost_or_repeated(server, tmp_path):
    lines = [request(str(number)) for number in range(6)]
    left = Left(tmp_path, *lines, answered=(1, 3))
    with Front(server, options(tmp_path)) as front, client_of(front) as client:
        batch = ended(client, left.batch.public.id)
        assert (batch.status, batch.request_counts.completed, batch.error_file_id) == ("completed", 6, None)
        answers = content(client, batch.output_file_id)
        assert sorted(answer["custom_id"] for answer in answers) == [str(number) for number in range(6)]
        earlier = {line["custom_id"] for line in answers if line["response"]["request_id"] == "earlier"}
        assert earlier == {"0", "2"}


def test_after_a_restart_what_had_ended_is_there(server, tmp_path):
    with Front(server, options(tmp_path)) as front, client_of(front) as client:
        batch = ended(client, begun(client, request("a")).id)
    with Front(server, options(tmp_path)) as front, client_of(front) as client:
        assert client.batches.retrieve(batch.id) == batch
        assert len(content(client, batch.output_file_id)) == 1


def test_what_was_not_answered_when_a_batch_expires_is_an_error(server, tmp_path):
    left = Left(tmp_path, request("a"), request("b"), answered=(1,), expires_at=int(time.time()) - 1)
    with Front(server, options(tmp_path)) as front, client_of(front) as client:
        batch = ended(client, left.batch.public.id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("expired", 1, 1)
        [error] = content(client, batch.error_file_id)
        assert (error["custom_id"], error["error"]["code"]) == ("b", "batch_expired")


def test_a_batch_whose_key_is_gone_waits(server, tmp_path):
    left = Left(tmp_path, request("a"), owner="gone")
    with Front(server, options(tmp_path)) as front, client_of(front) as client:
        assert list(client.batches.list()) == []
        ended(client, begun(client, request("b")).id)
    stored = msgspec.json.decode((tmp_path / "batches" / f"{left.batch.public.id}.json").read_bytes())
    assert stored["public"]["status"] == "in_progress"


def test_answers_that_find_no_room_end_a_batch(server, tmp_path):
    with Front(server, options(tmp_path, batch_folder_mb=0.0025)) as front, client_of(front) as client:
        batch = ended(client, begun(client, *(request(str(number)) for number in range(8))).id)
        assert (batch.status, batch.errors.data[0].code) == ("failed", "no_room")
        assert batch.request_counts.completed == len(content(client, batch.output_file_id)) < 8
        with pytest.raises(openai.APIStatusError, match="--batch-folder-mb") as caught:
            upload(client, request("x" * 2000))
        assert code_of(caught) == (413, "no_room")


def test_lines_of_batches_have_fewer_than_half_of_the_places(server, tmp_path):
    share = server.state.batch_share.num_samples
    assert 2 * share < server.engine.info.max_num_seqs
    with Front(server, options(tmp_path)) as front, client_of(front) as client:
        batch = ended(client, begun(client, request("wide", n=share + 1)).id)
        [error] = content(client, batch.error_file_id)
        assert f"lines of batches may have {share}" in error["response"]["body"]["error"]["message"]
