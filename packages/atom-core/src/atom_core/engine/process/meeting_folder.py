"""`MeetingFolder`: where engines find each other that share their experts. Torch-free."""

from __future__ import annotations

import shutil
import tempfile


class MeetingFolder:
    """A folder that no other user can enter. Engines that are started anew need another one.

    Attributes:
        path: where the present folder is.
    """

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="atom-")  # mode 0700

    def renew(self) -> None:
        """Leave nothing of the engines that met before."""
        self.remove()
        self.path = tempfile.mkdtemp(prefix="atom-")

    def remove(self) -> None:
        """Remove it with what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
