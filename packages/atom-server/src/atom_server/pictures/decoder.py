"""`PictureDecoder`: pictures and videos are decoded beside the event loop, each in a process with limits."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from atom_core.config import ConfigError
from atom_core.engine.info import EngineInfo
from atom_core.limited_process import LimitedProcesses
from atom_core.messages import Image, Video
from atom_core.models import VisionSpec
from atom_server.errors import APIError
from atom_server.media_domains import MediaDomains
from atom_server.options import ServerOptions
from atom_server.pictures.checked_processes import checked_processes
from atom_server.pictures.data_url import MEDIA_TYPES, VIDEO_TYPES, is_of_frames
from atom_server.pictures.fetching.fetcher import Fetcher, FetchLimits
from atom_server.pictures.limits import PictureLimits
from atom_server.pictures.messages import Question
from atom_server.pictures.reading import FileReader

T = TypeVar("T")


class PictureDecoder:
    """Decodes pictures and videos for one event loop.

    Args:
        spec: what the model takes.
        limits: what they may take.
        fetcher, video_fetcher: fetch those of ``http`` and ``https`` URLs; None refuses them.
        processor: the folder of the checkpoint whose own processor pictures pass; None where they pass ours.

    Raises:
        ConfigError: that processor cannot run here.
    """

    def __init__(
        self,
        spec: VisionSpec,
        limits: PictureLimits,
        fetcher: Fetcher | None = None,
        video_fetcher: Fetcher | None = None,
        processor: str | None = None,
    ) -> None:
        ours, videos = "atom_server.pictures.decode_process", "atom_server.pictures.video_process"
        self._pictures = FileReader(
            LimitedProcesses(ours, limits.of_process())
            if processor is None
            else checked_processes(processor, limits.of_process(), spec),
            limits.num_bytes,
            MEDIA_TYPES,
            code="invalid_image",
            fetcher=fetcher,
        )
        self._videos = FileReader(
            LimitedProcesses(videos, limits.of_video_process()),
            limits.num_video_bytes,
            VIDEO_TYPES,
            code="invalid_video",
            fetcher=video_fetcher,
        )
        self._spec, self._limits = spec, limits
        self._has_pillow, self._has_pyav = (importlib.util.find_spec(name) is not None for name in ("PIL", "av"))

    @classmethod
    def of(cls, info: EngineInfo, options: ServerOptions) -> PictureDecoder | None:
        """The decoder for an engine; None where its model sees no pictures.

        Raises:
            ConfigError: pictures are to pass the checkpoint's own processor, and cannot.
        """
        is_own = options.image_processor == "checkpoint"
        if info.images is None:
            if is_own:
                message = (
                    f"image_processor is 'checkpoint', and {info.architecture} reads text alone here: leave it out"
                )
                raise ConfigError(message)
            return None
        limits = PictureLimits(
            options.limit_images_per_prompt,
            options.max_image_bytes,
            options.max_image_pixels,
            options.limit_videos_per_prompt,
            options.max_video_bytes,
        )
        domains, seconds = MediaDomains(options.media_domains), options.media_fetch_timeout
        most = (limits.num_bytes, limits.num_video_bytes)
        fetchers = [Fetcher(domains, FetchLimits(each, seconds)) if domains else None for each in most]
        return cls(info.images, limits, *fetchers, processor=info.model_path if is_own else None)

    @property
    def processes(self) -> LimitedProcesses:
        """Where pictures are decoded."""
        return self._pictures.processes

    def check_count(self, count: int) -> None:
        """Raise APIError 400 for more pictures than a prompt may have, and 501 for any without Pillow."""
        if count:
            self._check_pillow()
        if count > self._limits.count:
            message = f"there are {count} pictures; a prompt may have {self._limits.count} (--limit-images-per-prompt)"
            raise APIError(400, message, param="messages", code="too_many_images")

    def check_videos(self, urls: Sequence[str]) -> None:
        """Raise APIError 400 for videos that the model does not see, or too many; 501 where a library is missing."""
        if not urls:
            return
        if self._spec.video is None:
            raise APIError(400, "this model sees no videos: send pictures", param="messages", code="no_videos")
        most = self._limits.num_videos
        if len(urls) > most:
            message = f"there are {len(urls)} videos; a prompt may have {most} (--limit-videos-per-prompt)"
            raise APIError(400, message, param="messages", code="too_many_videos")
        self._check_pillow()
        if not self._has_pyav and not all(map(is_of_frames, urls)):
            message = (
                "files of videos need PyAV, which this server has not: pip install av, or send their "
                "frames as data:video/jpeg;base64,...,..."
            )
            raise APIError(501, message, param="messages", code="no_pyav")

    async def decode(self, urls: Sequence[str], *, num_tokens: int) -> tuple[Image, ...]:
        """The pictures of a prompt, in order.

        Args:
            urls: ``data:`` URLs, or those of servers that are allowed.
            num_tokens: the most tokens that they may take together; those behind are not decoded, or not kept.

        Raises:
            APIError: 400; one cannot be taken, or they are too many or too large. 503; there was no time for one.
        """
        self.check_count(len(urls))
        images: list[Image] = []
        async with _together(self._image(name, url) for name, url in _numbered("picture", urls)) as decoding:
            for task in decoding:
                images.append(await task)
                num_tokens -= self._spec.num_tokens(images[-1].height, images[-1].width)
                if num_tokens < 0:
                    message = "the pictures take more tokens than the context has room for: send fewer or smaller ones"
                    raise APIError(400, message, param="messages", code="context_length_exceeded")
        return tuple(images)

    async def decode_videos(self, urls: Sequence[str], *, num_tokens: int) -> tuple[Video, ...]:
        """The videos of a prompt, in order.

        Args:
            urls: as for `decode`.
            num_tokens: the most tokens that each may take.

        Raises:
            APIError: as `decode`.
        """
        self.check_videos(urls)
        named = _numbered("video", urls)
        async with _together(self._video(name, url, num_tokens) for name, url in named) as decoding:
            return tuple([await task for task in decoding])

    def close(self) -> None:
        """End the processes; what has not begun never will."""
        for reader in (self._pictures, self._videos):
            reader.close()

    async def _image(self, name: str, url: str) -> Image:
        answer = await self._pictures.read(name, url, partial(self._asked, self._limits.num_bytes, 0, False))
        if answer.image is None:
            raise RuntimeError("a decoder gave no picture")
        return answer.image

    async def _video(self, name: str, url: str, num_tokens: int) -> Video:
        most = self._limits.num_video_bytes
        answer = await self._videos.read(name, url, partial(self._asked, most, num_tokens, is_of_frames(url)))
        if answer.video is None:
            raise RuntimeError("a decoder gave no video")
        return answer.video

    def _asked(self, num_bytes: int, num_tokens: int, is_of_frames: bool, file: bytes, is_base64: bool) -> Question:
        num_pixels = self._limits.num_pixels
        return Question(file, is_base64, num_bytes, num_pixels, self._spec, num_tokens, is_of_frames)

    def _check_pillow(self) -> None:
        if not self._has_pillow:
            message = "pictures need Pillow, which this server has not: pip install pillow"
            raise APIError(501, message, param="messages", code="no_pillow")


@contextlib.asynccontextmanager
async def _together(work: Iterable[Coroutine[Any, Any, T]]) -> AsyncIterator[list[asyncio.Task[T]]]:
    """All work begins at once; what is left at the end is let go."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # nobody hears of the others' errors


def no_pictures(model: str) -> APIError:
    """What is wrong with pictures for a model that sees none."""
    message = f"the model {model!r} sees no pictures: send text alone, or serve one that does"
    return APIError(400, message, param="messages", code="no_pictures")


def _numbered(kind: str, urls: Sequence[str]) -> list[tuple[str, str]]:
    """Each with what errors call it."""
    return [(f"{kind} {number} of {len(urls)}", url) for number, url in enumerate(urls, start=1)]
