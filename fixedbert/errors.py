"""The error for input that the user can put right, and the ways out of a script."""

import os
import signal
import sys
import threading
from collections.abc import Callable

from huggingface_hub.errors import HTTPError  # of requests to the Hub, also of a connection that breaks

LONGEST_MESSAGE = 1000  # characters; a message can echo what a file holds


class InputError(ValueError):
    """
    One sentence: what is wrong, where (file, line, field) and what to do. The middle of a long one is left out.

    Args:
        field: the parameter at fault. The message begins with its name, which the command line shows as a flag.
    """

    def __init__(self, message: str, field: str | None = None):
        self.field = field
        if field is not None:
            message = f"{field} {message}"
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[: LONGEST_MESSAGE // 2]} ... {message[-LONGEST_MESSAGE // 2 :]}"
        super().__init__(message)


class Divergence(InputError):
    """Losses, gradients or weights that are not finite."""


class Stopped(SystemExit):
    """
    The end by a signal, with the exit status that shells give it.

    Like a KeyboardInterrupt it can carry an attribute `left`: what is left of the work, a clause for the last line.
    """

    def __init__(self, number: int, left: str = ""):
        super().__init__(128 + number)
        self.left = left


def stop(number: int, _frame: object):
    raise Stopped(number)


def repeat_if_lost(unraisable):
    """For sys.unraisablehook: a signal whose exception fell into a finalizer, where Python drops it, is sent again."""
    number = {KeyboardInterrupt: signal.SIGINT, Stopped: signal.SIGTERM}.get(unraisable.exc_type)
    if number is None:
        sys.__unraisablehook__(unraisable)
    else:
        threading.Timer(0.01, os.kill, (os.getpid(), number)).start()  # when the finalizer has ended


def exit_on_input_error(main: Callable[[], object]):
    """
    Run a script's `main`; whatever ends it before its end is one line, without a traceback.

    An InputError ends it with exit status 1 and its sentence, Ctrl-C with status 130, SIGTERM with 143.
    """
    signal.signal(signal.SIGTERM, stop)
    sys.unraisablehook = repeat_if_lost
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as behind nohup
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {'--' if error.field else ''}{error}")
    except HTTPError as error:
        sys.exit(f"error: {explain_hub_error(error)}")
    except (KeyboardInterrupt, Stopped) as error:
        status = error.code if isinstance(error, Stopped) else 128 + signal.SIGINT
        said = "stopped by SIGTERM" if status == 128 + signal.SIGTERM else "interrupted"
        left = getattr(error, "left", "")
        print(f"\n{said}{left and ': '}{left}", file=sys.stderr)  # on a line of its own, after a bar of progress
        sys.exit(status)


def explain_hub_error(error: Exception) -> str:
    """A sentence for what went wrong on the way to the Hub."""
    answer = getattr(error, "response", None)
    if answer is None and isinstance(error, HTTPError):
        return f"the connection to the Hub broke ({error}); give the command again, what has arrived stays."
    if answer is None:  # an upload that was refused has its reason below it
        return f"{error}{f' ({error.__cause__})' if error.__cause__ else ''}; no file has changed there."
    said = getattr(error, "server_message", None) or str(error).splitlines()[0]
    if answer.status_code in (401, 403):
        return f"the token has no right to do this ({said})."
    if answer.status_code in (409, 412):
        return f"it was changed while this upload ran ({said}); look what is new there, and give the command again."
    if answer.status_code >= 500:
        return f"the Hub cannot answer now ({said}); no file has changed there, give the command again later."
    return f"the Hub refuses: {said}."
