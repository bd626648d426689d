"""Our models as vLLM wants models: which there are, how they are built, compiled and loaded."""
