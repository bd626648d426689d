"""`SeenMedia`: pictures and videos of a conversation become those of its prompt, in a server and in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from atom_core import AsyncEngine
from atom_core.engine.inputs.placed_images import with_marks
from atom_core.engine.inputs.placed_videos import PlacedVideos, marks_of, with_places
from atom_core.messages import Image
from atom_server.pictures.decoder import PictureDecoder, no_pictures
from atom_server.schemas.fields.content import Shown


@dataclass(frozen=True)
class SeenMedia:
    """What an engine's model sees of conversations.

    Attributes:
        model: what errors call the model.
        decoder: None where the model sees no pictures.
    """

    engine: AsyncEngine
    model: str
    decoder: PictureDecoder | None

    def check(self, shown: Shown) -> None:
        """Refuse pictures and videos before anything is made of them.

        Raises:
            APIError: 400; the model sees none, or there are too many. 501; a library is missing.
        """
        if self.decoder is not None:
            self.decoder.check_count(len(shown.urls))
            self.decoder.check_videos(shown.videos)
        elif shown.urls or shown.videos:
            raise no_pictures(self.model)

    async def place(self, text: str, shown: Shown, *, num_tokens: int) -> PlacedVideos:
        """A rendered text with all that stands for what is shown, and its videos.

        Args:
            num_tokens: the most tokens that a prompt may have.

        Raises:
            APIError, InvalidRequestError: a video cannot be taken, the text has other places for videos, or the
                tokenizer has no texts for a picture's tokens.
        """
        spec, placed = self.engine.info.images, PlacedVideos(text)
        if self.decoder is None or spec is None:
            return placed
        if shown.videos:
            videos = await self.decoder.decode_videos(shown.videos, num_tokens=num_tokens)
            placed = with_places(text, videos, spec, marks_of(spec, self.engine.tokenizer))
        if shown.urls:
            placed = replace(placed, text=with_marks(placed.text, spec, self.engine.tokenizer))
        return placed

    async def images(self, urls: Sequence[str], num_text_tokens: int, *, num_tokens: int) -> list[Image]:
        """The pictures of a prompt, in order.

        Args:
            num_text_tokens: tokens of the text, one for each picture among them.
            num_tokens: the most tokens that a prompt may have.

        Raises:
            APIError: one cannot be taken, or they are too large.
        """
        if not urls or self.decoder is None:
            return []
        return list(await self.decoder.decode(urls, num_tokens=num_tokens - num_text_tokens + len(urls)))
