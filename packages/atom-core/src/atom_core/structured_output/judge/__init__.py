"""Whether a constraint can be followed at a bearable cost, found out in a process that can be killed."""

from atom_core.structured_output.judge.judges import JudgeError, Judges, shared_judges

__all__ = ["JudgeError", "Judges", "shared_judges"]
