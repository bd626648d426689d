"""TLS and Unix sockets: what carries the requests. And pages of other sites that an operator lets in."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from atom_core.config import ConfigError
from atom_server import ServerOptions, create_app
from atom_server.access.tls import tls_context
from atom_server.access.web_pages import WebPageGuard
from atom_server.banner import warn_when_open
from atom_server.connections.listen import AddressError, listening, open_unix_socket, url_of
from atom_server.startup import check_options
from http_edge import plain_app, serving

PAGE = "https://app.example"


def make_certificate(folder: Path, name: str, *options: str) -> tuple[Path, Path]:
    """A certificate for this machine that nobody else signed, and its key."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *names, *files, *(options or ["-nodes"])], check=True, capture_output=True)
    return certificate, key


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """The server has one, a client another, and a stranger a third."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here to make certificates with")
    folder = tmp_path_factory.mktemp("certificates")
    return {name: make_certificate(folder, name) for name in ("server", "client", "stranger")}


@pytest.fixture
def tls(certificates):
    certificate, key = certificates["server"]
    return {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}


@pytest.fixture
def secure(certificates):
    """``secure()`` trusts the server alone; ``secure("client")`` shows a certificate too."""

    def make(who=None):
        context = ssl.create_default_context(cafile=certificates["server"][0])
        if who is not None:
            context.load_cert_chain(*certificates[who])
        return context

    return make


# TLS.


def test_requests_are_answered_over_tls(tls, secure):
    with serving(plain_app, **tls) as port, httpx.Client(verify=secure(), base_url=f"https://127.0.0.1:{port}") as http:
        assert [http.post("/", content=b"x" * size).text for size in (3, 200_000)] == ["3", "200000"]


def test_a_server_with_tls_answers_nothing_without_it(tls):
    with serving(plain_app, **tls) as port, pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{port}/")


def test_tls_older_than_1_2_is_refused(tls, secure):
    context = secure()
    assert tls_context(ServerOptions(**tls)).minimum_version == ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving(plain_app, **tls) as port:
        assert httpx.get(f"https://127.0.0.1:{port}/", verify=context).text == "0"


def test_an_answer_to_an_unread_body_arrives_over_tls_and_the_connection_ends(tls, secure):
    with serving(plain_app, timeout_request=1, **tls) as port:
        plain = socket.create_connection(("127.0.0.1", port), timeout=10)
        with secure().wrap_socket(plain, server_hostname="127.0.0.1") as client:
            client.sendall(b"POST /early HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 1000)
            received = b""
            with contextlib.suppress(OSError):  # how TLS ends where nobody waits for the other side is no matter here
                while data := client.recv(4096):
                    received += data
            assert received.startswith(b"HTTP/1.1 200 ")


def test_headers_over_tls_have_their_deadline_too(tls, secure):
    with serving(plain_app, timeout_request=0.2, **tls) as port:
        plain = socket.create_connection(("127.0.0.1", port), timeout=10)
        with secure().wrap_socket(plain, server_hostname="127.0.0.1") as client:
            client.sendall(b"GET / HTTP/1.1\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_with_authorities_only_their_clients_connect(tls, secure, certificates):
    authorities = {"ssl_ca_certs": str(certificates["client"][0])}
    with serving(plain_app, **tls, **authorities) as port:
        url = f"https://127.0.0.1:{port}/"
        assert httpx.get(url, verify=secure("client")).text == "0"
        for who in (None, "stranger"):
            with pytest.raises(httpx.TransportError):
                httpx.get(url, verify=secure(who))


def test_files_that_do_not_fit_are_told_before_a_model_is_loaded(tmp_path, certificates, tls):
    _, other_key = certificates["stranger"]
    with pytest.raises(ConfigError, match=r"^--ssl-certfile .*server.crt with --ssl-keyfile .*stranger.key cannot be"):
        check_options(ServerOptions(ssl_certfile=tls["ssl_certfile"], ssl_keyfile=str(other_key)))
    with pytest.raises(ConfigError, match=r"^--ssl-certfile /nowhere cannot be read: No such file"):
        check_options(ServerOptions(ssl_certfile="/nowhere"))
    with pytest.raises(ConfigError, match=r"^--ssl-ca-certs /nowhere cannot be read"):
        check_options(ServerOptions(**tls, ssl_ca_certs="/nowhere"))
    with pytest.raises(ConfigError, match="needs --ssl-certfile"):
        ServerOptions(ssl_keyfile="key.pem")
    locked = make_certificate(tmp_path, "locked", "-passout", "pass:secret")
    with pytest.raises(ConfigError, match="cannot be used"):
        check_options(ServerOptions(ssl_certfile=str(locked[0]), ssl_keyfile=str(locked[1])))


# Unix sockets.


def ask(path, url="http://localhost/"):
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as http:
        return http.get(url)


def test_requests_are_answered_at_a_unix_socket_which_goes_with_the_server(tmp_path):
    path = tmp_path / "atom.sock"
    with serving(plain_app, uds=str(path)):
        assert ask(path).text == "0"
    assert not path.exists()


def test_the_umask_says_who_may_connect(tmp_path):
    before = os.umask(0o077)
    try:
        with open_unix_socket(tmp_path / "private"):
            assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_the_socket_of_a_server_that_is_gone_is_replaced_and_that_of_another_is_not(tmp_path):
    path = tmp_path / "atom.sock"
    open_unix_socket(path).close()
    with listening(ServerOptions(uds=str(path))) as listener:
        assert url_of(listener) == f"http+unix://{path}"
        with pytest.raises(AddressError, match=r"a server listens there; choose another path with --uds$"):
            open_unix_socket(path)
    assert not path.exists()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(AddressError, match="something that is no socket"):
        open_unix_socket(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "mine"
    with pytest.raises(AddressError, match="No such file or directory"):
        open_unix_socket(tmp_path / "no" / "folder")
    with pytest.raises(AddressError, match="path too long"):
        open_unix_socket(tmp_path / ("x" * 200))


def test_a_server_does_not_remove_the_socket_of_the_next_one(tmp_path):
    path = tmp_path / "atom.sock"
    with listening(ServerOptions(uds=str(path))):
        path.rename(tmp_path / "old")
        next_one = open_unix_socket(path)
    assert path.is_socket()
    next_one.close()


def test_a_unix_socket_is_not_open_to_the_network(server, tmp_path, capsys):
    for options, is_told in [({"host": "0.0.0.0"}, True), ({"host": "0.0.0.0", "uds": str(tmp_path / "s")}, False)]:
        state = create_app(server.engine, ServerOptions(**options)).state.server
        warn_when_open(state, Console(stderr=True))
        assert ("WARNING" in capsys.readouterr().err) == is_told


@pytest.mark.timing
def test_atom_serve_listens_at_a_unix_socket(serve_process, tmp_path):
    path = tmp_path / "atom.sock"
    with serve_process("--uds", str(path)) as running:
        assert ask(path, "http://localhost/health").status_code == 200
        assert f"http+unix://{path}/v1" in running.text
        running.process.terminate()
        assert running.process.wait(20) == 0
    assert not path.exists()


# Pages of other sites.


@pytest.fixture
def front(make_front):
    with make_front(ServerOptions(api_key="k", allowed_origins=f"{PAGE},http://b:1")) as front:
        yield front


def test_a_browser_may_ask_for_pages_that_are_let_in_and_no_others(front):
    wish = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    answer = httpx.options(front.url + "/v1/completions", headers={"origin": PAGE, **wish})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "authorization" in answer.headers["access-control-allow-headers"]
    other = httpx.options(front.url + "/v1/completions", headers={"origin": "https://evil.example", **wish})
    assert other.status_code == 400
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(("origin", "key", "status"), [(PAGE, "k", 200), (PAGE, "x", 401), ("https://evil", "k", 403)])
def test_such_a_page_reads_answers_and_needs_the_key_as_all_do(front, origin, key, status):
    headers = {"origin": origin, "sec-fetch-site": "cross-site", "authorization": f"Bearer {key}"}
    answer = httpx.post(front.url + "/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers=headers)
    assert answer.status_code == status
    assert answer.headers.get("access-control-allow-origin") == (PAGE if origin == PAGE else None)


def test_without_the_flag_no_browser_is_told_that_it_may(server):
    answer = httpx.get(server.url + "/health", headers={"origin": PAGE})
    assert not [name for name in answer.headers if re.match("access-control", name)]


async def test_a_star_lets_every_page_in():
    reached = []

    async def app(scope, receive, send):
        reached.append(scope)

    headers = [(b"host", b"localhost"), (b"origin", b"null"), (b"sec-fetch-site", b"cross-site")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
    await WebPageGuard(app, (), origins=("*",))(scope, None, None)
    assert reached == [scope]


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/", "https://App.example", "https://", "*.x"])
def test_what_no_browser_sends_as_an_origin_is_refused(origin):
    with pytest.raises(ConfigError, match="an origin is a scheme, a host in lower case"):
        ServerOptions(allowed_origins=origin)
