"""The base of the tree of errors, and the errors of settings and of tuning databases.

They live here because `configs` is the one package that every other may import;
`tunefarm.compiler.errors` re-exports them with its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tunefarm.configs.resource_limits import limit_behind

_MOST_CHARACTERS = 1600  # of a message


class TunefarmError(RuntimeError):
    """Base of every error that a user can cause or must read.

    It is a `RuntimeError`, as is what onnxruntime raises of bindings, options and values.
    `message` is one readable sentence, `program` the printed program at that point (or empty),
    `hint` what to do next (or empty). `str(error)` is the sentence and the hint, and the limit of
    this process (`ulimit`) behind what the error was raised from. What is too long to be read, the
    names of a damaged model say, is cut out of the middle.
    """

    def __init__(self, message: str, *, program: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = _readable(message)
        self.program = program
        self.hint = _readable(hint)

    def __str__(self) -> str:
        limit = limit_behind(self)
        known = limit in self.message or limit in self.hint
        advice = "; ".join(filter(None, (self.hint, "" if known else limit)))
        return f"{self.message} ({advice})" if advice else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.program, self.hint)


def _readable(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    half = _MOST_CHARACTERS // 2
    return f"{text[:half]} […] {text[-half:]}"


def _rebuild(kind: type[TunefarmError], message: str, program: str, hint: str) -> TunefarmError:
    return kind(message, program=program, hint=hint)


@contextmanager
def system_errors_as(kind: type[TunefarmError], what: str, hint: str = "") -> Iterator[None]:
    """Raise what the system refuses in a block as an error of this kind: "cannot `what`: …"."""
    try:
        yield
    except OSError as error:
        raise kind(f"cannot {what}: {error.strerror or error}", hint=hint) from error


class SettingsError(TunefarmError):
    """A setting, option or configuration file is wrong."""


class DatabaseError(TunefarmError):
    """A tuning database cannot be opened, read or written."""


class LeaseTakenError(DatabaseError):
    """Another process goes on with a job that this one was at work on."""


class DatabaseUnavailableError(DatabaseError):
    """A tuning database cannot be used at the moment: its disk is full or fails, or others hold it.

    Nothing was changed; the same call may succeed later.
    """


class DatabaseMovedError(DatabaseUnavailableError):
    """The name of a database that is in use does not lead to it any more."""
