"""Errors, files, processes, timing, the machine and figures."""
