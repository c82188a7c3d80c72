"""The error for input that the user can put right, and the way out of a script."""

import sys
from collections.abc import Callable

from huggingface_hub.errors import HTTPError  # of requests to the Hub, also of a connection that breaks

LONGEST_MESSAGE = 1000  # characters; a message can echo what a file holds


class InputError(ValueError):
    """One sentence: what is wrong, where (file, line, field) and what to do. The middle of a long one is left out."""

    def __init__(self, message: str):
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[: LONGEST_MESSAGE // 2]} ... {message[-LONGEST_MESSAGE // 2 :]}"
        super().__init__(message)


class Divergence(InputError):
    """Losses, gradients or weights that are not finite."""


def exit_on_input_error(main: Callable[[], object]):
    """Run a script's `main`; an InputError ends it with exit status 1 and its sentence, without a traceback."""
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
    except HTTPError as error:
        sys.exit(f"error: {explain_hub_error(error)}")
    except KeyboardInterrupt:
        sys.exit("interrupted: where a checkpoint was saved, the same command goes on from it")


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
