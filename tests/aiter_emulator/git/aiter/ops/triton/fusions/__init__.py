"""Several steps in one kernel."""
