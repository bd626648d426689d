"""Work of a CPU that is done again without the Python around it."""

from atom_kernels.recording.work import RecordedWork, record, recordable

__all__ = ["RecordedWork", "record", "recordable"]
