"""Errors, files, locks, processes and figures."""
