"""Many requests from a file, answered into another one; what was answered stays answered, however the process ends."""
