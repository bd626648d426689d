"""What one constraint may take: processor time and memory are counted, time on the clock is not."""

from __future__ import annotations

# What judging one constraint may take. Real schemas of 60 kB take 0.1 s, and 20 MB.
CPU_SECONDS = 1.0
MEMORY_BYTES = 512 << 20
# A judge that has so much more than at its start makes room for a new one.
KEPT_BYTES = 192 << 20
# On a machine so busy that the judge hardly runs, callers are told to come again.
CLOCK_SECONDS = 15.0
