"""Commands that run an engine of their own and print what it generates."""
