"""The sizes that `tune run` draws its inputs at: of files, of --shape, else in the middle."""

from __future__ import annotations

from collections.abc import Mapping

from tunefarm.compiler.errors import InputError
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.chosen_sizes import sizes_of_shapes
from tunefarm.compiler.types.signature import Signature

Shapes = Mapping[str, tuple[int, ...]]


def sizes_of(executable: Executable, files: Shapes, given: Shapes) -> dict[str, int]:
    """The size of every symbol: that of the inputs in files, that of --shape, or one in the middle.

    `given` has extents by the name of an input, or a single one by that of a symbol. Raises
    `InputError` for what the model does not have or was not built for.
    """
    inputs = executable.inputs
    shapes = {**files, **{name: shape for name, shape in given.items() if name in inputs}}
    symbols = {name: shape for name, shape in given.items() if name not in inputs}
    signature = executable.signature
    if signature is None:
        _check_fixed(executable, given)
        return {}
    for name, extents in symbols.items():
        if len(extents) != 1:
            raise InputError(
                f"the model has no input {name!r}, and a size of that name is one number",
                hint=f"inputs: {', '.join(inputs)}",
            )
    asked = {name: extents[0] for name, extents in symbols.items()}
    _check_files(signature, files, given)
    sizes = executable.chosen_sizes({**sizes_of_shapes(signature, shapes), **asked})
    _check_shapes(executable, signature, given, sizes)
    return sizes


def _check_fixed(executable: Executable, given: Shapes) -> None:
    inputs = executable.inputs
    for name, shape in given.items():
        if name not in inputs:
            raise InputError(f"the model has no input {name!r}; its inputs are {', '.join(inputs)}")
        if inputs[name].shape != shape:
            raise InputError(
                f"input {name!r} cannot have the shape {list(shape)}: the model was built for "
                f"{inputs[name]}",
                hint=f"build it with bounds, for example --shape {name}=batch:1..8,...",
            )


def _check_files(signature: Signature, files: Shapes, given: Shapes) -> None:
    """Refuse what --shape says of inputs that come from files, where these are of other sizes."""
    settled = sizes_of_shapes(signature, files)
    said: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        **{name: (shape, files[name]) for name, shape in given.items() if name in files},
        **{name: (shape, (settled[name],)) for name, shape in given.items() if name in settled},
    }
    for name, (asked, found) in said.items():
        if asked != found:
            asked_text, found_text = (",".join(map(str, extents)) for extents in (asked, found))
            raise InputError(
                f"--shape {name}={asked_text} is not what --input says: {name}={found_text}",
                hint="leave --shape out for inputs that come from files",
            )


def _check_shapes(
    executable: Executable, signature: Signature, given: Shapes, sizes: Mapping[str, int]
) -> None:
    """Refuse shapes of --shape that are not those at the sizes."""
    types = executable.inputs_at(sizes)
    for port in signature.inputs:
        shape = given.get(port.name)
        if shape is not None and shape != types[port.name].shape:
            raise InputError(
                f"input {port.name!r} cannot have the shape {list(shape)}: it is {port}, which is "
                f"{types[port.name]} where {', '.join(f'{n} = {s}' for n, s in sizes.items())}"
            )
