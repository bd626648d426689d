"""Pictures of addresses: fetched from servers that are allowed, within limits, and never from a private network."""

from __future__ import annotations

import asyncio
import http.server
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from types import SimpleNamespace

import pytest

from atom_core.config.options import ConfigError
from atom_core.models import VisionSpec
from atom_server import ServerOptions
from atom_server.errors import APIError
from atom_server.media_domains import MediaDomains
from atom_server.pictures.data_url import PictureError
from atom_server.pictures.decoder import PictureDecoder
from atom_server.pictures.fetching.addresses import Address, is_public
from atom_server.pictures.fetching.fetcher import Fetcher, FetchLimits
from atom_server.pictures.limits import PictureLimits
from pictures import file_of, two_colors

PNG = file_of(two_colors())
HALF = (0.5, 0.5, 0.5)
SPEC = VisionSpec(5, 6, 7, 16, 2, min_pixels=32 * 32, max_pixels=64 * 64, mean=HALF, std=HALF)
LIMITS = FetchLimits(num_bytes=100_000, seconds=5)
HOME = ip_address("127.0.0.1")


class Answers(http.server.BaseHTTPRequestHandler):
    """A server of pictures, and of other things; it writes down what it was asked."""

    server: QuietServer

    def do_GET(self) -> None:
        self.server.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        path, _, more = self.path.partition("?")
        getattr(self, path.strip("/"))(more)

    def picture(self, _: str) -> None:
        self.answer(200, PNG)

    def to(self, target: str) -> None:
        self.answer(302, b"", Location=target, Set_Cookie="a=1")

    def round(self, _: str) -> None:
        self.to("/round")

    def missing(self, _: str) -> None:
        self.answer(404, b"secret")

    def packed(self, _: str) -> None:
        self.answer(200, bytes(100), Content_Encoding="gzip")

    def large(self, _: str) -> None:
        self.answer(200, b"", Content_Length="100001")

    def endless(self, _: str) -> None:
        self.send_response(200)
        self.end_headers()
        while True:
            self.wfile.write(bytes(65536))

    def drops(self, _: str) -> None:
        """The head of the answer, a letter at a time, for as long as somebody reads."""
        for _letter in range(400):
            self.wfile.write(b"H")
            self.wfile.flush()
            time.sleep(0.05)

    def answer(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in ({"Content_Length": str(len(content))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class QuietServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((str(HOME), 0), Answers)
        self.asked: list[tuple[str, dict[str, str]]] = []

    def handle_error(self, *_: object) -> None:
        """Clients that leave are no matter."""


@pytest.fixture
def pictures() -> Iterator[QuietServer]:
    with QuietServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def names(**addresses: str) -> Callable[[str, int], Sequence[Address]]:
    """A resolver of these names: many addresses are separated by blanks."""
    table = {name.replace("_", "."): [ip_address(each) for each in text.split()] for name, text in addresses.items()}
    return lambda host, port: table[host]


def fetcher(server: QuietServer, *more: str, resolve=None, limits: FetchLimits = LIMITS, allows_home: bool = True):
    """One that may ask `img.example` at the port of the server; this machine counts as public where `allows_home`."""
    entries = [f"img.example:{server.server_port}", *more]
    judge = (lambda address: address == HOME or is_public(address)) if allows_home else is_public
    return Fetcher(MediaDomains(entries), limits, judge=judge, resolve=resolve or names(img_example=str(HOME)))


def url(server: QuietServer, path: str = "picture", host: str = "img.example") -> str:
    return f"http://{host}:{server.server_port}/{path}"


def fetched(one: Fetcher, address: str) -> bytes:
    return asyncio.run(one.fetch(address))


def refusal(one: Fetcher, address: str) -> str:
    with pytest.raises(PictureError) as caught:
        fetched(one, address)
    assert "secret" not in str(caught.value)
    return str(caught.value)


def test_a_picture_of_an_allowed_server_is_fetched_and_decoded(pictures):
    decoder = PictureDecoder(SPEC, PictureLimits(4, 1 << 20, 1_000_000), fetcher(pictures))
    try:
        [image] = asyncio.run(decoder.decode([url(pictures)], num_tokens=10))
        with pytest.raises(APIError, match="picture 1 of 1: its server answers with status 404") as caught:
            asyncio.run(decoder.decode([url(pictures, "missing")], num_tokens=10))
    finally:
        decoder.close()
    assert (image.height, image.width) == (32, 64)
    assert (caught.value.status, caught.value.code) == (400, "invalid_image")
    [(_, headers), _] = pictures.asked
    assert headers["host"] == f"img.example:{pictures.server_port}"


def test_a_redirect_is_followed_without_cookies(pictures):
    target = url(pictures, "to?/picture")
    assert fetched(fetcher(pictures), target) == PNG
    assert [path for path, _ in pictures.asked] == ["/to?/picture", "/picture"]
    assert not any({"cookie", "authorization", "referer"} & headers.keys() for _, headers in pictures.asked)


NOT_ASKED = {
    "another server": ("http://other.example/a", "other.example is not among"),
    "another port of an allowed server": ("http://img.example:22/a", "img.example:22 is not among"),
    "the scheme's port, where another one is named": ("http://img.example/a", "is not among"),
    "a password": ("http://a:b@img.example/a", "user's name or password"),
    "a name before what looks like an allowed server": ("http://img.example@other.example/", "name or password"),
    "a name that ends like an allowed one": ("http://evilimg.example/a", "evilimg.example is not among"),
    "a name that begins like an allowed one": ("http://img.example.evil.example/a", "is not among"),
    "another scheme": ("ftp://img.example/a", "http and https are fetched"),
    "no server": ("http:///a", "no URL"),
    "a long one": ("http://img.example/" + "a" * 5000, "no URL of at most 4096"),
    "controls": ("http://img.example/\r\nHost: other", "no URL"),
}


@pytest.mark.parametrize(("address", "reason"), NOT_ASKED.values(), ids=NOT_ASKED)
def test_nothing_but_allowed_servers_is_asked(pictures, address, reason):
    one = fetcher(pictures)
    assert reason in refusal(one, address)
    target = url(pictures, "to?") + address
    if "\r" not in address and len(address) < 4000 and address != "http:///a":
        assert reason in refusal(one, target)  # a redirect is judged as what a client sends
        assert [path.partition("?")[0] for path, _ in pictures.asked] == ["/to"]


PRIVATE = (
    *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1"),
    *("169.254.169.254", "224.0.0.1", "255.255.255.255", "198.18.0.1", "240.0.0.1", "192.0.2.1"),
    *("::1", "::", "fe80::1", "fe80::1%2", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::a9fe:a9fe"),
    *("64:ff9b:1::1", "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2"),
)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_not_asked_however_they_are_written(address):
    assert not is_public(ip_address(address))
    one = Fetcher(MediaDomains(["*"]), LIMITS, resolve=lambda host, port: [ip_address("8.8.8.8"), ip_address(address)])
    assert "not public" in refusal(one, "http://a.example/")  # one that is not is enough


def test_public_addresses_are():
    for address in ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"):
        assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "017700000001", "localhost", "[::1]", "[::ffff:7f00:1]"]
)
def test_this_machine_is_not_asked_by_any_of_its_names(pictures, host):
    one = Fetcher(MediaDomains(["*", f"*:{pictures.server_port}"]), LIMITS)
    message = refusal(one, url(pictures, host=host))
    assert "not public" in message or "not known" in message
    assert not pictures.asked


def test_a_redirect_into_a_private_network_is_not_followed(pictures):
    resolve = names(img_example=str(HOME), inner_example="169.254.169.254")
    one = fetcher(pictures, "inner.example", resolve=resolve)
    assert "inner.example has an address that is not public" in refusal(one, url(pictures, "to?http://inner.example/"))


def test_a_name_is_resolved_once_and_the_connection_goes_there(pictures):
    """A name that means another address the second time (rebinding)."""
    answers = iter([[HOME], [ip_address("10.0.0.1")]])
    one = fetcher(pictures, resolve=lambda host, port: next(answers))
    assert fetched(one, url(pictures)) == PNG
    assert list(answers) == [[ip_address("10.0.0.1")]]  # nobody asked again


def test_the_flag_alone_lets_nobody_ask_this_machine(pictures):
    options = ServerOptions(allowed_media_domains=f"127.0.0.1:{pictures.server_port}")
    decoder = PictureDecoder.of(SimpleNamespace(images=SPEC), options)  # type: ignore[arg-type]
    assert decoder is not None
    with pytest.raises(APIError, match=r"127\.0\.0\.1 has an address that is not public"):
        asyncio.run(decoder.decode([url(pictures, host="127.0.0.1")], num_tokens=10))
    decoder.close()


def test_proxies_of_the_surroundings_are_not_asked(pictures, monkeypatch):
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert fetched(fetcher(pictures), url(pictures)) == PNG


LIMITED = {
    "too many redirects": ("round", "more than 3 times"),
    "a status": ("missing", "status 404"),
    "a compressed file": ("packed", "compresses"),
    "a length that is too much": ("large", "more than 100000 bytes"),
    "a file without an end": ("endless", "more than 100000 bytes"),
}


@pytest.mark.parametrize(("path", "reason"), LIMITED.values(), ids=LIMITED)
def test_what_is_too_much_is_refused(pictures, path, reason):
    assert reason in refusal(fetcher(pictures), url(pictures, path))
    assert len(pictures.asked) <= 4


def test_a_server_that_drips_is_left_in_time(pictures):
    started = time.monotonic()
    one = fetcher(pictures, limits=FetchLimits(100_000, seconds=0.3))
    assert "more than 0.3 s" in refusal(one, url(pictures, "drops"))
    assert time.monotonic() - started < 3


def test_a_decoder_ends_what_it_fetches_for_a_client_that_leaves(pictures):
    decoder = PictureDecoder(SPEC, PictureLimits(4, 1 << 20, 1_000_000), fetcher(pictures))

    async def leave() -> float:
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(decoder.decode([url(pictures, "drops")], num_tokens=10), 0.2)
        return time.monotonic() - started

    assert asyncio.run(leave()) < 2
    decoder.close()


@pytest.mark.parametrize(
    ("entry", "host", "port", "allowed"),
    [
        ("img.example", "img.example", None, True),
        ("IMG.example", "img.example", 443, True),
        ("img.example", "a.img.example", None, False),
        ("img.example", "img.example", 80, False),  # of https
        ("*.img.example", "a.b.img.example", None, True),
        ("*.img.example", "img.example", None, False),
        ("*.img.example", "eimg.example", None, False),
        ("*", "anything", None, True),
        ("*", "anything", 8443, False),
        ("img.example:8443", "img.example", 8443, True),
        ("[2606:4700::1111]", "2606:4700::1111", None, True),
    ],
)
def test_entries_of_the_allow_list(entry, host, port, allowed):
    assert MediaDomains([entry]).allow("https", host, port) is allowed


@pytest.mark.parametrize("entry", ["https://img.example", "img.example/a", "a b", "img.*", "a:b", "u@img.example"])
def test_an_entry_that_allows_nothing_ends_the_start(entry):
    with pytest.raises(ConfigError, match="allowed_media_domains"):
        ServerOptions(allowed_media_domains=f"ok.example,{entry}")
