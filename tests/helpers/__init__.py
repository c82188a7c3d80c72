"""Test helpers: tiny models and data, script arguments, forked processes and a local Hub."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
