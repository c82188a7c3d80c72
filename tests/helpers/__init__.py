"""Helpers for the tests: tiny models, data and commands, scripts in forked processes, a browser, a fake Hub."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
