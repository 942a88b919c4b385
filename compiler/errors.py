"""One tree of errors: what was attempted, why it failed, the program at that point, what to try.

The base and the errors that `configs` and `db` raise are defined in `tunefarm.configs.errors`.
`with_count` words the counts in messages.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tunefarm.configs.errors import DatabaseError, SettingsError, TunefarmError, system_errors_as

__all__ = [
    "ArtefactError",
    "DatabaseError",
    "DeclaredShapeWarning",
    "ExportError",
    "FunctionError",
    "ImportModelError",
    "LimitError",
    "LoweringError",
    "MeasureError",
    "ModelError",
    "ScheduleError",
    "SettingsError",
    "ShapeError",
    "TunefarmError",
    "UnsupportedOperatorError",
    "UntunedWarning",
    "VerifyError",
    "declarations_known",
    "system_errors_as",
    "warn_of_declared",
    "with_count",
]


class UntunedWarning(UserWarning):
    """A model was built of default schedules, because no record of any kernel was found."""


class DeclaredShapeWarning(UserWarning):
    """A model's file declares outputs of other shapes than the model computes."""


_IS_KNOWN = ContextVar("what a model declares is known", default=False)


@contextmanager
def declarations_known(known: bool = True) -> Iterator[None]:
    """Within, this thread's imports give no `DeclaredShapeWarning` if it is `known`."""
    token = _IS_KNOWN.set(known)
    try:
        yield
    finally:
        _IS_KNOWN.reset(token)


def warn_of_declared(text: str) -> None:
    """Give a `DeclaredShapeWarning` unless that is known."""
    if not _IS_KNOWN.get():
        warnings.warn(text, DeclaredShapeWarning, stacklevel=2)


class ModelError(TunefarmError):
    """A file that was given as a model cannot be used, be it an ONNX file or an artifact."""


class ImportModelError(ModelError):
    """The ONNX file cannot be read or does not say what it must."""


class UnsupportedOperatorError(ImportModelError):
    """The model uses operators, attributes or element types that no converter covers."""


class ShapeError(ImportModelError):
    """A type or shape rule is violated, or a shape is not known before run time."""


class ComputedShapeError(ShapeError):
    """A shape depends on what a run computes, and nothing bounds it.

    `names` are those that the file has for such sizes, which may be given bounds.
    """

    names: tuple[str, ...] = ()


class LimitError(ImportModelError):
    """The model needs more memory, nodes, dimensions or time than the limits allow."""


class VerifyError(TunefarmError):
    """A program broke a rule of its representation: a bug in the pass that made it."""


class ScheduleError(TunefarmError):
    """A schedule step does not fit the kernel it is applied to."""


class LoweringError(TunefarmError):
    """A kernel and its schedule could not be turned into loops or machine code."""


class ArtefactError(ModelError):
    """An artifact on disk is damaged, of another version, or not for this CPU."""


class ExportError(TunefarmError):
    """A built model cannot be written in another form: a tool is missing or has failed."""


class FunctionError(TunefarmError):
    """A function that a model calls by name has failed."""


class MeasureError(TunefarmError):
    """The measuring machinery itself failed (a candidate's failure is a value, not this)."""


class CoresBusyError(MeasureError):
    """Another process holds a core that is to be measured on, for too long."""


class InputError(TunefarmError, ValueError):
    """An array given to a built model does not fit its inputs or outputs."""


class ComputedOutputError(InputError):
    """An array was given for an output whose shape is known after the run only."""


def with_count(count: int, noun: str) -> str:
    """The count with its noun: 1 thread, 2 threads."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
