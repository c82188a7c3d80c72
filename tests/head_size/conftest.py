"""Registers the studies and tasks on the head size."""

from experiments.head_size import EXTENSION
from experiments.study import register

register(EXTENSION)
