"""Accuracy by the tasks of lm-eval, and a server to ask."""
