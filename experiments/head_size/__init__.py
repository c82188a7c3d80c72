"""Experiments on the expressiveness of a head size: numerical checks of theorems, and synthetic tasks."""
