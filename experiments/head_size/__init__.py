"""Experiments on what heads of a given size can express: numerical checks of theorems, and synthetic tasks."""
