"""
Errors that a user can correct, and a function that ends a script after an error, SIGTERM or Ctrl-C.

In messages, arguments are written as `name`. Scripts print them as --name.
"""

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from huggingface_hub.errors import HTTPError
from tqdm import tqdm

from .progress import configure_progress_bars


class InputError(ValueError):
    """
    Raised when the user's input is invalid. The message says what is wrong, where, and what to do.

    Args:
        field: Name of the invalid argument, which is added to the start of the message.
    """

    def __init__(self, message: str, field: str | None = None):
        message = f"`{field}` {message}" if field is not None else message
        # One printable line, even if the message contains names or values from a file.
        super().__init__("".join(x if x.isprintable() else repr(x)[1:-1] for x in message))


class Divergence(InputError):
    """Raised when a loss, gradient, weight or output is NaN or infinite."""


class Stopped(SystemExit):
    """Raised when a signal stops a script. The exit status is 128 + the signal number, as shells expect."""

    def __init__(self, signal_number: int):
        super().__init__(128 + signal_number)


@contextmanager
def error_context(context: object) -> Iterator[None]:
    """Context manager that prefixes the messages of InputErrors with their context, such as a file and line."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{context}: {error}") from error


def require_package(package: str, extra: str):
    """Raises InputError if `package`, which is part of the optional dependencies `extra`, is not installed."""
    if find_spec(package) is None:
        raise InputError(
            f'{package} is not installed; run pip install {package}, or ".[{extra}]" in a checkout of fixedbert.'
        )


def shorten(names: list[str]) -> str:
    """Joins names for a message. Lists the first three and the number of remaining names."""
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more


def exit_on_input_error(main: Callable[[], object]):
    """
    Runs the `main` function of a script. Prints one line instead of a traceback after an InputError or a signal.

    The exit status is 2 after an InputError or an error from the Hub, 130 after Ctrl-C and 143 after SIGTERM.
    """

    def stop(number: int, _frame: object):
        raise Stopped(number)

    configure_progress_bars()
    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # nohup and shell jobs in the background ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
    except (InputError, HTTPError) as error:
        is_input = isinstance(error, InputError)
        message = re.sub(r"`(\w+)`", r"--\1", str(error)) if is_input else " ".join(str(error).split())
        for bar in [*getattr(tqdm, "_instances", ())]:  # an open progress bar has not ended its line
            bar.close()
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not re.search("out of memory|allocate memory", str(error)):
            raise
        reason = " ".join(str(error).split())[:300]
        print(f"error: not enough memory for these sizes, batches or lengths ({reason})", file=sys.stderr)
        sys.exit(2)
    except Stopped:
        print("\nstopped by SIGTERM", file=sys.stderr)
        raise
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
