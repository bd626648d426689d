"""Scheduling: which request computes how many tokens in which step. Works on counts and ids; torch-free."""

from atom_core.scheduler.config import SchedulerConfig
from atom_core.scheduler.request import Request, RequestStatus
from atom_core.scheduler.scheduler import Scheduler

__all__ = ["Request", "RequestStatus", "Scheduler", "SchedulerConfig"]
