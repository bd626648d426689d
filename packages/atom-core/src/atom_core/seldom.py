"""`SeldomWarning`: a warning that clients or a full disk cause over and over, and that must not fill the log."""

from __future__ import annotations

import logging
import time

INTERVAL_S = 60.0


class SeldomWarning:
    """Logs at most once a minute, and says how many warnings were left out in between."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._next = 0.0
        self._num_untold = 0

    def __call__(self, message: str) -> None:
        """Log `message`, unless one was logged a short while ago."""
        now = time.monotonic()
        if now < self._next:
            self._num_untold += 1
            return
        more = f" ({self._num_untold} more times since the last such line)" if self._num_untold else ""
        self._logger.warning("%s%s", message, more)
        self._next, self._num_untold = now + INTERVAL_S, 0
