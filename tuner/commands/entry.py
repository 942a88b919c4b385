"""The process of a command: how it starts, and how it ends."""

from __future__ import annotations

import gc
import os
import sys
import time

from tunefarm.configs.temporary_folders import leave
from tunefarm.tuner.interrupt import (
    catch_signals,
    end_interrupted,
    exit_code,
    ignore_signals,
    interrupted,
    interruption,
)

_loaded = time.monotonic()
_is_own = False  # the process is the command's: no program or test runs it among other things
_ends_at_once = False


def main() -> None:
    """Run the command line of this process, and end it.

    Signals are caught before anything else is imported.
    """
    global _is_own
    catch_signals()
    _is_own = True
    gc.disable()  # until a command begins: what imports and options make stays
    code = None
    try:
        from tunefarm.tuner.commands.cli import app
        from tunefarm.tuner.commands.command_line import run_command
        from tunefarm.tuner.commands.verbosity import prepare_streams

        prepare_streams()
        code = run_command(app, sys.argv[1:])
        if not interrupted():
            ignore_signals()  # the work is done
    except BaseException:
        if not interrupted():
            raise
    if interrupted():
        if code != exit_code():  # else it has been said
            print(interruption(), file=sys.stderr, flush=True)
        end_interrupted()
    leave()
    if _ends_at_once and code == 0:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    sys.exit(code)


def begins() -> None:
    """Said before every command: from now on there is garbage."""
    if _is_own:
        gc.enable()


def began() -> float:
    """When the command began, as a moment of `time.monotonic`: with its process, if it has one."""
    return _loaded if _is_own else time.monotonic()


def short_lived() -> None:
    """Said first by a command that is done in a moment, or keeps what it makes to its end.

    Looking for garbage finds little then, and taking the interpreter apart object by object at the
    end, a third of a second, closes nothing that is still open. Threads change places often, since
    LLVM's makes many short calls and waits after each.
    """
    global _ends_at_once
    if _is_own:
        _ends_at_once = True
        gc.disable()
        sys.setswitchinterval(0.0002)


if __name__ == "__main__":
    from tunefarm.tuner.commands import (
        entry,  # the module that commands speak to, not this copy of it
    )

    entry.main()
