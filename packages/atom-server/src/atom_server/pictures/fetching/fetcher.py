"""`Fetcher`: the file behind an ``http`` or ``https`` URL, by httpx, within limits.

Against requests that are forged through this server: a name is resolved once, each of its addresses is judged, and the
connection goes to one that was judged, whatever the name resolves to by then. Redirects are judged as URLs of clients
are. No proxy, cookie or password goes along, and answers reach clients as a picture or not at all.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx

from atom_server.media_domains import PORTS, MediaDomains
from atom_server.pictures.data_url import PictureError
from atom_server.pictures.fetching.addresses import Address, JudgeAddress, Resolve, addresses_of, is_public

_MAX_URL = 4096
_MAX_REDIRECTS = 3
# So many addresses of a name are tried.
_MAX_ADDRESSES = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "atom"}


@dataclass(frozen=True)
class FetchLimits:
    """What fetching one file may take.

    Attributes:
        num_bytes: the most of a file.
        seconds: the most time on the clock, with all redirects.
    """

    num_bytes: int
    seconds: float


class Fetcher:
    """Fetches files from servers that are allowed, in any event loop.

    Args:
        domains: where from.
        limits: how much of each.
        judge, resolve: which addresses may be asked, and which ones a name has.
    """

    def __init__(
        self,
        domains: MediaDomains,
        limits: FetchLimits,
        *,
        judge: JudgeAddress = is_public,
        resolve: Resolve = addresses_of,
    ) -> None:
        self._domains, self._limits, self._judge, self._resolve = domains, limits, judge, resolve
        self._tls = httpx.create_ssl_context()  # reads all certificates, which takes a while

    async def fetch(self, url: str) -> bytes:
        """The file.

        Raises:
            PictureError: it cannot be had, or may not; the message names the server at most.
        """
        try:
            async with asyncio.timeout(self._limits.seconds):
                return await self._follow(url)
        except TimeoutError:
            raise PictureError(f"its server takes more than {self._limits.seconds:g} s") from None

    async def _follow(self, url: str | httpx.URL) -> bytes:
        for _ in range(_MAX_REDIRECTS + 1):
            answer = await self._ask(self._checked(url))
            if isinstance(answer, bytes):
                return answer
            url = answer
        raise PictureError(f"its server redirects more than {_MAX_REDIRECTS} times")

    def _checked(self, url: str | httpx.URL) -> httpx.URL:
        try:
            parsed = httpx.URL(url) if len(str(url)) <= _MAX_URL else None
        except (httpx.InvalidURL, UnicodeError):
            parsed = None
        if parsed is None or not parsed.host:
            raise PictureError(f"its address is no URL of at most {_MAX_URL} characters")
        if parsed.scheme not in PORTS:
            raise PictureError(f"its server redirects to a URL of {parsed.scheme[:16]!r}; http and https are fetched")
        if parsed.userinfo:
            raise PictureError("its address has a user's name or password; none is sent")
        host = parsed.raw_host.decode("ascii").lower().rstrip(".")
        if not self._domains.allow(parsed.scheme, host, parsed.port):
            port = "" if parsed.port is None else f":{parsed.port}"
            raise PictureError(f"{host[:253]}{port} is not among the servers of --allowed-media-domains")
        return parsed.copy_with(host=host, fragment=None)

    async def _ask(self, url: httpx.URL) -> bytes | httpx.URL:
        """The file, or where the server redirects to."""
        addresses = await asyncio.to_thread(self._resolve, url.host, url.port or PORTS[url.scheme])
        if not addresses or not all(map(self._judge, addresses)):
            raise PictureError(f"its server {url.host} has an address that is not public; private ones are not asked")
        for address in addresses[:_MAX_ADDRESSES]:
            try:
                return await self._ask_at(address, url)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
            except (httpx.HTTPError, httpx.StreamError):
                raise PictureError(f"its server {url.host} breaks off") from None
        raise PictureError(f"its server {url.host} cannot be reached")

    async def _ask_at(self, address: Address, url: httpx.URL) -> bytes | httpx.URL:
        """As `_ask`, of one address. A client for each: nothing that one server sends reaches another."""
        headers = _HEADERS | {"Host": url.netloc.decode("ascii")}
        extensions = {"sni_hostname": url.host}  # what the certificate must be for
        pinned = url.copy_with(host=str(address))
        async with (
            httpx.AsyncClient(verify=self._tls, trust_env=False, timeout=self._limits.seconds) as client,
            client.stream("GET", pinned, headers=headers, extensions=extensions) as answer,
        ):
            if answer.status_code in _REDIRECTS and "location" in answer.headers:
                return _joined(url, answer.headers["location"])
            if answer.status_code != 200:
                raise PictureError(f"its server answers with status {answer.status_code}")
            return await self._read(answer)

    async def _read(self, answer: httpx.Response) -> bytes:
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            raise PictureError("its server compresses it although it was asked not to")
        most, content = self._limits.num_bytes, bytearray()
        declared = answer.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > most:
            raise _too_large(most)
        async for piece in answer.aiter_raw(2**16):
            content += piece
            if len(content) > most:
                raise _too_large(most)
        return bytes(content)


def _too_large(most: int) -> PictureError:
    return PictureError(f"its file has more than {most} bytes, which are read at most")


def _joined(url: httpx.URL, location: str) -> httpx.URL:
    try:
        return url.join(location[:_MAX_URL])
    except (httpx.InvalidURL, UnicodeError):
        raise PictureError("its server redirects to what is no URL") from None
