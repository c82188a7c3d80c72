"""The first seconds of the scripts and of the `fixedbert` command, in which torch and transformers are imported."""

import os
import signal

STATUS = 128 + signal.SIGINT


def leave(*_):
    os.write(2, b"\ninterrupted: nothing had begun\n")
    os._exit(STATUS)  # an exception would go through half-made modules, some of which hold it back


def leave_quietly():
    """Let Ctrl-C end the process with one line, until `exit_on_input_error` knows more."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as behind nohup
        signal.signal(signal.SIGINT, leave)


def main():
    """The `fixedbert` command."""
    leave_quietly()
    from fixedbert.cli import entry_point

    entry_point()
