"""Objects found by their names: what a process gets from its starter instead of the objects."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module  # noqa: TID251 - a process is told by name what to do
from typing import Any

from tunefarm.compiler.errors import MeasureError

# The command line of a process that runs one of our modules.


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line of `python -m MODULE`, by this interpreter.

    The folder that it runs in is not on its import path (`-P`): what lies there under the name of
    a library is not imported. tunefarm is found where it is installed.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def by_name(path: str) -> Callable[..., Any]:
    """The function or class at `module:name`; raises MeasureError when there is none."""
    module, _, name = path.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise MeasureError(f"there is no {path}: {error}") from error
    if not callable(found):
        raise MeasureError(f"{path} is not a function")
    function: Callable[..., Any] = found
    return function
