"""`VideoMarks`: the texts that stand for a video."""

from __future__ import annotations

from typing import NamedTuple


class VideoMarks(NamedTuple):
    """What templates and models write.

    Attributes:
        place: what a chat template writes for a whole video.
        start, token, end: what stands before the embeddings of a picture, in their place, and behind them.
    """

    place: str
    start: str
    token: str
    end: str

    @property
    def picture(self) -> str:
        """All that stands for one picture of a video."""
        return self.start + self.token + self.end

    @property
    def counted(self) -> str:
        """What a prompt has once for each video, and nothing else may have."""
        return self.token if self.token in self.place else self.place
