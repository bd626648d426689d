"""Measurements for `atom bench`: of running servers under load, of engines, and of what number formats cost."""
