"""Pictures on their way to the worker: fitted, put into prompts, sent once. Torch-free."""
