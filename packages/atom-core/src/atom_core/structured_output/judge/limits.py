"""What judging one constraint may take."""

from __future__ import annotations

from atom_core.limited_process.limits import Limits

# Real schemas of 60 kB take 0.1 s, and 20 MB.
LIMITS = Limits(cpu_seconds=1.0, memory_bytes=512 << 20, kept_bytes=192 << 20, clock_seconds=15.0)
