"""Types of the model's inputs: declared shapes, completed by the shapes that the user fixes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from onnx import ValueInfoProto

from compiler.errors import ImportModelError, ShapeError, UnsupportedOperatorError
from compiler.frontend.element_types import dtype_of
from compiler.limits import Allowance
from compiler.types.tensor_type import TensorType

Dimension = int | str  # a symbol or "?" when the extent is not known


def input_types(
    inputs: Sequence[ValueInfoProto], shapes: Mapping[str, tuple[int, ...]], allowance: Allowance
) -> dict[str, TensorType]:
    """The static type of every input; `shapes` fixes inputs by name.

    A symbol that one fixed input settles is settled for the others, too. Raises ImportModelError
    for a name in `shapes` that no input has and for a shape that contradicts the declared one,
    ShapeError for dimensions that stay unknown.
    """
    names = [info.name for info in inputs]
    _check_names(names, shapes)
    declared = {info.name: _declared(info) for info in inputs}
    symbols: dict[str, int] = {}
    for name, shape in shapes.items():
        _match(name, declared[name][1], shape, symbols)
    types: dict[str, TensorType] = {}
    unresolved: list[str] = []
    for name, (number, dimensions) in declared.items():
        dtype = dtype_of(number, f"input {name!r}")
        settled = shapes.get(name)
        if settled is None and dimensions is not None:
            replaced = [symbols.get(d, d) if isinstance(d, str) else d for d in dimensions]
            settled = tuple(d for d in replaced if isinstance(d, int))
            if len(settled) != len(replaced):
                settled = None
        if settled is None:
            unresolved.append(name)
        else:
            types[name] = _checked(name, TensorType(dtype, settled), allowance)
    if unresolved:
        raise _unresolved_error(unresolved, declared)
    return types


def _check_names(names: Sequence[str], shapes: Iterable[str]) -> None:
    for name in shapes:
        if name in names:
            continue
        nearest = difflib.get_close_matches(name, names, n=1)
        known = ", ".join(repr(known) for known in names) or "none"
        raise ImportModelError(
            f"the model has no input {name!r} to give a shape to (its inputs: {known})",
            hint=f"did you mean {nearest[0]!r}?" if nearest else "",
        )


def _declared(info: ValueInfoProto) -> tuple[int, tuple[Dimension, ...] | None]:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        name = (kind or "no").removesuffix("_type")
        raise UnsupportedOperatorError(
            f"input {info.name!r} has {name} type, and only tensors are supported"
        )
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    dimensions: list[Dimension] = []
    for dimension in tensor.shape.dim:
        if dimension.WhichOneof("value") == "dim_value":
            dimensions.append(int(dimension.dim_value))
        else:
            dimensions.append(dimension.dim_param or "?")
    return tensor.elem_type, tuple(dimensions)


def _match(
    name: str,
    dimensions: tuple[Dimension, ...] | None,
    shape: tuple[int, ...],
    symbols: dict[str, int],
) -> None:
    if dimensions is None:
        return
    if len(dimensions) != len(shape):
        raise ImportModelError(
            f"input {name!r} has {len(dimensions)} dimensions {_text(dimensions)}, "
            f"and the shape given has {len(shape)}: {_text(shape)}"
        )
    for dimension, extent in zip(dimensions, shape, strict=True):
        if isinstance(dimension, int):
            if dimension != extent:
                raise ImportModelError(
                    f"input {name!r} has the shape {_text(dimensions)}, "
                    f"which {_text(shape)} contradicts"
                )
        elif dimension != "?" and symbols.setdefault(dimension, extent) != extent:
            raise ImportModelError(
                f"the shapes given fix the dimension {dimension!r} to {symbols[dimension]} "
                f"and to {extent}"
            )


def _checked(name: str, type: TensorType, allowance: Allowance) -> TensorType:
    allowance.check_array(f"input {name!r}", type.shape, type.dtype.bytes)
    if any(extent <= 0 for extent in type.shape):
        raise ShapeError(f"input {name!r} of shape {_text(type.shape)} has no elements")
    return type


def _unresolved_error(
    names: Sequence[str], declared: Mapping[str, tuple[int, tuple[Dimension, ...] | None]]
) -> ShapeError:
    described: list[str] = []
    options: list[str] = []
    for name in names:
        dimensions = declared[name][1]
        if dimensions is None:
            described.append(f"{name!r} has no shape at all")
            options.append(f"--shape {name}=D0,D1,...")
            continue
        described.append(f"{name!r} has the shape {_text(dimensions)}")
        filled = ",".join(str(d if isinstance(d, int) else 1) for d in dimensions)
        options.append(f"--shape {name}={filled}")
    return ShapeError(
        f"the shapes of the inputs must be known: {'; '.join(described)}",
        hint=f"fix the unknown dimensions, for example {' '.join(options)}",
    )


def _text(dimensions: Sequence[Dimension]) -> str:
    return f"[{', '.join(map(str, dimensions))}]"
