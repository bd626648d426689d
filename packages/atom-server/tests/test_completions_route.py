"""Text completions: prompts of every form, echo and logprobs, and what lm-eval needs of them."""

from __future__ import annotations

import json

import httpx
import pytest

TEXT = "The capital of France is"


def complete(server, prompt: str | list = TEXT, **fields):
    answer = server.post("/v1/completions", **({"prompt": prompt, "max_tokens": 6, "temperature": 0} | fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


def tokens_of(server, text, special=True):
    return server.post("/tokenize", prompt=text, add_special_tokens=special).json()["tokens"]


def chunks_of(server, **fields):
    body = {"prompt": TEXT, "max_tokens": 6, "temperature": 0, "stream": True} | fields
    lines = httpx.post(server.url + "/v1/completions", json=body).text.split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def test_a_completion_has_the_shape_that_clients_expect(client):
    answer = client.completions.create(model="tiny", prompt=TEXT, max_tokens=6, temperature=0)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].text
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_token_ids_and_text_give_the_same(server):
    assert complete(server, tokens_of(server, TEXT))["choices"] == complete(server)["choices"]


def test_a_list_of_prompts_gives_what_each_gives_alone(server):
    prompts = [TEXT, "Once upon a time", "1 2 3"]
    together = complete(server, prompts)
    alone = [complete(server, prompt) for prompt in prompts]
    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2]
    assert [choice["text"] for choice in together["choices"]] == [answer["choices"][0]["text"] for answer in alone]
    total = sum(answer["usage"]["prompt_tokens"] for answer in alone)
    assert together["usage"]["prompt_tokens"] == total


def test_texts_and_token_ids_mix_in_a_list(server):
    choices = complete(server, [TEXT, tokens_of(server, TEXT)])["choices"]
    assert choices[0]["text"] == choices[1]["text"]


def test_samples_of_several_prompts_are_numbered_prompt_by_prompt(server):
    fields = {"n": 2, "temperature": 1.0, "seed": 11}
    together = complete(server, [TEXT, "Once"], **fields)["choices"]
    assert [choice["index"] for choice in together] == [0, 1, 2, 3]
    assert [choice["text"] for choice in together[2:]] == [
        c["text"] for c in complete(server, "Once", **fields)["choices"]
    ]


def test_a_stream_says_what_the_whole_answer_says(server):
    prompts = [TEXT, "Once upon a time"]
    whole = complete(server, prompts)["choices"]
    chunks = chunks_of(server, prompt=prompts, stream_options={"include_usage": True})
    for choice in whole:
        news = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(c["text"] for c in news) == choice["text"]
        assert news[-1]["finish_reason"] == choice["finish_reason"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 0


def test_echo_begins_with_the_prompt_whole_and_streamed(server):
    plain = complete(server)["choices"][0]["text"]
    assert complete(server, echo=True)["choices"][0]["text"] == TEXT + plain
    streamed = "".join(choice["text"] for chunk in chunks_of(server, echo=True) for choice in chunk["choices"])
    assert streamed == TEXT + plain


def test_echo_of_token_ids_is_their_text(server):
    ids = tokens_of(server, TEXT, special=False)
    assert complete(server, ids, echo=True)["choices"][0]["text"].startswith(TEXT)


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 0}, {"n": 2, "temperature": 1, "seed": 1}])
def test_streamed_echo_logprobs_equal_whole_ones(server, fields):
    fields = {"echo": True, "logprobs": 2} | fields
    whole = complete(server, **fields)["choices"][-1]["logprobs"]
    last = fields.get("n", 1) - 1
    choices = [choice for chunk in chunks_of(server, **fields) for choice in chunk["choices"]]
    parts = [choice["logprobs"] for choice in choices if choice["index"] == last and choice["logprobs"]]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for part in parts for value in part[name]] == whole[name]


def test_max_tokens_0_with_echo_gives_the_prompts_logprobs_alone(server):
    choice = complete(server, echo=True, logprobs=1, max_tokens=0)["choices"][0]
    assert choice["text"] == TEXT
    assert choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["tokens"]) == len(tokens_of(server, TEXT))


def test_prompt_logprobs_are_keyed_by_token_id(server):
    ids = tokens_of(server, TEXT)
    rows = complete(server, prompt_logprobs=2)["choices"][0]["prompt_logprobs"]
    assert rows[0] is None
    assert len(rows) == len(ids)
    for token_id, row in zip(ids[1:], rows[1:], strict=True):
        assert row[str(token_id)]["logprob"] <= 0
        assert 2 <= len(row) <= 3


def test_samples_share_their_prompts_logprobs(server):
    choices = complete(server, n=2, temperature=1.0, prompt_logprobs=1)["choices"]
    assert choices[0]["prompt_logprobs"] == choices[1]["prompt_logprobs"] != []


def test_logit_bias_forces_a_token(server):
    token_id = tokens_of(server, "capital", special=False)[0]
    answer = complete(server, logit_bias={str(token_id): 100}, logprobs=0, max_tokens=2, ignore_eos=True)
    text = server.post("/detokenize", tokens=[token_id]).json()["prompt"]
    assert answer["choices"][0]["text"] == text * 2


def test_allowed_token_ids_are_the_only_ones(server):
    ids = tokens_of(server, "abc", special=False)
    answer = complete(server, allowed_token_ids=ids, temperature=1.0, logprobs=0, max_tokens=12)
    allowed = {server.post("/detokenize", tokens=[token_id]).json()["prompt"] for token_id in ids}
    assert set(answer["choices"][0]["logprobs"]["tokens"]) <= allowed


def test_a_stop_token_id_ends(server):
    first = complete(server, logprobs=0, max_tokens=1)["choices"][0]["logprobs"]["tokens"][0]
    token_id = tokens_of(server, first, special=False)
    if len(token_id) != 1:
        pytest.skip("the first token does not survive a round trip through text")
    answer = complete(server, stop_token_ids=token_id)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == token_id[0]
    assert answer["usage"]["completion_tokens"] == 1
    *_, last = [chunk["choices"][0] for chunk in chunks_of(server, stop_token_ids=token_id) if chunk["choices"]]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", token_id[0])


class TestTheContractOfLmEval:
    """Loglikelihood requests as the harness sends them, read as it reads them."""

    def request(self, server, contexts_and_continuations):
        prompts = [context + continuation for context, continuation in contexts_and_continuations]
        return server.post(
            "/v1/completions",
            model="tiny", prompt=prompts, temperature=0, max_tokens=1, logprobs=1, seed=1234, echo=True,
        ).json()  # fmt: skip

    def parse(self, answer, context_lengths):
        results = []
        for choice, length in zip(sorted(answer["choices"], key=lambda c: c["index"]), context_lengths, strict=True):
            logprobs = choice["logprobs"]["token_logprobs"][length:-1]
            tops = choice["logprobs"]["top_logprobs"][length:-1]
            greedy = all(token == max(top.values()) for token, top in zip(logprobs, tops, strict=True))
            results.append((sum(logprobs), greedy))
        return results

    def test_lists_are_parallel_and_cover_prompt_and_one_token(self, server):
        pair = (tokens_of(server, TEXT), tokens_of(server, " Paris", special=False))
        logprobs = self.request(server, [pair])["choices"][0]["logprobs"]
        assert {len(values) for values in logprobs.values()} == {len(pair[0]) + len(pair[1]) + 1}
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        for token, value, top in list(
            zip(*[logprobs[k] for k in ("tokens", "token_logprobs", "top_logprobs")], strict=True)
        )[1:]:
            assert token in top
            assert max(top.values()) >= value

    def test_a_greedy_continuation_is_known_as_greedy_and_another_is_not(self, server):
        context = tokens_of(server, TEXT)
        generated = complete(server, context, max_tokens=3, logprobs=0, ignore_eos=True)
        ids = self.greedy_ids(server, context, 3)
        others = [(token_id + 7) % 500 for token_id in ids]
        assert len(generated["choices"][0]["logprobs"]["tokens"]) == 3
        (_, is_greedy), (_, other_is_greedy) = self.parse(
            self.request(server, [(context, ids), (context, others)]), [len(context)] * 2
        )
        assert is_greedy
        assert not other_is_greedy

    def test_sums_equal_the_logprobs_of_generating_the_same(self, server):
        context = tokens_of(server, TEXT)
        ids = self.greedy_ids(server, context, 3)
        generated = complete(server, context, max_tokens=3, logprobs=0, ignore_eos=True)["choices"][0]["logprobs"]
        [(total, _)] = self.parse(self.request(server, [(context, ids)]), [len(context)])
        assert total == pytest.approx(sum(generated["token_logprobs"]), abs=1e-4)

    def test_many_prompts_of_different_lengths_keep_their_order(self, server):
        texts = ["one", "one two three", "a b c d e f g h", "x"]
        pairs = [(tokens_of(server, text), tokens_of(server, " end", special=False)) for text in texts]
        lengths = [len(context) for context, _ in pairs]
        together = self.parse(self.request(server, pairs), lengths)
        alone = [self.parse(self.request(server, [pair]), [len(pair[0])])[0] for pair in pairs]
        assert [value for value, _ in together] == pytest.approx([value for value, _ in alone], abs=1e-4)

    def test_the_servers_tokenizer_can_stand_in_for_a_local_one(self, server):
        info = httpx.get(server.url + "/tokenizer_info").json()
        assert isinstance(info["eos_token"], str)
        assert "chat_template" in info
        assert len(tokens_of(server, info["eos_token"], special=False)) == 1

    def greedy_ids(self, server, context, count):
        """Ids of the greedy continuation, one at a time, through prompt_logprobs of rank 1."""
        ids = []
        for _ in range(count):
            rows = server.post(
                "/v1/completions", prompt=[*context, *ids, 5], max_tokens=1, temperature=0, prompt_logprobs=1
            ).json()["choices"][0]["prompt_logprobs"]
            ids.append(next(int(token_id) for token_id, entry in rows[-1].items() if entry["rank"] == 1))
        return ids
