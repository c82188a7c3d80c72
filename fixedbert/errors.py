"""The error for input that the user can put right."""

import sys
from collections.abc import Callable


class InputError(ValueError):
    """One sentence: what is wrong, where (file, line, field) and what to do."""


def exit_on_input_error(main: Callable[[], object]):
    """Run a script's `main`; an InputError ends it with exit status 1 and its sentence, without a traceback."""
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command goes on from the last checkpoint, if there was one")
