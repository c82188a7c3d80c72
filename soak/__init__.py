"""Soak tests: run fixedbert's commands with corrupted files and kill them (see soak/README.md)."""
