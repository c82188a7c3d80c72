"""The environment and the fixtures of the package's tests."""

from tests.conftest import vocabulary

__all__ = ["vocabulary"]
