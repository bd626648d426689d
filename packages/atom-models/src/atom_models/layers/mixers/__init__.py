"""Layers that mix tokens: what they keep in a cache, and what turns their queries and keys."""
