"""Stands in for AMD's MORI on a CPU: ranks are threads, each of which is a process to it."""
