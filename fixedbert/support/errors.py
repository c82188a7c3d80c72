"""
The error for input that the user can correct, and how a script ends with an error, a signal or an interruption.

The library names fields; `exit_on_input_error` turns them into flags.
"""

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from huggingface_hub.errors import HTTPError  # of requests to the Hub, also where the connection breaks

LONGEST_MESSAGE = 1000  # characters; a message can quote the content of a file


class InputError(ValueError):
    """
    One sentence: what is wrong, where (file, line, field) and what to do. The middle of a long one is left out.

    Parameters stand in it as `name`, which the command line shows as --name.

    Args:
        field: the parameter at fault, with whose name the message begins.
    """

    def __init__(self, message: str, field: str | None = None):
        self.field = field
        if field is not None:
            message = f"`{field}` {message}"
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[: LONGEST_MESSAGE // 2]} ... {message[-LONGEST_MESSAGE // 2 :]}"
        super().__init__(message)


class Divergence(InputError):
    """
    Losses, gradients or weights that are not finite.

    Args:
        examples: trained on until then, of a synthetic task.
    """

    def __init__(self, message: str, examples: int = 0):
        super().__init__(message)
        self.examples = examples


@contextmanager
def error_context(place: object) -> Iterator[None]:
    """The message of an InputError within begins with the place where it was found."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


def require_package(package: str, extra: str):
    """Refuse to go on without `package`, which comes with the extra `extra` of fixedbert."""
    if find_spec(package) is None:
        raise InputError(
            f'{package} is not installed: pip install {package}, or ".[{extra}]" in a checkout of fixedbert.'
        )


class Stopped(SystemExit):
    """A signal ends the script, with the exit status that shells give it."""

    def __init__(self, number: int):
        super().__init__(128 + number)


def shorten(names: list[str]) -> str:
    """The first three names, for a message, and how many more there are."""
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more


def note_what_is_left(error: BaseException, left: str):
    """
    Say in a clause what an exception leaves of the work. `exit_on_input_error` adds it to its last line; where a
    function was called from Python, it is the message of a KeyboardInterrupt.
    """
    if isinstance(error, KeyboardInterrupt) and error.args in ((), (getattr(error, "left", None),)):
        error.args = (left,)
    vars(error)["left"] = left


def stop(number: int, _frame: object):
    raise Stopped(number)


def exit_on_input_error(main: Callable[[], object]):
    """
    Run a script's `main`. An error, a signal or an interruption is reported in one line, without a traceback.

    The exit status is 1 after an InputError, 130 after Ctrl-C and 143 after SIGTERM.
    """
    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as with nohup
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {with_flags(str(error))}")
    except HTTPError as error:
        sys.exit(f"error: {with_flags(explain_hub_error(error))}")
    except (KeyboardInterrupt, Stopped) as error:
        status = error.code if isinstance(error, Stopped) else 128 + signal.SIGINT
        reason = "stopped by SIGTERM" if status == 128 + signal.SIGTERM else "interrupted"
        left = getattr(error, "left", "")
        print(f"\n{reason}{left and ': '}{left}", file=sys.stderr)  # on a line of its own, after a progress bar
        sys.exit(status)


def with_flags(sentence: str) -> str:
    """Parameters, which stand as `name`, as the command line has them."""
    return re.sub(r"`(\w+)`", r"--\1", sentence)


def explain_hub_error(error: Exception) -> str:
    """A sentence that says why a request to the Hub failed."""
    response = getattr(error, "response", None)
    if response is None and isinstance(error, HTTPError):
        return f"the connection to the Hub broke ({error}); run the command again, downloaded files are kept."
    if response is None:  # a refused upload has its reason in its cause
        return f"{error}{f' ({error.__cause__})' if error.__cause__ else ''}; no file on the Hub has changed."
    reason = getattr(error, "server_message", None) or str(error).splitlines()[0]
    if response.status_code == 401:
        return f"the Hub was given no token that it knows ({reason}); log in with `hf auth login`, or give `token`."
    if response.status_code == 403:
        return f"the token has no right to do this ({reason})."
    if response.status_code in (409, 412):
        return f"the repository changed during the upload ({reason}); check what is new, and run the command again."
    if response.status_code >= 500:
        return f"the Hub cannot answer now ({reason}); no file on it has changed, run the command again later."
    return f"the Hub refuses: {reason}."
