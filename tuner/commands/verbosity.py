"""How much a command prints: `--quiet` and `--verbose`."""

from __future__ import annotations

import io
import logging
import os
import sys
from contextlib import suppress

from tunefarm.configs.errors import TunefarmError
from tunefarm.tuner.commands.options import UsageError

# Standard streams that may be closed, full or a pipe that nobody reads.


class OutputError(TunefarmError):
    """Results cannot be written to stdout."""


class _Stdout(io.FileIO):
    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"cannot write to stdout: {error.strerror or error}") from error


class _Stderr(io.FileIO):
    """What is said there is not worth failing for."""

    def write(self, data: object) -> int:
        with suppress(OSError):
            return super().write(data)  # type: ignore[arg-type]
        return len(data)  # type: ignore[arg-type]


def prepare_streams() -> None:
    """Make the process's standard streams such that every failure to write is one of ours.

    Streams that are closed get a descriptor: else the next file that is opened, a database, would
    be taken for them. Names of files that are not text are printed with escapes.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):  # stdout: not writable
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # the lowest that is free, which is `number`
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process
    sys.stdout = _text(_Stdout(1, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Stderr(2, "w", closefd=False), sys.stderr)


def abandon_stdout() -> None:
    """What is written to stdout from now on, or was not yet, goes nowhere."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _text(raw: io.FileIO, former: object) -> io.TextIOWrapper:
    encoding = getattr(former, "encoding", None) or "utf-8"
    stream = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=raw.isatty() or isinstance(raw, _Stderr),
    )
    return stream


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
