"""What the compiling needs to know of the machine."""
