"""The command line of a process that runs one of our modules."""

from __future__ import annotations

import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line of `python -m MODULE`, by this interpreter.

    The folder that it runs in is not on its import path (`-P`): what lies there under the name of
    a library is not imported. tunefarm is found where it is installed.
    """
    return [sys.executable, "-P", "-m", module, *arguments]
