"""Runs the operators of a StringPrefix, before a model's entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunefarm.compiler.errors import InputError
from tunefarm.compiler.strings.operators import RUNS, Run
from tunefarm.compiler.types.string_prefix import StringPort, StringPrefix, StringStep
from tunefarm.compiler.types.structure import strings_of


class PrefixRun:
    """A prefix whose tables and expressions are made."""

    def __init__(self, prefix: StringPrefix) -> None:
        """Raises `ValueError` and `KeyError` for steps that the importer did not make."""
        self._prefix = prefix
        self._steps: list[tuple[StringStep, Run]] = [
            (step, RUNS[step.operator](dict(step.attributes))) for step in prefix.steps
        ]
        made = {name for step in prefix.steps for name in step.outputs}
        read = dict.fromkeys(name for step in prefix.steps for name in step.inputs)
        self._read = [name for name in read if name not in made]
        self._own = {port.name for port in prefix.ports}

    def __call__(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What was given with the tensors that the steps make of the strings.

        These may be given by their own names instead. Raises `InputError` for strings that are
        missing, no strings, or of another shape than the model declares.
        """
        tensors = dict(given)
        missing = [name for name in self._read if name not in tensors]
        if missing and set(self._prefix.results) <= tensors.keys():
            return tensors
        if missing:
            raise InputError(f"input {missing[0]!r} is missing")
        values: dict[str, Any] = {}
        for name in self._read:
            try:
                values[name] = strings_of(tensors[name])
            except (TypeError, UnicodeDecodeError) as error:
                raise InputError(f"input {name!r} cannot be read: {error}") from error
        for port in self._prefix.ports:
            _check_shape(port, values[port.name].shape)
        for step, run in self._steps:
            try:
                results = run(*(values[name] for name in step.inputs))
            except UnicodeError as error:
                raise InputError(f"{step.operator} cannot read strings: {error}") from error
            values.update(zip(step.outputs, results, strict=False))
        kept = {name: value for name, value in tensors.items() if name not in self._own}
        return {**kept, **{name: values[name] for name in self._prefix.results}}

    def explained(self, error: InputError) -> InputError:
        """An error about what the steps have made, with what they made it of."""
        names = ", ".join(map(repr, self._read))
        return InputError(
            f"{error.message} (of {', '.join(map(repr, self._prefix.results))}, which "
            f"{self._prefix.operators} make of {names})",
            hint=error.hint,
        )


def _check_shape(port: StringPort, shape: tuple[int, ...]) -> None:
    """Raise `InputError` for a shape that the model does not declare."""
    if port.shape is None:
        return
    fits = len(shape) == len(port.shape) and all(
        not isinstance(declared, int) or declared == size
        for declared, size in zip(port.shape, shape, strict=True)
    )
    if not fits:
        declared = ", ".join("?" if size is None else str(size) for size in port.shape)
        raise InputError(
            f"input {port.name!r} has the shape {list(shape)}, the model declares [{declared}]"
        )
