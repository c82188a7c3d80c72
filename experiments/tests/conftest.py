"""The environment and the fixtures of the package's tests."""

from tests.conftest import download, vocabulary

__all__ = ["download", "vocabulary"]
