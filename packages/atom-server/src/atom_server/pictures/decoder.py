"""`PictureDecoder`: pictures of requests are decoded beside the event loop, each in a process with limits."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from atom_core.engine.info import EngineInfo
from atom_core.limited_process import LimitedProcesses, TooMuchError, UnansweredError
from atom_core.messages import Image
from atom_core.models import VisionSpec
from atom_server.errors import RETRY_AFTER, APIError
from atom_server.options import ServerOptions
from atom_server.pictures.data_url import PictureError, data_of, is_fetched
from atom_server.pictures.fetching.beside import FetcherBeside
from atom_server.pictures.fetching.domains import MediaDomains
from atom_server.pictures.fetching.fetcher import Fetcher, FetchLimits
from atom_server.pictures.limits import NUM_FETCHED, NUM_PROCESSES, PictureLimits
from atom_server.pictures.messages import ANSWER, ENCODER, Question

T = TypeVar("T")


class PictureDecoder:
    """Decodes pictures for one event loop.

    Args:
        spec: what the model takes.
        limits: what pictures may take.
        fetcher: fetches those of ``http`` and ``https`` URLs; None refuses them.

    Attributes:
        processes: where they are decoded.
    """

    def __init__(self, spec: VisionSpec, limits: PictureLimits, fetcher: Fetcher | None = None) -> None:
        self.processes = LimitedProcesses("atom_server.pictures.decode_process", limits.of_process())
        self._spec, self._limits = spec, limits
        self._has_pillow = importlib.util.find_spec("PIL") is not None
        self._fetcher = None if fetcher is None else FetcherBeside(fetcher)
        self._fetched = asyncio.Semaphore(NUM_FETCHED)
        self._threads = ThreadPoolExecutor(NUM_PROCESSES, thread_name_prefix="pictures")

    @classmethod
    def of(cls, info: EngineInfo, options: ServerOptions) -> PictureDecoder | None:
        """The decoder for an engine; None where its model sees no pictures."""
        limits = PictureLimits(options.limit_images_per_prompt, options.max_image_bytes, options.max_image_pixels)
        domains = MediaDomains(options.media_domains)
        fetcher = Fetcher(domains, FetchLimits(limits.num_bytes, options.media_fetch_timeout)) if domains else None
        return None if info.images is None else cls(info.images, limits, fetcher)

    def check_count(self, count: int) -> None:
        """Raise APIError 400 for more pictures than a prompt may have, and 501 for any without Pillow."""
        if count and not self._has_pillow:
            message = "pictures need Pillow, which this server has not: pip install pillow"
            raise APIError(501, message, param="messages", code="no_pillow")
        if count > self._limits.count:
            message = f"there are {count} pictures; a prompt may have {self._limits.count} (--limit-images-per-prompt)"
            raise APIError(400, message, param="messages", code="too_many_images")

    async def decode(self, urls: Sequence[str], *, num_tokens: int) -> tuple[Image, ...]:
        """The pictures of a prompt, in order.

        Args:
            urls: ``data:`` URLs, or those of servers that are allowed.
            num_tokens: the most tokens that they may take together; those behind are not decoded, or not kept.

        Raises:
            APIError: 400; one cannot be taken, or they are too many or too large. 503; there was no time for one.
        """
        self.check_count(len(urls))
        decoding = [asyncio.ensure_future(self._image(number, url)) for number, url in _numbered(urls)]
        images: list[Image] = []
        try:
            for future in decoding:
                images.append(await future)
                num_tokens -= self._spec.num_tokens(images[-1].height, images[-1].width)
                if num_tokens < 0:
                    message = "the pictures take more tokens than the context has room for: send fewer or smaller ones"
                    raise APIError(400, message, param="messages", code="context_length_exceeded")
        finally:
            for future in decoding:
                future.cancel()
        return tuple(images)

    def close(self) -> None:
        """End the processes; what has not begun never will."""
        if self._fetcher is not None:
            self._fetcher.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.processes.close()

    async def _image(self, number: str, url: str) -> Image:
        if self._fetcher is None or not is_fetched(url):
            return await self._run(self._decode_url, number, url)
        async with self._fetched:
            try:
                file = await self._fetcher.fetch(url)
            except PictureError as error:
                raise _refused(number, str(error)) from None
            return await self._run(self._decode, number, file)

    async def _run(self, work: Callable[[str, T], Image], number: str, given: T) -> Image:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, number, given)

    def _decode_url(self, number: str, url: str) -> Image:
        most = self._limits.num_bytes
        try:
            data = data_of(url)
            if len(data) > 2 * most:  # base64 takes a third more, and some have ends of lines
                raise PictureError(f"its file has more than {most} bytes, which are read at most")
        except PictureError as error:
            raise _refused(number, str(error)) from None
        return self._decode(number, data.encode(), is_base64=True)

    def _decode(self, number: str, file: bytes, *, is_base64: bool = False) -> Image:
        limits = self._limits
        question = Question(file, is_base64, limits.num_bytes, limits.num_pixels, self._spec)
        try:
            answer = ANSWER.decode(self.processes.ask(ENCODER.encode(question)))
        except TooMuchError as error:
            raise _refused(number, str(error)) from None
        except UnansweredError as error:
            message = f"{number}: its decoder {error}"
            raise APIError(503, message, param="messages", code="overloaded", headers=RETRY_AFTER) from None
        if answer.image is None:
            raise _refused(number, answer.error)
        return answer.image


def no_pictures(model: str) -> APIError:
    """What is wrong with pictures for a model that sees none."""
    message = f"the model {model!r} sees no pictures: send text alone, or serve one that does"
    return APIError(400, message, param="messages", code="no_pictures")


def _numbered(urls: Sequence[str]) -> list[tuple[str, str]]:
    """Each with what errors call it."""
    return [(f"picture {number} of {len(urls)}", url) for number, url in enumerate(urls, start=1)]


def _refused(number: str, reason: str) -> APIError:
    return APIError(400, f"{number}: {reason}", param="messages", code="invalid_image")
