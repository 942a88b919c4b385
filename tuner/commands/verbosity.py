"""How much a command prints: `--quiet` and `--verbose`."""

from __future__ import annotations

import logging
import sys

from tunefarm.tuner.commands.options import UsageError

LOG = logging.getLogger("tunefarm.tune")
_ROOT = logging.getLogger("tunefarm")
_FORM = "%(relativeCreated)8.0f ms  %(message)s"
_quiet = False
_handler: logging.Handler | None = None


def set_verbosity(quiet: bool = False, verbose: int = 0) -> None:
    """What is printed from now on: `quiet` leaves out notes, `verbose` logs (2: in detail).

    Raises UsageError where both are asked for.
    """
    global _quiet, _handler
    if quiet and verbose:
        raise UsageError("--quiet and --verbose exclude each other: give one of them")
    _quiet = quiet
    if _handler is not None:
        _ROOT.removeHandler(_handler)
        _handler = None
        _ROOT.setLevel(logging.NOTSET)
    if verbose:
        _handler = logging.StreamHandler(sys.stderr)
        _handler.setFormatter(logging.Formatter(_FORM))
        _ROOT.addHandler(_handler)
        _ROOT.setLevel(logging.INFO if verbose == 1 else logging.DEBUG)


def is_quiet() -> bool:
    """Whether only errors and one line with the result are printed."""
    return _quiet


def note(text: str) -> None:
    """Print a note to stderr, unless the command is to be quiet."""
    if not _quiet:
        print(f"note: {text}", file=sys.stderr)
