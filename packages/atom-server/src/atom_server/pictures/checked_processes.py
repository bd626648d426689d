"""`checked_processes`: decoders with the checkpoint's own processor, the first of which has shown that it works."""

from __future__ import annotations

import importlib.util

from atom_core.config import ConfigError
from atom_core.limited_process import LimitedProcesses, Limits, TooMuchError, UnansweredError
from atom_core.models import VisionSpec
from atom_server.pictures.messages import ANSWER, ENCODER, Question

_NEEDED = {"PIL": "pillow", "transformers": "'transformers>=5.23'"}
# A GIF of one pixel.
_PICTURE = (
    b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"
)
# Importing torch and transformers takes seconds, and more where they are compiled anew.
_START_SECONDS = 180.0


def checked_processes(folder: str, limits: Limits, spec: VisionSpec) -> LimitedProcesses:
    """Processes of `checkpoint_process`; one of them has started, and decoded a picture.

    Args:
        folder: the checkpoint's.

    Raises:
        ConfigError: it could not; the message says why.
    """
    for module, package in _NEEDED.items():
        if importlib.util.find_spec(module) is None:
            raise _refused(f"it needs {module}, which is not installed: pip install {package}")
    processes = LimitedProcesses("atom_server.pictures.checkpoint_process", limits, folder)
    question = ENCODER.encode(Question(_PICTURE, False, len(_PICTURE), 1, spec))
    try:
        reason = ANSWER.decode(processes.ask(question, clock_seconds=_START_SECONDS)).error
    except (TooMuchError, UnansweredError) as error:
        reason = f"its process {error}"
    if reason:
        processes.close()
        raise _refused(reason)
    return processes


def _refused(reason: str) -> ConfigError:
    return ConfigError(f"image_processor is 'checkpoint', which cannot run here: {reason}; --image-processor atom does")
