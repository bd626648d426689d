"""Work on what strangers send, in processes with limits: one that takes too much is killed, and another works on."""

from atom_core.limited_process.limits import Limits
from atom_core.limited_process.pool import LimitedProcesses
from atom_core.limited_process.process import TooMuchError, UnansweredError

__all__ = ["LimitedProcesses", "Limits", "TooMuchError", "UnansweredError"]
