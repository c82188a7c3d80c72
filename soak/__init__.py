"""Soak tests: run fixedbert's commands on corrupted files, and kill running commands (see soak/README.md)."""
