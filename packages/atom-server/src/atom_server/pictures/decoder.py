"""`PictureDecoder`: pictures of requests are decoded beside the event loop, each in a process with limits."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from atom_core.engine.info import EngineInfo
from atom_core.limited_process import LimitedProcesses, TooMuchError, UnansweredError
from atom_core.messages import Image
from atom_core.models import VisionSpec
from atom_server.errors import RETRY_AFTER, APIError
from atom_server.options import ServerOptions
from atom_server.pictures.data_url import PictureError, data_of
from atom_server.pictures.limits import NUM_PROCESSES, PictureLimits
from atom_server.pictures.messages import ANSWER, ENCODER, Question


class PictureDecoder:
    """Decodes pictures for one event loop.

    Args:
        spec: what the model takes.
        limits: what pictures may take.

    Attributes:
        processes: where they are decoded.
    """

    def __init__(self, spec: VisionSpec, limits: PictureLimits) -> None:
        self.processes = LimitedProcesses("atom_server.pictures.decode_process", limits.of_process())
        self._spec, self._limits = spec, limits
        self._has_pillow = importlib.util.find_spec("PIL") is not None
        self._threads = ThreadPoolExecutor(NUM_PROCESSES, thread_name_prefix="pictures")

    @classmethod
    def of(cls, info: EngineInfo, options: ServerOptions) -> PictureDecoder | None:
        """The decoder for an engine; None where its model sees no pictures."""
        limits = PictureLimits(options.limit_images_per_prompt, options.max_image_bytes, options.max_image_pixels)
        return None if info.images is None else cls(info.images, limits)

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
            urls: ``data:`` URLs.
            num_tokens: the most tokens that they may take together; those behind are not decoded, or not kept.

        Raises:
            APIError: 400; one cannot be taken, or they are too many or too large. 503; there was no time for one.
        """
        self.check_count(len(urls))
        loop = asyncio.get_running_loop()
        decoding = [loop.run_in_executor(self._threads, self._decode, number, url) for number, url in _numbered(urls)]
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
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.processes.close()

    def _decode(self, number: str, url: str) -> Image:
        limits = self._limits
        try:
            data = data_of(url)
            if len(data) > 2 * limits.num_bytes:  # base64 takes a third more, and some have ends of lines
                raise PictureError(f"its file has more than {limits.num_bytes} bytes, which are read at most")
            question = Question(data.encode(), limits.num_bytes, limits.num_pixels, self._spec)
            answer = ANSWER.decode(self.processes.ask(ENCODER.encode(question)))
        except (PictureError, TooMuchError) as error:
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
