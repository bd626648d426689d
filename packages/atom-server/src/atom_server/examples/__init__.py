"""Programs that show how to use the engine from Python."""
