"""Requests that no client would send on purpose, from a seed: hostile bodies for every route, and broken HTTP."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from fuzzed_values import HostileValues, as_json, raw

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
_TURN = {"role": "user", "content": "hello"}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
_FUNCTION = {"name": "look", "parameters": _SCHEMA}
# A PNG of 8 x 8 black pixels.
_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAADElEQVR4nGNgoA4AAABIAAEuuDx+AAAAAElFTkSuQmCC"
_URL = f"data:image/png;base64,{_PNG}"
_SHOWN = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": _URL}}, {"type": "text", "text": "a"}]}
_SHOWN_BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PNG}}
# Bodies that are fine, one of which each hostile body begins with.
# An administrator's: the first two end or stop what others ask for, and the others answer 501 by what they say.
# Files and batches answer 404 without a folder for them.
_NOT_FUZZED = ("/pause", "/abort_requests", "/sleep", "/wake_up", "/v1/files", "/v1/batches")
GOOD_BODIES: dict[str, list[dict[str, Any]]] = {
    TEXT: [
        {"prompt": "hello", "max_tokens": 2},
        {"prompt": [[5, 6], [7]], "max_tokens": 2, "n": 2, "logprobs": 3, "echo": True},
        {"prompt": "hello", "max_tokens": 8, "stream": True, "stream_options": {"include_usage": True}},
    ],
    CHAT: [
        {"messages": [_TURN], "max_tokens": 2},
        {"messages": [_TURN], "max_tokens": 4, "stream": True, "logprobs": True, "top_logprobs": 2},
        {"messages": [_TURN], "max_tokens": 4, "tools": [{"type": "function", "function": _FUNCTION}]},
        {"messages": [_SHOWN, _TURN], "max_tokens": 2},
        {
            "messages": [_TURN],
            "max_tokens": 8,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}},
        },
    ],
    "/v1/responses": [
        {"input": "hello", "max_output_tokens": 16},
        {"input": [{"role": "user", "content": "a"}], "max_output_tokens": 16, "stream": True},
        {"input": "hello", "max_output_tokens": 16, "tools": [{"type": "function", **_FUNCTION}], "store": False},
        {
            "input": [{"role": "user", "content": [{"type": "input_image", "image_url": _URL}]}],
            "max_output_tokens": 16,
        },
    ],
    "/v1/messages": [
        {"messages": [_TURN], "max_tokens": 2},
        {"messages": [_TURN], "max_tokens": 4, "stream": True, "tools": [{"name": "look", "input_schema": _SCHEMA}]},
        {"messages": [{"role": "user", "content": [_SHOWN_BLOCK]}], "max_tokens": 2},
    ],
    "/v1/messages/count_tokens": [{"messages": [_TURN]}],
    "/v1/embeddings": [{"input": ["a", "b"]}],
    "/v1/score": [{"text_1": "a", "text_2": ["b", "c"]}],
    "/v1/rerank": [{"query": "a", "documents": ["b", "c"]}],
    "/classify": [{"input": ["a", "b"]}],
    "/v1/load_lora_adapter": [{"lora_name": "a", "lora_path": "/nowhere"}],
    "/v1/unload_lora_adapter": [{"lora_name": "a"}],
    "/tokenize": [{"prompt": "hello"}, {"messages": [_TURN]}, {"messages": [_SHOWN]}],
    "/detokenize": [{"tokens": [5, 6, 7]}],
}
_BUSY_ROUTES = (TEXT, CHAT, CHAT)
_NAMES = ["a b", "", "x" * 65, "é", "__class__", "self", "a\nb", "look", "look.", "functions.look", '"', "\0"]
_JSON_TYPE = "application/json"
_HEADERS = [
    ("content-type", "text/plain"),
    ("content-type", "application/json; charset=utf-16"),
    ("content-type", ""),
    ("content-encoding", "gzip"),
    ("host", "evil.example"),
    ("host", ""),
    ("expect", "100-continue"),
    ("authorization", "Bearer \x7f" + "x" * 5000),
    ("x-request-id", "a b"),
    ("x-request-id", "x" * 60_000),
    ("connection", "upgrade"),
    ("upgrade", "websocket"),
    ("content-length", "-1"),
    ("content-length", "1" * 30),
    ("transfer-encoding", "gzip, chunked"),
    ("transfer-encoding", "identity"),
    ("origin", "http://evil.example"),
    ("accept", "\xff"),
    ("range", "bytes=0-" + ",0-" * 500),
    ("no colon", "\x00"),
]


@dataclass(frozen=True)
class FuzzedRequest:
    """One request.

    Attributes:
        name: the shape that it has, and its place in the sequence.
        content: all bytes, of the head too.
        leaves_after: bytes of the answer after which the client closes its end; None where it reads all.
        ends_early: the client sends no more after `content`, although the server may wait for more.
        is_http: the request is complete and well formed, so that it must have an answer.
    """

    name: str
    content: bytes
    leaves_after: int | None = None
    ends_early: bool = False
    is_http: bool = True

    @property
    def summary(self) -> str:
        """The beginning, for people to send again."""
        return f"{self.name} ({len(self.content)} bytes): {self.content[:400]!r}"


class RequestFuzzer:
    """Draws requests; the same ones for the same `seed` and OpenAPI `document`. They carry the API key `key`.

    Args:
        longest_list: the most entries that a list of texts has; a server that takes thousands computes for seconds.
        most_tokens: the longest answer that a client who leaves asks for.
    """

    def __init__(
        self,
        document: dict[str, Any],
        seed: int,
        *,
        key: str,
        longest_list: int = 2048,
        most_tokens: int = 400,
    ) -> None:
        self._key = f"Bearer {key}"
        self._longest_list, self._most_tokens = longest_list, most_tokens
        self._draw = random.Random(seed)
        self._values = HostileValues(self._draw)
        routes = {path: operations for path, operations in document["paths"].items() if path not in _NOT_FUZZED}
        self._paths = {path: set(operations) for path, operations in routes.items()}
        self._fields = {
            path: operations["post"]["requestBody"]["content"][_JSON_TYPE]["schema"]["properties"]
            for path, operations in routes.items()
            if "requestBody" in operations.get("post", {})
        }
        missing = set(self._fields) ^ set(GOOD_BODIES)
        assert not missing, f"GOOD_BODIES and the routes that take a body differ in {missing}"
        self._place = 0

    def next(self) -> FuzzedRequest:
        """The next of the sequence."""
        self._place += 1
        shapes = {
            self._hostile_body: 66,
            self._long_lists: 4,
            self._bad_json: 6,
            self._left_early: 8,
            self._odd_head: 6,
            self._odd_path: 4,
            self._broken_http: 6,
        }
        [shape] = self._draw.choices(list(shapes), list(shapes.values()))
        return shape()

    def _hostile_body(self) -> FuzzedRequest:
        path, body = self._mutated()
        return self._post(f"hostile {path}", path, as_json(body).encode())

    def _long_lists(self) -> FuzzedRequest:
        """Many texts or lists of ids, each of them long: what a client may lay out in pairs, or have packed."""
        text = "a " * self._draw.choice([1, 100, 2000])
        count = min(self._longest_list, self._draw.choice([100, 1000, 2048]))
        ids = [[5, 6, 7] * self._draw.choice([1, 50])] * count
        path, body = self._draw.choice(
            [
                ("/v1/rerank", {"query": text, "documents": ["b"] * count}),
                ("/v1/rerank", {"query": "a", "documents": [text] * count}),
                ("/v1/score", {"text_1": [text] * count, "text_2": [text] * count}),
                ("/v1/embeddings", {"input": [text] * count}),
                ("/v1/embeddings", {"input": ids}),
                (TEXT, {"prompt": ids, "max_tokens": 1}),
                (TEXT, {"prompt": [text] * count, "max_tokens": 1}),
            ]
        )
        return self._post(f"long lists {path}", path, as_json(body).encode())

    def _bad_json(self) -> FuzzedRequest:
        path, body = self._mutated()
        text = as_json(body)
        content = text.encode()
        place = self._draw.randrange(max(1, len(content)))
        kinds = {
            "cut": content[:place],
            "trailing": content + b"}" * self._draw.choice([1, 1000]),
            "twice the same keys": (text[:-1] + "," + text[1:]).encode(),
            "a byte changed": content[:place] + bytes([self._draw.randrange(256)]) + content[place + 1 :],
            "utf-16": text.encode("utf-16"),
            "a byte order mark": b"\xef\xbb\xbf" + content,
            "no object": as_json(self._values.any()).encode(),
            "blanks": b" " * self._draw.choice([1, 1_000_000]) + content,
            "commas": b"[" + b"," * self._draw.choice([10, 600_000]),
        }
        kind = self._draw.choice(list(kinds))
        return self._post(f"bad json ({kind}) {path}", path, kinds[kind])

    def _left_early(self) -> FuzzedRequest:
        path = self._draw.choice([TEXT, CHAT, "/v1/responses", "/v1/messages"])
        body = dict(self._draw.choice(GOOD_BODIES[path])) | {"stream": self._draw.random() < 0.7}
        name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        body |= {
            name: min(self._most_tokens, self._draw.choice([20, 100, 400])),
            "request_id": self._draw.choice(["same", "other"]),
        }
        if path in (TEXT, CHAT):
            body |= {"n": self._draw.choice([1, 4, 16]), "ignore_eos": True}
        return self._post(
            f"left early {path}", path, as_json(body).encode(), leaves_after=self._draw.choice([0, 1, 300, 3000])
        )

    def _odd_head(self) -> FuzzedRequest:
        path = self._draw.choice(list(GOOD_BODIES))
        body = as_json(self._draw.choice(GOOD_BODIES[path])).encode()
        chosen = self._draw.sample(_HEADERS, self._draw.choice([1, 2, 3]))
        if self._draw.random() < 0.2:
            chosen += [(f"x-{index}", "y") for index in range(self._draw.choice([120, 200]))]
        method = self._draw.choice(
            ["POST"] * 6 + ["PUT", "OPTIONS", "DELETE", "HEAD", "PATCH", "TRACE", "POST\0", "post"]
        )
        return self._post(f"odd head {path}", path, body, headers=chosen, method=method, is_http=False)

    def _odd_path(self) -> FuzzedRequest:
        path = self._draw.choice([*self._paths, "/v1/nothing", "*", "//", "/v1/models/%00", "/docs", "/openapi.json"])
        name = self._draw.choice(["x", "..", "%2e%2e%2f", "resp_" + "a" * 40, "é".encode().hex(), "a" * 3000])
        path = path.replace("{name}", name).replace("{response_id}", name)
        if self._draw.random() < 0.3:
            path += "?" + self._draw.choice(["a=b", "%", "=&" * 1000, "limit=-1", "after=" + "x" * 2000, "stream=1"])
        method = self._draw.choice(["GET", "GET", "POST", "DELETE", "PUT", "HEAD"])
        return self._post(f"odd path {path[:40]}", path, b"", method=method, is_http=method != "HEAD")

    def _broken_http(self) -> FuzzedRequest:
        body = as_json(GOOD_BODIES[TEXT][0]).encode()
        start = f"POST {TEXT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {_JSON_TYPE}\r\n".encode()
        start += f"authorization: {self._key}\r\n".encode()
        chunked = start + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        chunk = b"%x\r\n%s\r\n" % (len(body), body)
        get = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
        length = b"content-length: %d\r\n\r\n"
        noise = bytes(self._draw.randrange(256) for _ in range(self._draw.choice([1, 50, 4000])))
        kinds = {
            "a body cut short": start + length % (len(body) + 100) + body,
            "a body too long": start + length % (len(body) - 5) + body,
            "no length": start + b"\r\n" + body,
            "two lengths": start + b"content-length: 5\r\n" + length % len(body) + body,
            "length and chunks": start + b"transfer-encoding: chunked\r\n" + length % len(body) + chunk + b"0\r\n\r\n",
            "trailers": chunked + chunk + b"0\r\n" + b"a: b\r\n" * self._draw.choice([1, 100, 5000]) + b"\r\n",
            "tiny chunks": chunked + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n",
            "a bad chunk": chunked + b"zz\r\n" + body,
            "a huge chunk": chunked + b"f" * self._draw.choice([8, 15, 40]) + b"\r\n" + body,
            "chunk extensions": chunked + b"%x;%s\r\n%s\r\n0\r\n\r\n" % (len(body), b"a" * 30_000, body),
            "pipelined": get * self._draw.choice([2, 16, 40, 2000]),
            "pipelined posts": (start + length % len(body) + body) * self._draw.choice([2, 12, 30]),
            "pipelined nonsense": get + noise + b"\r\n\r\n",
            "noise": noise,
            "only a head": start,
            "blank lines": b"\r\n" * self._draw.choice([3, 50_000]),
            "HTTP/1.0": start.replace(b"1.1", b"1.0") + length % len(body) + body,
            "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + noise,
            "folded headers": start + b"a: b\r\n c\r\n d\r\n" + length % len(body) + body,
            "a long URL": b"GET /"
            + b"a" * self._draw.choice([9000, 100_000])
            + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        }
        kind = self._draw.choice(list(kinds))
        return FuzzedRequest(
            f"{self._place} broken HTTP ({kind})", kinds[kind], is_http=False, ends_early=self._draw.random() < 0.5
        )

    def _mutated(self) -> tuple[str, dict[str, Any]]:
        path = self._draw.choice([*GOOD_BODIES, *_BUSY_ROUTES])
        body = dict(self._draw.choice(GOOD_BODIES[path]))
        fields = self._fields[path]
        for name in self._draw.sample(list(fields), min(len(fields), self._draw.choice([1, 1, 2, 3]))):
            how = self._draw.random()
            if how < 0.35:
                body[name] = self._values.of_schema(fields[name])
            elif how < 0.6 and (meant := self._meant_for(name)) is not None:
                body[name] = meant
            elif how < 0.7 and isinstance(body.get(name), list | dict):
                body[name] = self._changed_within(body[name])
            else:
                body[name] = self._values.any()
        if self._draw.random() < 0.05:
            body[self._draw.choice(_NAMES)] = self._values.any()
        return path, body

    def _meant_for(self, name: str) -> Any:
        """A value that makes trouble in this very field; None where there is none."""
        draw, values = self._draw, self._values
        tool = {"name": draw.choice(_NAMES), "description": values.plain(), "parameters": values.schema()}
        tools = [tool | {"type": "function", "function": tool, "input_schema": tool["parameters"]}]
        match name:
            case "structured_outputs":
                return values.constraint()
            case "response_format":
                kind = draw.choice(["json_schema", "json_object", "structural_tag", "text", "x"])
                return {"type": kind, "json_schema": {"name": draw.choice(_NAMES), "schema": values.schema()}}
            case "text":
                return {"format": {"type": "json_schema", "name": "a", "schema": values.schema()}}
            case "tools":
                return tools * draw.choice([1, 1, 2, 128])
            case "tool_choice":
                named = {"type": "function", "name": "look", "function": {"name": draw.choice(_NAMES)}}
                return draw.choice(["required", "none", "auto", "x", named, {"type": "any"}, {"type": "allowed_tools"}])
            case "logit_bias":
                keys = ["5", "-1", " 7", "٣", "1_0", "1e3", "9" * 5000, "511", "99999999"]
                return {key: draw.choice([0, 100, -101, "1", None]) for key in draw.sample(keys, 2)}
            case "stop" | "stop_sequences" | "bad_words":
                return draw.choice(["", ["", "a"], ["a"] * 17, ["x" * 257], ["é", "\0", " "], ["ab" * 128] * 16])
            case "chat_template_kwargs":
                return values.mapping()
            case "messages" | "input":
                return [self._turn() for _ in range(draw.choice([1, 2, 5, 300]))]
            case "request_id":
                return draw.choice(["same", "same", "other", "a b", "x" * 65, ""])
            case "previous_response_id":
                return draw.choice(["resp_same", "same", "", "x" * 5000])
            case "n" | "best_of":
                return draw.choice([2, 64, 512, 513, 2560, 65_536, 10**9])
            case "documents" | "text_1" | "text_2":
                many = ["a"] * self._longest_list
                return draw.choice([many, [""], ["x " * 20_000], [{"text": "a", "b": values.plain()}] * 3])
            case "prompt":
                many = ["a"] * self._longest_list
                return draw.choice([many, [[5]] * 2049, [5] * 511, [[]], "word " * 100_000, [5, "a"], [2**31]])
        return None

    def _turn(self) -> dict[str, Any]:
        draw = self._draw
        call = {
            "id": draw.choice(_NAMES),
            "type": "function",
            "function": {"name": "look", "arguments": draw.choice(["{", "{}", raw("7")])},
        }
        part = draw.choice(
            [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}},
                {
                    "type": "image_url",
                    "image_url": {"url": draw.choice([_URL, _URL[:-20], "data:,", "data:" + "x" * 9000])},
                },
                {"type": "input_image", "image_url": _URL},
                _SHOWN_BLOCK,
                {"type": "tool_use", "id": "1", "name": "look", "input": {"a": 1}},
                {"type": "tool_result", "tool_use_id": "1", "content": "x"},
                {"type": "input_text", "text": "\0"},
                self._values.plain(),
            ]
        )
        turn: dict[str, Any] = {"role": draw.choice(["user", "assistant", "system", "tool", "developer", "", "x" * 64])}
        turn["content"] = draw.choice(["a", "", None, [part], [part] * 50, 7])
        if draw.random() < 0.3:
            turn |= {"tool_calls": draw.choice([[call], [call] * 200, call, [None]]), "tool_call_id": "1"}
        if draw.random() < 0.2:
            turn |= {"type": draw.choice(["message", "reasoning", "function_call", "function_call_output", "x"])}
            turn |= {"call_id": "1", "name": "look", "arguments": "{", "output": "y", "summary": []}
        return turn

    def _changed_within(self, value: Any) -> Any:
        """A copy with a hostile value somewhere inside."""
        if isinstance(value, list) and value:
            place = self._draw.randrange(len(value))
            return [*value[:place], self._changed_within(value[place]), *value[place + 1 :]]
        if isinstance(value, dict) and value:
            name = self._draw.choice(list(value))
            return value | {name: self._changed_within(value[name])}
        return self._values.any()

    def _post(
        self,
        name: str,
        path: str,
        body: bytes,
        *,
        method: str = "POST",
        headers: list[tuple[str, str]] | None = None,
        **how: Any,
    ) -> FuzzedRequest:
        given = {"host": "localhost", "content-type": _JSON_TYPE, "connection": "close"}
        given |= {"authorization": self._key}
        given |= {"content-length": str(len(body))} | dict(headers or [])
        head = "".join(f"{key}: {value}\r\n" for key, value in given.items())
        content = f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1", "replace") + body
        return FuzzedRequest(f"{self._place} {name}", content, **how)
