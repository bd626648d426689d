"""`Pictures`: the pictures of running requests, and what a step sees of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch

from atom_core.messages import Image, PlacedImage, ScheduledRequest, SchedulerOutput
from atom_core.worker.devices.upload import send, upload
from atom_core.worker.vision.feature_cache import Encode, FeatureCache
from atom_core.worker.vision.seen_prompts import SeenPrompt
from atom_core.worker.vision.sight import Sight
from atom_models.vision.positions import last_seen, places_of_embeddings
from atom_models.vision.seen import SeenRows
from atom_models.vision.spec import VisionSpec


class Pictures:
    """Follows the steps of one worker. Pixels are kept for as long as a request has them.

    Args:
        encode: the tower; None in a stage of a pipeline that has none.
        spec: what the model sees.
        cache_bytes: the bound of features that are kept beside what running requests need.
        device: where the model is.

    Attributes:
        features: what the tower made of pictures, by their digests; None without one.
    """

    def __init__(self, encode: Encode | None, spec: VisionSpec, *, cache_bytes: int, device: torch.device) -> None:
        self._spec, self._device = spec, device
        self.features = None if encode is None else FeatureCache(encode, cache_bytes)
        self._prompts: dict[str, SeenPrompt] = {}
        self._pixels: dict[bytes, Image] = {}
        self._num_requests: Counter[bytes] = Counter()

    def update(self, step: SchedulerOutput) -> None:
        """Forget what was dropped, and take in what is new."""
        if self._prompts:
            for request_id in step.dropped_request_ids:
                self._forget(request_id)
        for request in step.new_requests:
            if request.images:
                self._prompts[request.request_id] = SeenPrompt(request, self._spec)
                for placed in request.images:
                    self._keep(placed.image)

    def look(self, step: SchedulerOutput) -> Sight | None:
        """What the step sees; None where none of its requests has a picture."""
        if not self._prompts:
            return None
        rows = list(self._rows(step))
        if not rows:
            return None
        offsets = np.zeros((3, step.num_tokens), dtype=np.int64)
        sees_until = np.full(step.num_tokens, -1, dtype=np.int32) if self._spec.sees_ahead else None
        shown: list[tuple[np.ndarray, PlacedImage, int, int]] = []  # rows of a picture's part, the picture, from, to
        for first, scheduled, prompt in rows:
            start, count = scheduled.num_computed_tokens, scheduled.num_new_tokens
            offsets[:, first : first + count] = prompt.offsets(start, count)
            images = prompt.images_of(start, count)
            if sees_until is not None:
                spans = [(placed.first_token, placed.end) for placed in images]
                sees_until[first : first + count] = last_seen(start, count, spans)
            for placed in images:
                places = places_of_embeddings(placed.image.height, placed.image.width, self._spec)
                rows_of_all = placed.first_token - start + places
                begin, end = np.searchsorted(rows_of_all, (0, count))
                if begin < end:
                    shown.append((first + rows_of_all[begin:end], placed, int(begin), int(end)))
            prompt.num_computed_tokens = start + count
        if not shown:
            return Sight(offsets[0])
        seen = None if self.features is None else self._see(shown, self.features)
        return Sight(offsets if self._spec.has_threefold_positions else offsets[0], seen, sees_until)

    def _rows(self, step: SchedulerOutput) -> Iterator[tuple[int, ScheduledRequest, SeenPrompt]]:
        """The first row of each request with pictures, and what is known of it."""
        first = 0
        for scheduled in step.scheduled:
            prompt = self._prompts.get(scheduled.request_id)
            if prompt is not None:
                yield first, scheduled, prompt
            first += scheduled.num_new_tokens

    def _see(self, shown: list[tuple[np.ndarray, PlacedImage, int, int]], cache: FeatureCache) -> SeenRows:
        """The rows of parts of pictures, each of which is encoded whole."""
        wanted = dict.fromkeys(placed.image.digest for _, placed, _, _ in shown)
        features = cache.take(list(wanted), self._on_device)
        parts = [features[placed.image.digest][begin:end] for _, placed, begin, end in shown]
        rows = np.concatenate([rows for rows, _, _, _ in shown])
        cache.evict({placed.image.digest for prompt in self._prompts.values() for placed in prompt.begun})
        (rows_n,) = upload(self._device, rows)
        return SeenRows(rows_n, torch.cat(parts) if len(parts) > 1 else parts[0])

    def _on_device(self, digest: bytes) -> torch.Tensor:
        image = self._pixels[digest]
        shape = (image.height, image.width, 3)
        of_video = () if image.num_frames == 1 else (image.num_frames,)
        pixels = np.frombuffer(image.pixels, dtype=np.uint8).reshape(*of_video, *shape)
        return send(torch.from_numpy(pixels.copy()), self._device)

    def _keep(self, image: Image) -> None:
        self._num_requests[image.digest] += 1
        if image.pixels:
            self._pixels[image.digest] = image

    def _forget(self, request_id: str) -> None:
        prompt = self._prompts.pop(request_id, None)
        for placed in () if prompt is None else prompt.images:
            digest = placed.image.digest
            self._num_requests[digest] -= 1
            if not self._num_requests[digest]:
                del self._num_requests[digest], self._pixels[digest]
