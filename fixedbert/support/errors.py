"""
Errors that the user can correct, and the exit of a script after an error, a signal or Ctrl-C.

Messages refer to an argument as `name`, which `exit_on_input_error` shows as --name.
"""

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from huggingface_hub.errors import HTTPError


class InputError(ValueError):
    """
    Says in one sentence what is wrong, where (file, line, field), and what to do.

    Args:
        field: name of the argument at fault, which begins the message.
    """

    def __init__(self, message: str, field: str | None = None):
        super().__init__(f"`{field}` {message}" if field is not None else message)


class Divergence(InputError):
    """
    A loss, gradient or weight is not finite.

    Args:
        examples: number of training examples before the divergence, for a synthetic task.
    """

    def __init__(self, message: str, examples: int = 0):
        super().__init__(message)
        self.examples = examples


class Stopped(SystemExit):
    """Ends a script after a signal, with the exit status that shells use for it."""

    def __init__(self, number: int):
        super().__init__(128 + number)


@contextmanager
def error_context(context: object) -> Iterator[None]:
    """Prefixes the message of an InputError with its context, such as a file and line."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{context}: {error}") from error


def require_package(package: str, extra: str):
    """Raises an InputError if `package`, which fixedbert's extra `extra` installs, is missing."""
    if find_spec(package) is None:
        raise InputError(
            f'{package} is not installed; run pip install {package}, or ".[{extra}]" in a checkout of fixedbert.'
        )


def shorten(names: list[str]) -> str:
    """Joins the first three names for a message, and appends the number of the others."""
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more


def exit_on_input_error(main: Callable[[], object]):
    """
    Runs the `main` function of a script, and reports an InputError or a signal in one line, without a traceback.

    The exit status is 1 after an InputError, 130 after Ctrl-C and 143 after SIGTERM.
    """

    def stop(number: int, _frame: object):
        raise Stopped(number)

    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # nohup ignores Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
    except InputError as error:
        message = re.sub(r"`(\w+)`", r"--\1", str(error))
        sys.exit(f"error: {message}")
    except HTTPError as error:
        sys.exit(f"error: {error}")
    except Stopped:
        print("\nstopped by SIGTERM", file=sys.stderr)
        raise
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
